#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "topology/topology.h"

namespace starling {

/// "" if the round is well formed for `ranks` ranks (groups disjoint, ascending and in range, self
/// weights 0 … 1; rows complete, ascending and in range, weights ≥ 0 and finite), else what is
/// wrong.
std::string structural_fault(const Round& round, int ranks);

/// A round as a sparse matrix that never becomes dense: a group of m costs m, not m²; a round of
/// pairs costs one number a rank; a hierarchical round costs what it does between nodes. The round
/// must be well formed.
class MixingMatrix {
 public:
  MixingMatrix(Round round, int ranks);
  int ranks() const { return units_ * per_unit_; }
  /// True: by rows; otherwise by groups, which are doubly stochastic by definition
  bool by_rows() const { return !rows_.empty(); }

  /// Calls f(j, W_ij) for every W_ij ≠ 0 of row i.
  template <class F>
  void for_row(int i, F&& f) const {
    spread(i, f, [this](int unit, const auto& visit) { unit_row(unit, visit); });
  }
  /// Calls f(i, W_ij) for every W_ij ≠ 0 of column j.
  template <class F>
  void for_column(int j, F&& f) const {
    spread(j, f, [this](int unit, const auto& visit) { unit_column(unit, visit); });
  }
  /// x = W x for `width` values a rank; x holds ranks × width numbers.
  void apply(std::vector<double>& x, std::size_t width) const;

  /// Whether every rank keeps some of its own value (of its node's, where the round is
  /// hierarchical).
  bool positive_diagonal() const;
  /// Marks every rank that hears from a marked one (`forward`), or that a marked one hears from;
  /// for matrices of positive diagonal. May go several edges at once.
  void mark(std::vector<char>& marked, bool forward) const;
  /// Multiplications that apply() takes for one number a rank, about.
  double work() const;

 private:
  using Row = std::vector<std::pair<int, double>>;

  template <class F, class Unit>
  void spread(int i, F&& f, const Unit& of_unit) const {
    if (per_unit_ == 1) return of_unit(i, f);
    of_unit(i / per_unit_, [&](int unit, double weight) {
      for (int r = 0; r < per_unit_; ++r) f(unit * per_unit_ + r, weight / per_unit_);
    });
  }
  template <class F>
  void unit_row(int i, F&& f) const {
    if (rows_.empty()) return for_group(i, f);
    for (const auto& [j, weight] : rows_[static_cast<std::size_t>(i)]) {
      if (weight != 0.0) f(j, weight);
    }
  }
  template <class F>
  void unit_column(int j, F&& f) const {
    if (rows_.empty()) return for_group(j, f);  // groups are symmetric
    for (const auto& [i, weight] : columns_[static_cast<std::size_t>(j)]) f(i, weight);
  }
  template <class F>
  void for_group(int i, F&& f) const {
    const auto at = static_cast<std::size_t>(i);
    if (!partner_.empty()) {
      const int other = partner_[at];
      const double self = other == i ? 1.0 : pair_weight(at);
      if (self != 0.0) f(i, self);
      if (self != 1.0) f(other, 1.0 - self);
      return;
    }
    const int index = group_of_[at];
    if (index < 0) return static_cast<void>(f(i, 1.0));
    const Group& group = groups_[static_cast<std::size_t>(index)];
    const double other = (1.0 - group.self_weight) / static_cast<double>(group.ranks.size() - 1);
    for (const int j : group.ranks) {
      const double weight = j == i ? group.self_weight : other;
      if (weight != 0.0) f(j, weight);
    }
  }
  double pair_weight(std::size_t i) const {
    return pair_weights_.empty() ? self_weight_ : pair_weights_[i];
  }
  void mark_units(std::vector<char>& marked, bool forward) const;
  void apply_units(std::vector<double>& x, std::size_t width) const;

  /// Nodes and ranks per node of a hierarchical round, else ranks and 1
  int units_, per_unit_;
  /// The other of each rank's group, or oneself, where no group has more than two; then groups_ and
  /// group_of_ are empty
  std::vector<int> partner_;
  double self_weight_ = 1.0;  ///< of all pairs, unless they differ:
  std::vector<double> pair_weights_;
  std::vector<Group> groups_;
  std::vector<int> group_of_;  ///< -1: keeps its value
  std::vector<Row> rows_, columns_;
};

/// Rounds that statistics of a topology without period are over.
inline constexpr std::int64_t kRoundsWithoutPeriod = 64;
/// One period of a topology, or its first 64 rounds.
std::vector<MixingMatrix> one_period(const Topology& topology);

/// Whether the product of the rounds, repeated, mixes all ranks: each hears from each, and not only
/// at every d-th period. "" if so, else why not.
std::string mixing_fault(const std::vector<MixingMatrix>& rounds);

/// ρ(A) of a dense n × n matrix, by rows: A is squared 40 times (ρ = lim ‖A^m‖^(1/m)), with its
/// size taken out and kept as a logarithm.
double dense_radius(std::vector<double> a, std::size_t n);

/// ρ(P - J/n), P the product of the rounds: how much disagreement one period leaves. Up to 64 ranks
/// by repeated squaring of the dense matrix (ρ = lim ‖A^m‖^(1/m), m = 2^40), above by Arnoldi's
/// method from a random vector. The rounds must be doubly stochastic.
double disagreement_radius(const std::vector<MixingMatrix>& rounds);

/// How far the product of the rounds is from J/n: the largest |P_ij - 1/n|. All columns where that
/// is some 1e9 multiplications or less, else some of them, evenly spaced.
struct ProductDeviation {
  double largest = 0.0;
  int columns = 0;  ///< looked at
};
ProductDeviation product_deviation(const std::vector<MixingMatrix>& rounds);
/// The identity as a dense n × n matrix, by rows.
std::vector<double> identity_matrix(int n);
/// The product of the rounds as n rows, n ≤ 64.
std::vector<std::vector<double>> dense_product(const std::vector<MixingMatrix>& rounds);
/// A matrix as n rows of n numbers.
std::vector<std::vector<double>> dense_matrix(const MixingMatrix& matrix);

/// Disagreement left after 0, 1, … `rounds` rounds of a random start: the root mean square of x -
/// mean, relative to that before round 0. Exact (a Frobenius norm) up to 256 ranks, a sample above.
std::vector<double> disagreement_curve(const Topology& topology, std::int64_t rounds);

}  // namespace starling
