#pragma once

#include "comm/algorithm.h"
#include "comm/mixer.h"
#include "topology/topology.h"

namespace starling {

/// How ranks come together again that have gone apart once, where gradients are zero and what they
/// exchange is encoded.
struct EncodedConsensus {
  /// Part of the disagreement that a round leaves, the geometric mean while it is far above
  /// `floor`; 0: nothing
  double rate = 0.0;
  /// Disagreement at which it stays, as a part of the parameters' size; 0: below 1e-6, which is
  /// fp32's own rounding
  double floor = 0.0;
};

/// The algorithm encodes by itself (AlgorithmGrowth::encoded), or it is given an exchange that
/// does.
bool encodes(const AlgorithmPlan& plan, const MixerKind& mixer);
/// Run with the codes themselves, on 512 numbers a rank: parameters of one size that all ranks
/// share, and as much again by which each went its own way. `backend` encodes. Only where
/// encodes().
EncodedConsensus encoded_consensus(const AlgorithmPlan& plan, const MixerKind& mixer,
                                   const Topology& topology, Backend& backend);

}  // namespace starling
