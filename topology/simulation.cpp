#include "topology/simulation.h"

#include <cmath>

#include "core/philox.h"

namespace starling {
namespace {

constexpr double kMostKept = 4e6;  ///< ranks × rounds that are kept as matrices

std::vector<double> mean_of(const std::vector<double>& x, std::size_t width) {
  std::vector<double> mean(width, 0.0);
  for (std::size_t i = 0; i < x.size(); ++i) mean[i % width] += x[i];
  const std::size_t ranks = x.size() / width;
  for (double& value : mean) value /= static_cast<double>(ranks);
  return mean;
}

}  // namespace

Simulation::Simulation(const Topology& topology, const SimulationOptions& options)
    : topology_(topology), options_(options), width_(static_cast<std::size_t>(options.dimension)) {
  const auto n = static_cast<std::size_t>(topology.ranks());
  for (std::size_t d = 0; d < width_; ++d)
    curvature_.push_back(
        width_ == 1 ? 1.0
                    : std::pow(10.0, -static_cast<double>(d) / static_cast<double>(width_ - 1)));
  for (std::size_t i = 0; i < n * width_; ++i) {
    const Philox4x32 bits = philox(options.seed, i, 0x53494DULL);
    targets_.push_back(1.0 + options.heterogeneity * std::sqrt(3.0) *
                                 (2.0 * uniform_double(bits.v[0], bits.v[1]) - 1.0));
  }
  optimum_ = mean_of(targets_, width_);
  if (topology.period() > 0 &&
      static_cast<double>(topology.period()) * static_cast<double>(n) <= kMostKept)
    period_ = one_period(topology);
  x_ = options.lr == 0.0 ? targets_ : std::vector<double>(n * width_, 0.0);
  update(x_);
}

const MixingMatrix& Simulation::matrix(std::int64_t k) {
  if (!period_.empty()) return period_[static_cast<std::size_t>(k) % period_.size()];
  return current_.emplace(topology_.round(k), topology_.ranks());
}

void Simulation::advance() {
  std::vector<double> mixed = x_;
  matrix(round_).apply(mixed, width_);
  update(std::move(mixed));
  ++round_;
}

void Simulation::update(std::vector<double> mixed) {
  for (std::size_t i = 0; i < x_.size(); ++i)
    mixed[i] -= options_.lr * curvature_[i % width_] * (x_[i] - targets_[i]);
  x_ = std::move(mixed);
}

std::vector<double> Simulation::mean() const { return mean_of(x_, width_); }

double Simulation::consensus_error() const {
  const std::vector<double> centre = mean();
  double sum = 0.0;
  for (std::size_t i = 0; i < x_.size(); ++i)
    sum += (x_[i] - centre[i % width_]) * (x_[i] - centre[i % width_]);
  return std::sqrt(sum / static_cast<double>(topology_.ranks()));
}

double Simulation::distance() const {
  const std::vector<double> centre = mean();
  double sum = 0.0;
  for (std::size_t d = 0; d < width_; ++d)
    sum += (centre[d] - optimum_[d]) * (centre[d] - optimum_[d]);
  return std::sqrt(sum);
}

}  // namespace starling
