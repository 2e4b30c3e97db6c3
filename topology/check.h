#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "topology/topology.h"

namespace starling {

/// What a topology does to disagreement; semantics.md section 6.
struct TopologyReport {
  bool row_stochastic = false, column_stochastic = false;
  bool mixes = false;                               ///< the product over a period (64 rounds for one without period) is primitive
  double spectral_gap = 0.0;                        ///< 1 - ρ(P - J/n)^(1/period)
  std::optional<std::int64_t> rounds_to_consensus;  ///< smallest K with W(K-1)…W(0) = J/n exactly
  bool exact = false;                               ///< proven in rationals (n ≤ 64); else on sparse rows within 1e-12
};

/// How many rounds of disagreement_curve() show the whole fall: to consensus, or to 1e-4, 4 … 64.
std::int64_t curve_length(const TopologyReport& report);
/// Analyses a topology: up to n = 64 in exact rational arithmetic, above on sparse rows with random vectors.
TopologyReport analyse(const Topology& topology);
/// Throws Error(kUsage) naming topology, round and row or column if the topology may not be trained with: rows and columns must
/// sum to 1, weights be ≥ 0, and the period's product be primitive. `name` is the topology's for the message.
TopologyReport check_topology(const Topology& topology, const std::string& name);

}  // namespace starling
