#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "topology/mixing.h"
#include "topology/topology.h"

namespace starling {

struct SimulationOptions {
  double lr = 0.1;  ///< 0: pure averaging of x_i(0) = b_i
  int dimension = 8;
  /// H, how far the ranks' optima b_i lie from each other: their standard deviation per dimension
  double heterogeneity = 1.0;
  std::uint64_t seed = 0;
};

/// Gossip (combine while computing, semantics.md section 2) with plain SGD on quadratics f_i(x) =
/// (x - b_i)ᵀ A (x - b_i) / 2 for all ranks in one process. A is diagonal, 1 … 0.1; b_i = 1 + H
/// z_i, z of mean 0 and variance 1 drawn from the seed; all ranks start from 0. Any doubly
/// stochastic topology keeps the mean on the trajectory of gradient descent on the mean objective,
/// whose optimum is the mean of the b_i.
class Simulation {
 public:
  Simulation(const Topology& topology, const SimulationOptions& options);
  /// Does the next exchange and update: x(k+2) from x(k+1) for the k-th. (The constructor did the
  /// first update, which mixes nothing.)
  void advance();
  std::int64_t rounds() const { return round_; }  ///< exchanges done
  double consensus_error() const;                 ///< sqrt(mean_i ‖x_i - x̄‖²)
  double distance() const;                        ///< ‖x̄ - x*‖
  std::vector<double> mean() const;
  const std::vector<double>& optimum() const { return optimum_; }
  const std::vector<double>& curvature() const { return curvature_; }  ///< A's diagonal
  const std::vector<double>& values() const { return x_; }             ///< ranks × dimension

 private:
  void update(std::vector<double> mixed);
  const MixingMatrix& matrix(std::int64_t k);

  const Topology& topology_;
  SimulationOptions options_;
  std::size_t width_;
  std::int64_t round_ = 0;
  std::vector<double> curvature_, targets_, optimum_, x_;
  /// Empty where it would be large: then a matrix is made for each round
  std::vector<MixingMatrix> period_;
  std::optional<MixingMatrix> current_;
};

}  // namespace starling
