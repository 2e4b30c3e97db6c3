#pragma once

#include <chrono>
#include <functional>

#include "comm/planner/network_model.h"
#include "comm/transport.h"
#include "core/backend.h"

namespace starling {

struct MeasureSettings {
  double seconds = 4.0;     ///< approximate limit on the whole measurement
  bool direct = true;       ///< ranks of one host read each other's parameters in shared memory
  bool spare_cores = true;  ///< communication has cores of its own
  int replica = 1;          ///< ranks of a replica: each exchanges with its like in other replicas
  /// Seconds since any fixed moment. Must advance while this thread computes.
  std::function<double()> now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
};

/// Measures, for the planner:
/// - messages inside a host, and memory traffic with all ranks of a host at work;
/// - messages between hosts, one pair at a time, and each host's link with several peers at once,
///   so that a single slow link shows; sums over all ranks;
/// - the processor time that messages between hosts take from computation. `backend` should have as
///   many threads as training will.
/// With replicas all ranks of one send at once, as their parts do, and the model is of replicas.
/// Collective; returns the same model on every rank. Error(kUsage) unless ranks are numbered host
/// by host with equally many on each.
NetworkModel measure_network(Transport& transport, Backend& backend,
                             const MeasureSettings& settings);

}  // namespace starling
