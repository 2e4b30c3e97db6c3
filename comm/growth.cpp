#include "comm/growth.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>

#include "core/error.h"
#include "core/philox.h"
#include "topology/check.h"
#include "topology/mixing.h"
#include "topology/round_table.h"

namespace starling {
namespace {

/// Largest dimension for which the map is computed as a matrix.
constexpr std::size_t kMatrix = 256;
/// The number of periods simulated, fewer for many ranks. The first quarter is not measured, since
/// it still contains components that decay quickly.
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

/// Removes the mean over ranks, which is not part of the disagreement.
void remove_mean(Numbers& z) {
  for (std::vector<double>& of : z) {
    double mean = 0.0;
    for (const double x : of) mean += x / static_cast<double>(of.size());
    for (double& x : of) x -= mean;
  }
}

using Rounds = std::vector<MixingMatrix>;

void run_period(const DisagreementModel& model, const Rounds& period, Numbers& z) {
  for (const MixingMatrix& round : period)
    model.step(z, [&](std::vector<double>& x) { round.apply(x, 1); });
  remove_mean(z);  // rounding errors would reintroduce the mean
}

/// Spectral radius of the map as a matrix, whose columns are the images of unit vectors.
double radius_of_matrix(const DisagreementModel& model, const Rounds& period, std::size_t ranks) {
  const std::size_t tensors = static_cast<std::size_t>(model.states) + 1, size = tensors * ranks;
  std::vector<double> matrix(size * size);
  for (std::size_t column = 0; column < size; ++column) {
    Numbers z(tensors, std::vector<double>(ranks, 0.0));
    z[column / ranks][column % ranks] = 1.0;
    remove_mean(z);
    run_period(model, period, z);
    for (std::size_t row = 0; row < size; ++row)
      matrix[row * size + column] = z[row / ranks][row % ranks];
  }
  return dense_radius(std::move(matrix), size);
}

/// The growth factor of random start vectors over many periods.
double radius_by_trial(const DisagreementModel& model, const Rounds& of, std::size_t ranks) {
  const int periods = periods_for(ranks, of.size()), settling = periods / 4;
  // Several starts, since one may have almost no component in the fastest growing direction.
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
    bool gone = false;
    for (int period = 0; period < periods && !gone; ++period) {
      run_period(model, of, z);
      const double length = norm(z);
      gone = length == 0.0 || !std::isfinite(length);
      if (gone) break;
      if (period >= settling) logarithm += std::log(length);
      for (std::vector<double>& vector : z) {
        for (double& x : vector) x /= length;
      }
    }
    if (!gone) largest = std::max(largest, std::exp(logarithm / (periods - settling)));
  }
  return largest;
}

}  // namespace

Growth growth_per_step(const AlgorithmPlan& plan, const OptimizerRule& rule,
                       const Topology& topology) {
  if (!plan.growth.model || topology.ranks() == 1) return {};
  const DisagreementModel model = plan.growth.model(rule);
  const Rounds period = model.mean_every > 0
                            ? one_period(WithGlobalRounds(topology, model.mean_every))
                            : one_period(topology);
  const auto ranks = static_cast<std::size_t>(topology.ranks());
  const bool estimated = (static_cast<std::size_t>(model.states) + 1) * ranks > kMatrix;
  const double radius =
      estimated ? radius_by_trial(model, period, ranks) : radius_of_matrix(model, period, ranks);
  return {std::pow(radius,
                   1.0 / (static_cast<double>(period.size()) * static_cast<double>(model.steps))),
          estimated};
}

void check_growth(const AlgorithmPlan& plan, const OptimizerRule& rule,
                  const std::string& optimizer, const Topology& topology,
                  const std::string& topology_name, const RankLayout& site,
                  const ConfigSection& sync) {
  const Growth growth = growth_per_step(plan, rule, topology);
  if (!growth.grows()) return;
  std::vector<std::string> graphs, others;
  for (const auto& [name, other] : topologies_for(site)) {
    if (kind_fault(*other, plan.topology).empty() && !growth_per_step(plan, rule, *other).grows())
      graphs.push_back(name);
  }
  for (const AlgorithmPlan& other : known_algorithms()) {
    const auto& fit = other.needs.optimizers;
    if (other.topology == TopologyKind::kNone || !kind_fault(topology, other.topology).empty() ||
        (!fit.empty() && std::find(fit.begin(), fit.end(), optimizer) == fit.end()) ||
        (other.needs.rule_fault && !other.needs.rule_fault(rule).empty()) ||
        growth_per_step(other, rule, topology).grows())
      continue;
    others.push_back(other.name);
  }
  sync.error("algorithm",
             "{} makes the ranks' disagreement {:.3f} times as large in every step on '{}' for {} "
             "ranks, and must make it smaller; topologies "
             "that "
             "fit: {}; algorithms that fit this one: {}",
             plan.label(), growth.per_step, topology_name, topology.ranks(),
             graphs.empty() ? "none" : fmt::format("{}", fmt::join(graphs, ", ")),
             fmt::join(others, ", "));
}

}  // namespace starling
