#pragma once

#include <memory>

#include "comm/algorithm.h"

// What lives here: an algorithm a file, and what they share: updater (the fused update of a
// bucket), gradient_norm (clipping, fp16's flag). A new one is its file, a line in
// comm/algorithm.cpp and its tests.

namespace starling {

AlgorithmPlan plan_qgm(ConfigSection& config);
AlgorithmPlan plan_decentlam(ConfigSection& config);
AlgorithmPlan plan_gradient_tracking(ConfigSection& config);
AlgorithmPlan plan_momentum_tracking(ConfigSection& config);
AlgorithmPlan plan_exact_diffusion(ConfigSection& config);
AlgorithmPlan plan_push_sum(ConfigSection& config);
AlgorithmPlan plan_choco(ConfigSection& config);
AlgorithmPlan plan_low_precision(ConfigSection& config);
AlgorithmPlan plan_bytegrad(ConfigSection& config);
AlgorithmPlan plan_qadam(ConfigSection& config);
AlgorithmPlan plan_local_sgd(ConfigSection& config);
AlgorithmPlan plan_slowmo(ConfigSection& config);
AlgorithmPlan plan_diloco(ConfigSection& config);
AlgorithmPlan plan_async(ConfigSection& config);
/// Combine while computing over the site's topology (semantics.md section 2; decent-dp, arXiv
/// 2410.11998 and its references).
AlgorithmPlan plan_gossip(ConfigSection& config);
/// The mean gradient over all ranks, the baseline (semantics.md section 4).
AlgorithmPlan plan_all_reduce(ConfigSection& config);
/// Makes all-reduce by chunks, which each rank adds up and sends to all.
std::unique_ptr<Algorithm> make_scatter_gather(const AlgorithmSite& site, bool average, bool delay);
/// Makes all-reduce with default keys, for algorithms that begin with it.
std::unique_ptr<Algorithm> make_all_reduce(const AlgorithmSite& site);

}  // namespace starling
