#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "comm/algorithm.h"
#include "comm/algorithms/difference_messages.h"
#include "comm/algorithms/outer_steps.h"

namespace starling {

/// diloco's keys `quorum`, `grace_ms` and `late`.
struct DiLoCoQuorum {
  std::int64_t ranks = 0;  ///< q; 0: all are waited for
  double grace_seconds = 1.0;
  bool carry = false;  ///< a difference that was late counts in the rank's next one
};

/// DiLoCo whose outer steps wait for a quorum (quorum.h). Kept: the anchor, s, and with `carry` a
/// difference and its weights, of each fragment one, fp64; with error feedback the residual.
std::function<std::unique_ptr<Algorithm>(const AlgorithmSite&)> maker_of_quorum_diloco(
    const OuterSettings& settings, double blend, const DiLoCoQuorum& quorum,
    const DifferenceCode& code);

}  // namespace starling
