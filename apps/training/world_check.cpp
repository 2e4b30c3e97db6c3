#include "apps/training/world_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <sstream>
#include <string_view>

#include "apps/inference/version.h"
#include "apps/training/output/version.h"
#include "apps/training/state/data_contents.h"
#include "comm/agreement.h"
#include "core/checksum.h"
#include "core/host.h"

namespace starling {
namespace {

/// Keys that may differ between hosts: they say where things lie and what computes, not what.
bool own_to_a_host(const std::string& path) {
  constexpr std::string_view kKeys[] = {"data.path",
                                        "data.threads",
                                        "device",
                                        "plugins",
                                        "threads",
                                        "tensorboard",
                                        "prometheus",
                                        "trace",
                                        "init",
                                        "sync.transport.interface",
                                        "sync.transport.secret"};
  return std::ranges::any_of(kKeys, [&](std::string_view key) {
    return path.starts_with(key) && (path.size() == key.size() || path[key.size()] == '.');
  });
}

/// By path, all that must be the same on every host.
nlohmann::json common_keys(const nlohmann::json& resolved) {
  nlohmann::json common = nlohmann::json::object();
  const nlohmann::json flat = resolved.flatten();
  for (const auto& [place, value] : flat.items()) {
    std::string path = place.substr(1);
    std::ranges::replace(path, '/', '.');
    if (!own_to_a_host(path)) common[path] = value;
  }
  return common;
}

/// The text of a path, behind a host's name.
std::string path_text(const std::string& path) { return path.empty() ? "" : ", data.path " + path; }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

void agree_on_build(World& world, const std::string& report) {
  const auto found = find_disagreement(world, report);
  if (!found) return;
  const std::vector<std::string> hosts = world.all_gather(host_name());
  const std::vector<std::string> first = lines_of(found->first), other = lines_of(found->other);
  std::size_t i = 0;
  while (i < first.size() && i < other.size() && first[i] == other[i]) ++i;
  const auto line = [&](const std::vector<std::string>& lines) {
    return i < lines.size() ? lines[i] : std::string("nothing");
  };
  const auto rank = static_cast<std::size_t>(found->rank);
  fail_on_all_ranks(ExitCode::kUsage, "build", {},
                    "the ranks run different builds: rank 0 on host {} has '{}', rank {} on host "
                    "{} has '{}'; needed: the same build and "
                    "libraries on every host (starling-train --version)",
                    hosts[0], line(first), rank, hosts[rank], line(other));
}

void agree_on_config(World& world, const nlohmann::json& resolved) {
  const auto found = find_disagreement(world, common_keys(resolved).dump());
  if (!found) return;
  std::vector<std::string> hosts = world.all_gather(host_name());
  const auto first = nlohmann::json::parse(found->first),
             other = nlohmann::json::parse(found->other);
  std::set<std::string> paths;
  for (const auto* values : {&first, &other}) {
    for (const auto& [path, value] : values->items()) paths.insert(path);
  }
  const auto value = [](const nlohmann::json& values, const std::string& path) {
    return values.contains(path) ? values[path].dump() : std::string("not there");
  };
  const auto path = std::ranges::find_if(
      paths, [&](const std::string& p) { return value(first, p) != value(other, p); });
  if (path == paths.end()) return;
  const auto rank = static_cast<std::size_t>(found->rank);
  if (path->starts_with("data.")) {  // such as `classes`, which follows what lies there
    const std::vector<std::string> folders = world.all_gather(path_text(data_path_of(resolved)));
    for (const std::size_t r : {std::size_t{0}, rank}) hosts[r] += folders[r];
  }
  fail_on_all_ranks(ExitCode::kUsage, "config", {},
                    "the ranks disagree: {} is {} on rank 0 (host {}) and {} on rank {} (host {}); "
                    "needed: the same config and arguments on every host",
                    *path, value(first, *path), hosts[0], value(other, *path), rank, hosts[rank]);
}

void agree_on_data(World& world, const std::string& contents, const std::string& path) {
  const auto found = find_disagreement(world, contents);
  if (!found) return;
  const std::vector<std::string> hosts = world.all_gather(host_name()),
                                 paths = world.all_gather(path_text(path));
  const auto rank = static_cast<std::size_t>(found->rank);
  const auto known = difference_of(found->other, found->first, "");
  const ContentsDifference difference =
      known ? *known : ContentsDifference{found->other, found->first};
  fail_on_all_ranks(ExitCode::kUsage, "data", {},
                    "the ranks' data are not the same: rank {} (host {}{}) has {}, rank 0 (host "
                    "{}{}) has {}; needed: the same files on every host",
                    rank, hosts[rank], paths[rank], difference.mine, hosts[0], paths[0],
                    difference.other);
}

std::map<std::string, std::string> identity_of(const nlohmann::json& resolved,
                                               const std::string& contents,
                                               const std::vector<Parameter*>& parameters) {
  std::string model;
  for (const Parameter* one : parameters)
    model += fmt::format("{} {}\n", one->name, one->shape.text());
  return {{"version", version_text()},
          {"build", checksum(version_report())},
          {"config", checksum(common_keys(resolved).dump())},
          {"data", checksum(contents)},
          {"model", checksum(model)}};
}

}  // namespace starling
