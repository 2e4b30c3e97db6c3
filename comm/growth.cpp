#include "comm/growth.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "core/philox.h"
#include "topology/check.h"
#include "topology/mixing.h"

namespace starling {
namespace {

constexpr double kStable = 1.0 - 1e-9;
/// Periods that the growth is read off, fewer where there are many ranks. Of the first quarter, in which what dies out fast still counts,
/// nothing is read.
int periods_for(std::size_t ranks, std::size_t rounds) {
  return static_cast<int>(std::clamp(1e7 / static_cast<double>(ranks * rounds), 40.0, 400.0));
}

using Numbers = DisagreementModel::Numbers;

double norm(const Numbers& z) {
  double sum = 0.0;
  for (const std::vector<double>& of : z) {
    for (const double x : of) sum += x * x;
  }
  return std::sqrt(sum);
}

/// What the ranks have in common is not disagreement.
void remove_mean(Numbers& z) {
  for (std::vector<double>& of : z) {
    double mean = 0.0;
    for (const double x : of) mean += x / static_cast<double>(of.size());
    for (double& x : of) x -= mean;
  }
}

}  // namespace

double growth_per_step(const AlgorithmPlan& plan, const OptimizerRule& rule, const Topology& topology) {
  if (!plan.growth || topology.ranks() == 1) return 0.0;
  const DisagreementModel model = plan.growth(rule);
  const std::vector<MixingMatrix> rounds = one_period(topology);
  const auto ranks = static_cast<std::size_t>(topology.ranks());
  const int periods = periods_for(ranks, rounds.size()), settling = periods / 4;
  // Several starts at once: one may lie beside what grows most.
  double largest = 0.0;
  for (std::uint64_t start = 0; start < 3; ++start) {
    Numbers z(static_cast<std::size_t>(model.states) + 1, std::vector<double>(ranks));
    for (std::size_t k = 0; k < z.size(); ++k) {
      for (std::size_t i = 0; i < ranks; ++i) {
        const Philox4x32 bits = philox(start + 1, i, k);
        z[k][i] = uniform_double(bits.v[0], bits.v[1]) - 0.5;
      }
    }
    remove_mean(z);
    double logarithm = 0.0;
    std::int64_t steps = 0;
    for (int period = 0; period < periods; ++period) {
      for (const MixingMatrix& round : rounds) {
        model.step(z, [&](std::vector<double>& x) { round.apply(x, 1); });
        if (period >= settling) ++steps;
      }
      remove_mean(z);  // roundings alone would let it in
      const double length = norm(z);
      if (length == 0.0 || !std::isfinite(length)) break;
      if (period >= settling) logarithm += std::log(length);
      for (std::vector<double>& of : z) {
        for (double& x : of) x /= length;
      }
    }
    if (steps > 0 && norm(z) > 0.0) largest = std::max(largest, std::exp(logarithm / static_cast<double>(steps)));
  }
  return largest;
}

void check_growth(const AlgorithmPlan& plan, const OptimizerRule& rule, const std::string& optimizer, const Topology& topology,
                  const std::string& topology_name, const RankLayout& site) {
  const double growth = growth_per_step(plan, rule, topology);
  if (growth < kStable) return;
  std::vector<std::string> graphs, others;
  for (const std::string& name : topologies().names()) {
    try {
      ConfigSection empty(nlohmann::json::object(), "defaults");
      const std::unique_ptr<Topology> other = topologies().make(name, "type", empty, site);
      if (kind_fault(*other, plan.topology).empty() && growth_per_step(plan, rule, *other) < kStable) graphs.push_back(name);
    } catch (const std::exception&) {  // does not take these ranks
    }
  }
  for (const AlgorithmPlan& other : known_algorithms()) {
    const auto& fit = other.optimizers;
    if (other.topology == TopologyKind::kNone || !kind_fault(topology, other.topology).empty() ||
        (!fit.empty() && std::find(fit.begin(), fit.end(), optimizer) == fit.end()) ||
        (other.rule_fault && !other.rule_fault(rule).empty()) || growth_per_step(other, rule, topology) >= kStable)
      continue;
    others.push_back(other.name);
  }
  fail(ExitCode::kUsage, "config", {.key = "sync.algorithm"},
       "{} makes the ranks' disagreement {:.3f} times as large in every step on '{}' for {} ranks, and must make it smaller; topologies "
       "that "
       "fit: {}; algorithms that fit this one: {}",
       plan.label(), growth, topology_name, topology.ranks(), graphs.empty() ? "none" : fmt::format("{}", fmt::join(graphs, ", ")),
       fmt::join(others, ", "));
}

}  // namespace starling
