#include "apps/trainer/world_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "apps/trainer/agreement.h"
#include "apps/trainer/host.h"

namespace starling {
namespace {

/// Keys that may differ between hosts: they say where things lie and what computes, not what.
bool own_to_a_host(const std::string& path) {
  static const std::set<std::string> keys{"data.path", "device", "plugins", "threads", "tensorboard", "trace", "init"};
  return keys.count(path) != 0;
}

void flatten(const nlohmann::json& value, const std::string& path, std::map<std::string, std::string>& lines) {
  if (own_to_a_host(path)) return;
  if (!value.is_object() || value.empty()) {
    lines[path] = value.dump();
    return;
  }
  for (const auto& [name, inner] : value.items()) flatten(inner, path.empty() ? name : path + "." + name, lines);
}

std::uint64_t digest(const std::string& text) {  // FNV-1a
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Each rank's host and lines, where the digests of the texts are not all the same; otherwise empty.
struct RankText {
  std::string host;
  std::vector<std::string> lines;
};
std::vector<RankText> gather_if_different(Transport& transport, const std::string& text) {
  if (transport.size() == 1) return {};
  const std::vector<std::string> digests = transport.all_gather(fmt::format("{:016x}", digest(text)));
  bool same = true;
  for (const std::string& other : digests) same &= other == digests.front();
  if (same) return {};
  std::vector<RankText> ranks;
  for (const std::string& other : transport.all_gather(host_name() + "\n" + text)) {
    RankText rank;
    rank.lines = lines_of(other);
    rank.host = rank.lines.front();
    rank.lines.erase(rank.lines.begin());
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

}  // namespace

void agree_on_build(Transport& transport, const std::string& report) {
  const std::vector<RankText> ranks = gather_if_different(transport, report);
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    const auto &first = ranks[0].lines, &other = ranks[r].lines;
    for (std::size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      const std::string here = i < first.size() ? first[i] : "nothing", there = i < other.size() ? other[i] : "nothing";
      if (here == there) continue;
      throw AgreedError(ExitCode::kUsage, "build",
                        fmt::format("the ranks run different builds: rank 0 on host {} has '{}', rank {} on host {} has '{}'; needed: the "
                                    "same build and libraries on every host (starling-train --version)",
                                    ranks[0].host, here, r, ranks[r].host, there));
    }
  }
}

void agree_on_config(Transport& transport, const nlohmann::json& resolved) {
  std::map<std::string, std::string> mine;
  flatten(resolved, "", mine);
  std::string text;
  for (const auto& [path, value] : mine) text += path + "=" + value + "\n";
  const std::vector<RankText> ranks = gather_if_different(transport, text);
  const auto parse = [](const std::vector<std::string>& lines) {
    std::map<std::string, std::string> values;
    for (const std::string& line : lines) values[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
    return values;
  };
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    const std::map<std::string, std::string> first = parse(ranks[0].lines), other = parse(ranks[r].lines);
    std::set<std::string> paths;
    for (const auto* values : {&first, &other}) {
      for (const auto& [path, value] : *values) paths.insert(path);
    }
    for (const std::string& path : paths) {
      const auto value = [&](const std::map<std::string, std::string>& values) {
        const auto it = values.find(path);
        return it == values.end() ? std::string("not there") : it->second;
      };
      if (value(first) == value(other)) continue;
      throw AgreedError(ExitCode::kUsage, "config",
                        fmt::format("the ranks disagree: {} is {} on rank 0 (host {}) and {} on rank {} (host {}); needed: the same config "
                                    "and arguments on every host",
                                    path, value(first), ranks[0].host, value(other), r, ranks[r].host));
    }
  }
}

}  // namespace starling
