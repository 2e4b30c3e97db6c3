#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "topology/topology.h"

namespace starling {

/// Report on what a topology does to disagreement; semantics.md section 6.
struct TopologyReport {
  bool row_stochastic = false, column_stochastic = false;
  /// The product over a period (64 rounds for one without period) is primitive
  bool mixes = false;
  double spectral_gap = 0.0;                        ///< 1 - ρ(P - J/n)^(1/period)
  std::optional<std::int64_t> rounds_to_consensus;  ///< smallest K with W(K-1)…W(0) = J/n exactly
  /// Proven in rationals (n ≤ 64); else on sparse rows within 1e-12
  bool exact = false;
};

/// What an algorithm requires of its topology, in addition to check_topology().
enum class TopologyKind : std::uint8_t {
  kNone,              ///< no topology
  kDoublyStochastic,  ///< any that keeps the mean
  /// Columns sum to 1, rows need not
  kColumnStochastic,
  kSymmetric,       ///< W_ij = W_ji in every round
  kSymmetricFixed,  ///< and the same round in every step
};
/// Why the topology is not of this kind; empty where it is. Of one without period the first 64
/// rounds are looked at.
std::string kind_fault(const Topology& topology, TopologyKind kind);
/// Throws Error(kUsage) about the section's `type` that names those that `algorithm` could have on
/// this site.
void check_kind(const Topology& topology, const std::string& name, TopologyKind kind,
                const std::string& algorithm, const RankLayout& site, const ConfigSection& section);

/// How many rounds of disagreement_curve() show the whole fall: to consensus, or to 1e-4, 4 … 64.
std::int64_t curve_length(const TopologyReport& report);
/// Analyses a topology: up to n = 64 in exact rational arithmetic, above on sparse rows with random
/// vectors.
TopologyReport analyse(const Topology& topology);
/// Throws Error(kUsage) naming topology, round and row or column if the topology may not be trained
/// with: rows and columns must sum to 1, weights be ≥ 0, and the period's product be primitive; of
/// kind kColumnStochastic rows may have any sum. `name` is the topology's for the message.
TopologyReport check_topology(const Topology& topology, const std::string& name,
                              TopologyKind kind = TopologyKind::kDoublyStochastic);

}  // namespace starling
