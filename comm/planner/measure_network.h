#pragma once

#include <chrono>
#include <functional>

#include "comm/planner/network_model.h"
#include "comm/transport.h"
#include "core/backend.h"

namespace starling {

struct MeasureSettings {
  double seconds = 4.0;     ///< about how long all of it may take
  bool direct = true;       ///< ranks of one host read each other's parameters where they lie
  bool spare_cores = true;  ///< communication has cores of its own
  /// The clock to measure with: seconds since any moment. It must go on while this thread computes.
  std::function<double()> now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
};

/// Times messages inside a host, between hosts (each pair of hosts alone, and every host's link as
/// the most it carried, with one peer or several, so that one slow link shows; sums over all
/// ranks), memory traffic with all ranks of a host at work, and what messages between hosts take
/// from the computation beside them: `backend` should have as many threads as training will.
/// Collective; the same model on every rank. Error(kUsage) where ranks are not numbered host by
/// host with as many on each.
NetworkModel measure_network(Transport& transport, Backend& backend,
                             const MeasureSettings& settings);

}  // namespace starling
