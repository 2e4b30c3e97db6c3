#pragma once

#include <memory>

#include "comm/algorithm.h"

namespace starling {

/// Combine while computing over the site's topology (semantics.md section 2; decent-dp, arXiv 2410.11998 and its references).
std::unique_ptr<Algorithm> make_gossip(const AlgorithmSite& site);
/// The mean gradient over all ranks, the baseline (semantics.md section 4).
std::unique_ptr<Algorithm> make_all_reduce(const AlgorithmSite& site);

}  // namespace starling
