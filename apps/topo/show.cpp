#include "apps/topo/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "comm/algorithm.h"
#include "comm/consensus.h"
#include "comm/growth.h"
#include "comm/mixer.h"
#include "core/console.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/text.h"
#include "kernels/open_backend.h"
#include "topology/mixing.h"
#include "topology/picture.h"
#include "topology/rational.h"

namespace starling {
namespace {

struct ShowOptions {
  TopologyChoice choice;
  bool json = false;
  std::string svg;
  std::string algorithm;          ///< a type, or `sync.algorithm` as JSON; empty: none
  double momentum = 0.9;          ///< of the `sgd` that the algorithm's figure is for
  std::string exchange = "fp32";  ///< `sync.exchange`
};

constexpr std::size_t kGroupsPerLine = 24;  ///< more are counted, not listed
constexpr std::size_t kNumbersPerGroup = 32, kTermsPerLine = 96;
constexpr int kMatrixRanks = 16;      ///< the product is printed as a matrix up to here,
constexpr int kJsonMatrixRanks = 64;  ///< and matrices stand in the JSON
constexpr std::size_t kCurvePoints = 16;
/// A curve or a deviation below is what rounding leaves of zero.
constexpr double kRounding = 1e-13;

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
    if (parts + 1 == kNumbersPerGroup && i < ranks.size())
      result += fmt::format(" … ({} ranks)", ranks.size());
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
    const bool last = g + 1 == shown || groups[g + 1].self_weight != group.self_weight ||
                      groups[g + 1].ranks.size() != group.ranks.size();
    if (!last) continue;
    const double other = group.ranks.size() > 1 ? (1.0 - group.self_weight) /
                                                      static_cast<double>(group.ranks.size() - 1)
                                                : 0.0;
    const std::string self_text = weight_text(group.self_weight), other_text = weight_text(other);
    result += self_text == other_text ? fmt::format(" weight {}", self_text)
                                      : fmt::format(" self {}, other {}", self_text, other_text);
    if (g + 1 < shown) result += ";";
  }
  if (groups.size() > shown)
    result += fmt::format("; … and {}",
                          counted(static_cast<std::int64_t>(groups.size() - shown), "more group"));
  return result;
}

std::string rows_text(const Round& round) {
  std::string result;
  std::size_t i = 0, terms = 0;
  for (; i < round.rows.size() && i < kGroupsPerLine && terms < kTermsPerLine; ++i) {
    result += fmt::format("{}{} =", i == 0 ? "" : "; ", i);
    const auto& row = round.rows[i];
    terms += row.size();
    for (std::size_t e = 0; e < std::min(row.size(), kNumbersPerGroup); ++e) {
      result +=
          fmt::format("{} {}·x{}", e == 0 ? "" : " +", weight_text(row[e].second), row[e].first);
    }
    if (row.size() > kNumbersPerGroup) result += fmt::format(" + … ({} terms)", row.size());
  }
  if (round.rows.size() > i)
    result += fmt::format("; … and {}",
                          counted(static_cast<std::int64_t>(round.rows.size() - i), "more row"));
  return result;
}

std::string round_text(Round round) {
  if (round.identity()) return "every rank keeps its value";
  if (round.ranks_per_node == 1)
    return round.rows.empty() ? groups_text(round.groups) : rows_text(round);
  std::erase_if(round.groups, [](const Group& group) { return group.ranks.size() < 2; });
  const std::string nodes = round.rows.empty() ? groups_text(round.groups) : rows_text(round);
  return fmt::format("mean inside each node of {} ranks{}{}", round.ranks_per_node,
                     nodes.empty() ? "" : "; nodes ", nodes);
}

std::string product_text(const std::vector<MixingMatrix>& rounds, const char* over) {
  const int n = rounds[0].ranks();
  std::string text;
  if (n <= kMatrixRanks) {
    std::vector<std::string> cells;
    for (const auto& row : dense_product(rounds)) {
      for (const double entry : row) {
        const std::string fraction = weight_text(entry);
        cells.push_back(fraction.size() <= 9 ? fraction : fmt::format("{:.6f}", entry));
      }
    }
    std::size_t width = 0;
    for (const std::string& cell : cells) width = std::max(width, cell.size());
    text = fmt::format("product over {}:\n", over);
    for (std::size_t i = 0; i < cells.size(); ++i) {
      text += fmt::format("  {:>{}}{}", cells[i], width,
                          (i + 1) % static_cast<std::size_t>(n) == 0 ? "\n" : "");
    }
    return text;
  }
  const ProductDeviation deviation = product_deviation(rounds);
  text = fmt::format("product over {}: ", over);
  text += deviation.largest <= kRounding
              ? "J/n"
              : fmt::format("not J/n, largest deviation {:.3g}", deviation.largest);
  if (deviation.columns < n)
    text += fmt::format(" ({} of its columns computed)", deviation.columns);
  return text + "\n";
}

std::string curve_text(const std::vector<double>& curve) {
  const std::size_t stride =
      std::max<std::size_t>(1, (curve.size() + kCurvePoints - 1) / kCurvePoints);
  std::string text = fmt::format("consensus curve, disagreement left{}:",
                                 stride == 1 ? "" : fmt::format(", every {} rounds", stride));
  for (std::size_t k = 0; k < curve.size(); k += stride)
    text += curve[k] <= kRounding ? " 0" : fmt::format(" {:.4g}", curve[k]);
  return text + "\n";
}

std::string report_text(const ChosenTopology& chosen) {
  const Topology& topology = *chosen.topology;
  const TopologyReport& report = chosen.report;
  const std::int64_t period = topology.period(), count = period > 0 ? period : kRoundsWithoutPeriod;
  std::string text =
      fmt::format("{}, {}, {}\n", chosen.name, counted(topology.ranks(), "rank"),
                  period > 0 ? fmt::format("period {}", period)
                             : fmt::format("no period (figures over {} rounds)", count));
  const std::int64_t shown = std::min<std::int64_t>(count, kRoundsWithoutPeriod);
  for (std::int64_t k = 0; k < shown; ++k)
    text += fmt::format("round {}: {}\n", k, round_text(topology.round(k)));
  if (shown < count) text += fmt::format("… and {}\n", counted(count - shown, "more round"));
  text += product_text(one_period(topology), period > 0 ? "the period" : "64 rounds");
  text += fmt::format("spectral gap: {:.12g}\n", report.spectral_gap);
  if (report.rounds_to_consensus) {
    text +=
        fmt::format("consensus: exact after {}{}\n", counted(*report.rounds_to_consensus, "round"),
                    report.exact ? "" : " (within 1e-12)");
  } else {
    const double rate = 1.0 - report.spectral_gap;
    text += fmt::format("consensus: disagreement × {:.6g} a round (a tenth after {:.3g} rounds)\n",
                        rate, std::log(0.1) / std::log(rate));
  }
  return text + curve_text(disagreement_curve(topology, curve_length(report)));
}

/// A round as `custom` takes it.
nlohmann::ordered_json round_json(const Round& round) {
  auto groups = nlohmann::ordered_json::array();
  for (const Group& group : round.groups)
    groups.push_back({{"ranks", group.ranks}, {"weight", group.self_weight}});
  if (round.ranks_per_node == 1 && round.rows.empty()) return groups;
  nlohmann::ordered_json result;
  if (round.ranks_per_node > 1) result["ranks_per_node"] = round.ranks_per_node;
  if (!round.rows.empty()) {
    auto& rows = result["rows"] = nlohmann::ordered_json::array();
    for (const auto& row : round.rows) {
      auto& entries = rows.emplace_back(nlohmann::ordered_json::array());
      for (const auto& [j, weight] : row) entries.push_back({j, weight});
    }
  } else {
    result["groups"] = groups;
  }
  return result;
}

/// Written in pieces, so that the rounds of thousands of ranks are never all in memory.
void write_json(const ChosenTopology& chosen) {
  const Topology& topology = *chosen.topology;
  const TopologyReport& report = chosen.report;
  const bool dense = topology.ranks() <= kJsonMatrixRanks;
  const std::int64_t count = topology.period() > 0 ? topology.period() : kRoundsWithoutPeriod;
  nlohmann::ordered_json head;
  head["spectral_gap"] = report.spectral_gap;
  head["rounds_to_consensus"] = nullptr;
  if (report.rounds_to_consensus) head["rounds_to_consensus"] = *report.rounds_to_consensus;
  std::string text = head.dump();
  text.pop_back();
  {
    const std::vector<MixingMatrix> rounds = one_period(topology);
    if (dense) {
      auto matrices = nlohmann::ordered_json::array();
      for (const MixingMatrix& matrix : rounds) matrices.push_back(dense_matrix(matrix));
      text += ",\"matrices\":" + matrices.dump() +
              ",\"product\":" + nlohmann::ordered_json(dense_product(rounds)).dump();
    }
    const ProductDeviation deviation = product_deviation(rounds);
    text += fmt::format(",\"product_deviation\":{},\"product_columns\":{}",
                        nlohmann::json(deviation.largest).dump(), deviation.columns);
  }
  text += ",\"consensus_curve\":" +
          nlohmann::json(disagreement_curve(topology, curve_length(report))).dump();
  text +=
      fmt::format(",\"ranks\":{},\"period\":{},\"rounds\":[", topology.ranks(), topology.period());
  answer(text);
  for (std::int64_t k = 0; k < count; ++k)
    answer((k == 0 ? "" : ",") + round_json(topology.round(k)).dump());
  answer("]}\n");
}

/// Consensus with encoded exchanges; empty without encoding.
std::string encoded_text(const AlgorithmPlan& plan, const ShowOptions& options,
                         const Topology& topology) {
  const MixerKind mixer = mixers().make(options.exchange, "--exchange");
  if (!encodes(plan, mixer)) {
    if (mixer.encodes)
      fail(ExitCode::kUsage, "arguments",
           "--exchange: {} does not encode its exchanges; allowed: fp32", plan.label());
    return "";
  }
  constexpr int kMost = 256;
  if (topology.ranks() > kMost)
    return fmt::format("with what it encodes: not computed above {} ranks\n", kMost);
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const EncodedConsensus consensus = encoded_consensus(plan, mixer, topology, *backend);
  return fmt::format("with what it encodes: disagreement × {:.4g} a round, {}\n", consensus.rate,
                     consensus.floor > 0.0
                         ? fmt::format("down to {:.2g} of the parameters' size", consensus.floor)
                         : "down to fp32's own rounding");
}

/// How the algorithm moves what ranks disagree in, here.
std::string growth_text(const ShowOptions& options, const Topology& topology) {
  register_builtin_algorithms();
  register_builtin_optimizers();
  const bool object = options.algorithm.starts_with('{');
  const AlgorithmPlan plan = algorithm_of(
      object ? parse_json(options.algorithm, "--algorithm") : nlohmann::json(options.algorithm),
      nullptr, "--algorithm");
  const nlohmann::json config{{"momentum", options.momentum}};
  ConfigSection section(config, "--momentum");
  const std::unique_ptr<OptimizerRule> rule = optimizers().make("sgd", "optimizer.type", section);
  std::string fault = kind_fault(topology, plan.topology);
  if (fault.empty() && plan.needs.rule_fault) fault = plan.needs.rule_fault(*rule);
  if (!fault.empty()) return fmt::format("{}: not for this, {}\n", plan.label(), fault);
  const std::string encoded = encoded_text(plan, options, topology);
  if (!plan.growth.model)
    return fmt::format("{}: nothing in it enlarges what ranks disagree in\n", plan.label()) +
           encoded;
  const Growth growth = growth_per_step(plan, *rule, topology);
  return fmt::format("{} with sgd, momentum {}: disagreement × {:.4g} a step{}\n", plan.label(),
                     options.momentum, growth.per_step,
                     !growth.grows() ? "" : ", which training refuses") +
         encoded;
}

int show(const ShowOptions& options) {
  const auto file = options.svg.empty()
                        ? nullptr
                        : open_output("--svg", options.svg,
                                      {{"<svg xmlns=\"http://www.w3.org/2000/svg\" width="},
                                       "topology's picture"});
  const ChosenTopology chosen = choose_topology(options.choice);
  if (options.json) {
    write_json(chosen);
    return 0;
  }
  const std::string growth =
      options.algorithm.empty() ? "" : growth_text(options, *chosen.topology);
  answer((file ? "" : report_text(chosen)) + growth);
  if (!file) return 0;
  const std::string title =
      fmt::format("{}, {}", chosen.name, counted(options.choice.ranks, "rank"));
  const std::string picture = topology_svg(*chosen.topology, chosen.report, title);
  file->write(picture.data(), picture.size());
  file->commit();
  return 0;
}

}  // namespace

Command add_show(CLI::App& app) {
  const auto given = std::make_shared<ShowOptions>();
  ShowOptions& options = *given;
  CLI::App* command = app.add_subcommand(
      "show", "print a topology's rounds, weights, product, spectral gap and consensus curve");
  add_topology_options(*command, options.choice);
  command->add_flag("--json", options.json,
                    "print the figures and the rounds (up to 64 ranks also the matrices) as JSON");
  command
      ->add_option(
          "--algorithm", options.algorithm,
          "also print how this algorithm (a type, or an object with its keys) moves disagreement")
      ->excludes("--json");
  command->add_option("--exchange", options.exchange, "sync.exchange of that algorithm")
      ->check(CLI::IsMember(mixers().names()));
  command->add_option("--momentum", options.momentum, "of the sgd beside it")
      ->check(number_in(0.0, 0.999999));
  command->add_option("--svg", options.svg, "draw it into this file")->excludes("--json");
  return {command, [given] { return show(*given); }};
}

}  // namespace starling
