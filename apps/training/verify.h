#pragma once

#include "apps/training/trainer.h"

namespace starling {

/// `sync.verify`: compares what must be bitwise equal on all ranks (AlgorithmEquality), by digests
/// (XXH3): after an all-reduce all parameters and optimizer states; for algorithms that synchronise
/// at intervals what they have just synchronised, and states that are always equal. For gossip,
/// what a rank received must equal what the sender has, and the mix must preserve the ranks' mean
/// up to rounding. AgreedError(kLost) with the differing rank and the first tensor; with two ranks,
/// both. Waits for exchanges in flight; does not affect the run. Collective, between steps.
void verify_replicas(Trainer& trainer);

}  // namespace starling
