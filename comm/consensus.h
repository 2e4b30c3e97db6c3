#pragma once

#include "comm/algorithm.h"
#include "comm/mixer.h"
#include "topology/topology.h"

namespace starling {

/// How an initial disagreement between ranks decays, without gradients, when exchanges are encoded.
struct EncodedConsensus {
  /// Fraction of the disagreement that remains after a round: the geometric mean while far above
  /// `floor`; 0: none
  double rate = 0.0;
  /// The disagreement that remains, relative to the parameters; 0: below 1e-6, fp32's rounding
  /// error
  double floor = 0.0;
};

/// Whether exchanges are encoded, by the algorithm (AlgorithmGrowth::encoded) or the mixer.
bool encodes(const AlgorithmPlan& plan, const MixerKind& mixer);
/// Simulates the exchanges with the actual codes, on 512 numbers per rank: common parameters, plus
/// a disagreement of the same size. `backend` encodes. Requires encodes().
EncodedConsensus encoded_consensus(const AlgorithmPlan& plan, const MixerKind& mixer,
                                   const Topology& topology, Backend& backend);

}  // namespace starling
