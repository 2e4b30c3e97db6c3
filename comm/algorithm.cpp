#include "comm/algorithm.h"

#include <chrono>
#include <string>

#include "comm/algorithms/builtin.h"
#include "core/trace.h"

namespace starling {

void Algorithm::wait(Ticket ticket, int bucket) {
  const TraceSpan span("exchange", "bucket " + std::to_string(bucket), TraceLane::kExchange);
  const auto begin = std::chrono::steady_clock::now();
  site_.transport.wait(ticket);
  wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

AlgorithmRegistry& algorithms() {
  static AlgorithmRegistry registry("algorithm");
  return registry;
}

void register_builtin_algorithms() {
  if (algorithms().contains("gossip")) return;
  algorithms().add("gossip", make_gossip, "mix parameters with a round's neighbours, overlapped with the next forward and backward pass");
  algorithms().add("allreduce", make_all_reduce, "average gradients over all ranks, overlapped with the backward pass");
}

}  // namespace starling
