#pragma once

#include "comm/algorithm.h"

// What lives here: an algorithm a file, and what they share: updater (the fused update of a bucket), gradient_norm (clipping, fp16's flag).
// A new one is its file, a line in comm/algorithm.cpp and its tests.

namespace starling {

/// Combine while computing over the site's topology (semantics.md section 2; decent-dp, arXiv 2410.11998 and its references).
AlgorithmPlan plan_gossip(ConfigSection& config);
/// The mean gradient over all ranks, the baseline (semantics.md section 4).
AlgorithmPlan plan_all_reduce(ConfigSection& config);

}  // namespace starling
