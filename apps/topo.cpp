// starling-topo: what a topology does, without a cluster.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/error.h"
#include "topology/check.h"
#include "topology/mixing.h"
#include "topology/rational.h"
#include "topology/svg.h"
#include "topology/topology.h"

namespace starling {
namespace {

constexpr std::size_t kGroupsPerLine = 24;  ///< more are counted, not listed
constexpr std::size_t kNumbersPerGroup = 32;

struct ShowOptions {
  std::string type;
  int ranks = 0;
  int ranks_per_node = 1;
  std::vector<std::string> settings;
  bool json = false;
  std::string svg;
};

void write_all(std::FILE* file, const std::string& text, const std::string& name) {
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  if (!written) fail(ExitCode::kOutput, "output", "{} could not be written: {}", name, std::strerror(errno));
}

/// "0 1 2", or "0-7" for three and more in a row.
std::string ranks_text(const std::vector<int>& ranks) {
  std::string result;
  std::size_t parts = 0;
  for (std::size_t i = 0; i < ranks.size() && parts < kNumbersPerGroup; ++parts) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 3) end = i + 1;
    result += (result.empty() ? "" : " ") + std::to_string(ranks[i]);
    if (end > i + 1) result += "-" + std::to_string(ranks[end - 1]);
    i = end;
    if (parts + 1 == kNumbersPerGroup && i < ranks.size()) result += fmt::format(" … ({} ranks)", ranks.size());
  }
  return result;
}

std::string groups_text(const std::vector<Group>& groups) {
  std::string result;
  const std::size_t shown = std::min(groups.size(), kGroupsPerLine);
  for (std::size_t g = 0; g < shown; ++g) {
    const Group& group = groups[g];
    result += (result.empty() ? "[" : " [") + ranks_text(group.ranks) + "]";
    // The weights once after the last of several groups that share them.
    const bool last = g + 1 == shown || groups[g + 1].self_weight != group.self_weight || groups[g + 1].ranks.size() != group.ranks.size();
    if (!last) continue;
    const double other = group.ranks.size() > 1 ? (1.0 - group.self_weight) / static_cast<double>(group.ranks.size() - 1) : 0.0;
    const std::string self_text = weight_text(group.self_weight), other_text = weight_text(other);
    result += self_text == other_text ? fmt::format(" weight {}", self_text) : fmt::format(" self {}, other {}", self_text, other_text);
    if (g + 1 < shown) result += ";";
  }
  if (groups.size() > shown) result += fmt::format("; … and {} more groups", groups.size() - shown);
  return result;
}

std::string rows_text(const Round& round) {
  std::string result;
  const std::size_t shown = std::min(round.rows.size(), kGroupsPerLine);
  for (std::size_t i = 0; i < shown; ++i) {
    result += fmt::format("{}{} =", i == 0 ? "" : "; ", i);
    const auto& row = round.rows[i];
    for (std::size_t e = 0; e < std::min(row.size(), kNumbersPerGroup); ++e) {
      result += fmt::format("{} {}·x{}", e == 0 ? "" : " +", weight_text(row[e].second), row[e].first);
    }
    if (row.size() > kNumbersPerGroup) result += fmt::format(" + … ({} terms)", row.size());
  }
  if (round.rows.size() > shown) result += fmt::format("; … and {} more rows", round.rows.size() - shown);
  return result;
}

std::string report_text(const Topology& topology, const TopologyReport& report, const std::string& type) {
  const std::int64_t period = topology.period(), count = period > 0 ? period : kRoundsWithoutPeriod;
  std::string text = fmt::format("{}, {} rank{}, {}\n", type, topology.ranks(), topology.ranks() == 1 ? "" : "s",
                                 period > 0 ? fmt::format("period {}", period) : fmt::format("no period (figures over {} rounds)", count));
  const std::int64_t shown = std::min<std::int64_t>(count, kRoundsWithoutPeriod);
  for (std::int64_t k = 0; k < shown; ++k) {
    const Round round = topology.round(k);
    text += fmt::format("round {}: {}\n", k,
                        round.identity()     ? "every rank keeps its value"
                        : round.rows.empty() ? groups_text(round.groups)
                                             : rows_text(round));
  }
  if (shown < count) text += fmt::format("… and {} more rounds\n", count - shown);
  text += fmt::format("spectral gap: {:.12g}\n", report.spectral_gap);
  if (report.rounds_to_consensus) {
    text += fmt::format("consensus: exact after {} rounds{}\n", *report.rounds_to_consensus, report.exact ? "" : " (within 1e-12)");
  } else {
    const double rate = 1.0 - report.spectral_gap;
    text += fmt::format("consensus: disagreement × {:.6g} a round (a tenth after {:.3g} rounds)\n", rate, std::log(0.1) / std::log(rate));
  }
  return text;
}

std::string report_json(const Topology& topology, const TopologyReport& report) {
  const auto n = static_cast<std::size_t>(topology.ranks());
  nlohmann::ordered_json result;
  result["spectral_gap"] = report.spectral_gap;
  result["rounds_to_consensus"] = nullptr;
  if (report.rounds_to_consensus) result["rounds_to_consensus"] = *report.rounds_to_consensus;
  result["matrices"] = nlohmann::ordered_json::array();
  for (const MixingMatrix& matrix : one_period(topology)) {
    std::vector<std::vector<double>> dense(n, std::vector<double>(n, 0.0));
    for (int i = 0; i < topology.ranks(); ++i) {
      matrix.for_row(i, [&](int j, double weight) { dense[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] = weight; });
    }
    result["matrices"].push_back(std::move(dense));
  }
  return result.dump() + "\n";
}

void show(const ShowOptions& options) {
  register_builtin_topologies();
  nlohmann::json config = {{"type", options.type}};
  for (const std::string& setting : options.settings) apply_setting(config, setting);
  ConfigSection section(config, "starling-topo");
  const std::unique_ptr<Topology> topology = make_topology(section, {options.ranks, options.ranks_per_node});
  const TopologyReport report = analyse(*topology);
  const std::string type = config.value("type", options.type);
  if (options.json) return write_all(stdout, report_json(*topology, report), "standard output");
  if (options.svg.empty()) return write_all(stdout, report_text(*topology, report, type), "standard output");

  const std::string picture = topology_svg(*topology, report, fmt::format("{}, {} ranks", type, options.ranks));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(options.svg.c_str(), "wb"), &std::fclose);
  if (!file) fail(ExitCode::kUsage, "output", "--svg: {} cannot be opened for writing: {}", options.svg, std::strerror(errno));
  write_all(file.get(), picture, options.svg);
}

int run(int argc, char** argv) {
  CLI::App app{"starling-topo: shows, checks and draws topologies", "starling-topo"};
  app.require_subcommand(1);
  ShowOptions options;
  CLI::App* command = app.add_subcommand("show", "print a topology's rounds, weights, spectral gap and rounds to consensus");
  command->add_option("TYPE", options.type, "the topology's name: complete, ring, one-peer-exp, base-2, …")->required();
  command->add_option("-n,--ranks", options.ranks, "number of ranks")->required()->check(CLI::Range(1, 65536));
  command->add_option("--ranks-per-node", options.ranks_per_node, "consecutive ranks that share a node")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command->add_option("--set", options.settings, "a key of the topology, as KEY=VALUE (repeatable)")->allow_extra_args(false);
  CLI::Option* json = command->add_flag("--json", options.json, "print the figures and the matrices of one period as JSON");
  command->add_option("--svg", options.svg, "draw it into this file")->excludes(json);
  if (argc > 1 && argv[1][0] != '-' && std::strcmp(argv[1], "show") != 0) {
    fail(ExitCode::kUsage, "arguments", "unknown subcommand '{}'; known: show", argv[1]);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    std::string message = error.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    fail(ExitCode::kUsage, "arguments", "{}; see starling-topo show --help", message);
  }
  show(options);
  return 0;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  try {
    return starling::run(argc, argv);
  } catch (const starling::Error& error) {
    fmt::print(stderr, "starling-topo: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "starling-topo: [memory] out of memory; use fewer ranks\n");
    return static_cast<int>(starling::ExitCode::kMemory);
  } catch (const std::exception& error) {
    fmt::print(stderr, "starling-topo: [internal] {}\n", error.what());
    return static_cast<int>(starling::ExitCode::kInternal);
  }
}
