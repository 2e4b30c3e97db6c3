#pragma once

#include "apps/training/trainer.h"

namespace starling {

/// `sync.verify`: ranks compare what must be equal. After an all-reduce that is every parameter and
/// every state of the optimizer, to the bit, by digests (XXH3). In gossip what a rank received must
/// be what the sender holds, to the bit, and the mix must keep the ranks' mean to rounding. Of
/// ranks that meet now and then, what they met in is compared after they did, and an anchor that
/// all keep always. Where they differ, AgreedError(kLost) names the odd rank and the first tensor;
/// of two ranks both, as nobody can know which is wrong. Waits for what is under way; changes no
/// bit of the run. Collective, between steps.
void verify_replicas(Trainer& trainer);

}  // namespace starling
