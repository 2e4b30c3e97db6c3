#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "topology/topology.h"

namespace starling {

/// "" if the round is well formed for `ranks` ranks (groups disjoint, ascending and in range, self weights 0 … 1; rows complete,
/// ascending and in range, weights ≥ 0 and finite), else what is wrong.
std::string structural_fault(const Round& round, int ranks);

/// A round as a sparse matrix that never becomes dense: a group of m costs m, not m². The round must be well formed.
class MixingMatrix {
 public:
  MixingMatrix(Round round, int ranks);
  int ranks() const { return ranks_; }
  const Round& round() const { return round_; }

  /// Calls f(j, W_ij) for every W_ij ≠ 0 of row i.
  template <class F>
  void for_row(int i, F&& f) const {
    if (round_.rows.empty()) return for_group(i, f);
    for (const auto& [j, weight] : round_.rows[static_cast<std::size_t>(i)]) {
      if (weight != 0.0) f(j, weight);
    }
  }
  /// Calls f(i, W_ij) for every W_ij ≠ 0 of column j.
  template <class F>
  void for_column(int j, F&& f) const {
    if (round_.rows.empty()) return for_group(j, f);  // groups are symmetric
    for (const auto& [i, weight] : columns_[static_cast<std::size_t>(j)]) f(i, weight);
  }
  /// x = W x for `width` values a rank; x holds ranks × width numbers.
  void apply(std::vector<double>& x, std::size_t width) const;

 private:
  template <class F>
  void for_group(int i, F&& f) const {
    const int index = group_of_[static_cast<std::size_t>(i)];
    if (index < 0) return static_cast<void>(f(i, 1.0));
    const Group& group = round_.groups[static_cast<std::size_t>(index)];
    const double other = (1.0 - group.self_weight) / static_cast<double>(group.ranks.size() - 1);
    for (const int j : group.ranks) {
      const double weight = j == i ? group.self_weight : other;
      if (weight != 0.0) f(j, weight);
    }
  }

  Round round_;
  int ranks_;
  std::vector<int> group_of_;  ///< -1: keeps its value
  std::vector<std::vector<std::pair<int, double>>> columns_;
};

/// Rounds that statistics of a topology without period are over.
inline constexpr std::int64_t kRoundsWithoutPeriod = 64;
/// One period of a topology, or its first 64 rounds.
std::vector<MixingMatrix> one_period(const Topology& topology);

/// Whether the product of the rounds, repeated, mixes all ranks: each hears from each, and not only at every d-th period. "" if so, else
/// why not.
std::string mixing_fault(const std::vector<MixingMatrix>& rounds);

/// ρ(P - J/n), P the product of the rounds: how much disagreement one period leaves. Up to 64 ranks by repeated squaring of the dense
/// matrix (ρ = lim ‖A^m‖^(1/m), m = 2^40), above by Arnoldi's method from a random vector. The rounds must be doubly stochastic.
double disagreement_radius(const std::vector<MixingMatrix>& rounds);

/// Disagreement left after 0, 1, … `rounds` rounds of a random start: the root mean square of x - mean, relative to that before round 0.
/// Exact (a Frobenius norm) up to 256 ranks, a sample above.
std::vector<double> disagreement_curve(const Topology& topology, std::int64_t rounds);

}  // namespace starling
