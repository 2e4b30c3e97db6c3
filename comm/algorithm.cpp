#include "comm/algorithm.h"

#include <chrono>
#include <cstddef>
#include <numeric>
#include <string>

#include "comm/algorithms/builtin.h"
#include "core/trace.h"

namespace starling {

template <class Wait>
void Algorithm::timed(const char* verb, int bucket, const Wait& wait_for_it) {
  const TraceSpan span(verb, "bucket " + std::to_string(bucket), TraceLane::kExchange);
  const StreamScope scope(site_.backend, StreamKind::kUpdate);
  const auto begin = std::chrono::steady_clock::now();
  wait_for_it();
  wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void Algorithm::wait(Ticket ticket, int bucket) {
  timed("exchange", bucket, [&] { site_.transport.wait(ticket); });
}

void Algorithm::wait_until_writable(const ExchangeLabel& label) {
  if (!site_.buckets[static_cast<std::size_t>(label.bucket)].spare) return;  // in place
  timed("readers of", label.bucket, [&] { site_.transport.wait_until_writable(label); });
}

std::int64_t repeat_period(const Topology* topology, const OptimizerRule& rule, int buffers, std::string& why) {
  if (topology && topology->period() == 0) {
    why = "the topology's rounds never repeat";
    return 0;
  }
  return std::lcm(std::lcm(topology ? topology->period() : 1, rule.phases()), static_cast<std::int64_t>(buffers));
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
