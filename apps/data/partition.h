#pragma once

#include <cstdint>
#include <vector>

#include "apps/data/dataset.h"

namespace starling {

/// `data.partition` dirichlet: the fixed, label-skewed training samples of every rank, in the order
/// they were dealt. Rank r wants the classes in proportions p_r ~ Dirichlet(alpha, …, alpha) (Hsu,
/// Qi and Brown 2019, arXiv 1909.06335); ranks take turns, each picking a class by p_r among those
/// not used up and taking its next sample in file order, until each has floor(S/n). No sample is
/// used twice. Deterministic in (seed, labels, ranks), so that every rank computes the same shares.
std::vector<std::vector<std::int64_t>> dirichlet_shares(const Dataset& dataset, std::uint64_t seed,
                                                        double alpha, int ranks);

}  // namespace starling
