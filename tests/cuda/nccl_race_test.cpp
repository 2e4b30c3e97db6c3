#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "comm/shared/peer_transport.h"
#include "core/error.h"
#include "tests/cuda/nccl_world.h"
#include "tests/cuda/race_training.h"
#include "tests/fakes/cuda/peer_fake.h"
#include "tests/fakes/transport/thread_sharing.h"

// In which order training asks the device for exchanges by NCCL: without races, in one order on all
// ranks, and nobody waits who need not.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;
using cuda::shim::check_communicators;
using cuda::shim::check_races;
using cuda::shim::ranks_of;

std::vector<Call> record(const TrainingSettings& settings, int ranks, int steps) {
  FakeNccl nccl(ranks);
  return record_training({settings, ranks, steps}, by_nccl(nccl));
}

void check_order(const std::vector<Call>& calls, int ranks) {
  CHECK(lines(check_races(calls)) == "");
  const auto apart = ranks_of(calls);
  REQUIRE(apart.size() == static_cast<std::size_t>(ranks));
  CHECK(lines(check_communicators(apart)) == "");
}

struct Waits {
  int of_compute = 0;  ///< for an exchange, between the first and the last gradient of a step
  int of_update = 0;   ///< for the communication stream, anywhere
  int passes = 0;
};

Waits count_waits(const std::vector<Call>& calls) {
  std::map<cuda::StreamHandle, std::string> names;
  /// The stream's name
  std::map<std::pair<cuda::EventHandle, std::uint64_t>, std::string> recorded;
  struct Rank {
    int in_pass = 0;     ///< compute's waits since the first gradient
    int until_last = 0;  ///< and those of them that came before the last so far
    bool begun = false;
  };
  std::map<std::uint32_t, Rank> ranks;  ///< by thread
  Waits waits;
  for (const Call& call : calls) {
    Rank& rank = ranks[call.thread];
    if (call.kind == CallKind::kCreateStream) names[call.stream] = call.label;
    if (call.kind == CallKind::kMark) {
      waits.of_compute += rank.until_last;
      waits.passes += rank.begun;
      rank = {};
    }
    if (call.kind == CallKind::kRecord) recorded[{call.event, call.recording}] = names[call.stream];
    if (call.kind == CallKind::kWrite && names[call.stream] == "compute" &&
        call.label.find("backward") != std::string::npos) {
      rank.begun = true;
      rank.until_last = rank.in_pass;
    }
    if (call.kind != CallKind::kWait) continue;
    const std::string& whom = recorded[{call.event, call.recording}];
    if (whom == "communication" && names[call.stream] == "update") ++waits.of_update;
    // An update waits for its exchange, so who waits for updates waits for exchanges.
    if (rank.begun && names[call.stream] == "compute" &&
        (whom == "communication" || whom == "update"))
      ++rank.in_pass;
  }
  return waits;
}

}  // namespace

TEST_CASE(
    "nccl/race: training steps have none, all ranks issue in one order, and backward passes wait "
    "for no exchange") {
  struct Variant {
    std::string name;
    int ranks;
    TrainingSettings settings;
  };
  const Variant variants[] = {
      {"pairs, in backward", 2, {}},
      {"pairs that start as a step begins", 2, {.start_at_begin = true}},
      {"pairs, bf16 on the wire", 2, {.bf16_exchange = true}},
      {"pairs, clipped after the pass", 2, {.in_backward = false, .clip = {0.5}}},
      {"pairs, fp16 with an overflow check", 2, in_fp16({.clip = {0.5}})},
      {"all-reduce, fp16 with an overflow check", 2,
       in_fp16({.clip = {0.5}, .algorithm = "allreduce"})},
      {"all-reduce, in backward", 3, {.algorithm = "allreduce"}},
      {"all-reduce that starts as a step begins",
       2,
       {.algorithm = "allreduce", .start_at_begin = true}},
      {"several neighbours", 4, {.topology = {{"type", "static-exp"}}}},
      {"one group, clipped by buckets",
       3,
       {.clip = {0.5, true}, .topology = {{"type", "complete"}}}},
      {"groups of three", 5, {.topology = groups_of_three()}},
  };
  constexpr int kSteps = 4;
  for (const Variant& variant : variants) {
    CAPTURE(variant.name);
    const std::vector<Call> calls = record(variant.settings, variant.ranks, kSteps);
    check_order(calls, variant.ranks);
    const Waits waits = count_waits(calls);
    CHECK(waits.passes == variant.ranks * kSteps);
    CHECK(waits.of_compute == 0);
    // more with several buckets; a gradient's sum joins them
    CHECK(waits.of_update >= variant.ranks * (kSteps - 1));
  }
}

TEST_CASE(
    "nccl/race: whole runs whose steps are graphs have none, tests and checkpoints between them "
    "included") {
  const auto check = [](int ranks, const nlohmann::json& config) {
    FakeNccl nccl(ranks);
    const std::vector<Call> calls = record_run(ranks, config, by_nccl(nccl));
    CHECK(count(calls, CallKind::kLaunchGraph) >= static_cast<std::size_t>(ranks * 2 * 4));
    check_order(calls, ranks);
  };
  for (const char* algorithm : {"gossip", "allreduce"}) {
    for (const char* precision : {"fp32", "fp16"}) {
      CAPTURE(std::string(algorithm));
      CAPTURE(std::string(precision));
      check(2, race_config(algorithm, precision, true));
    }
  }
  check(2, with(race_config("gossip", "fp32", true),
                {{"accumulate", 1}, {"sync", {{"exchange", "bf16"}}}, {"steps", 12}}));
  for (const char* algorithm : {"gossip", "allreduce"})
    check(4, with(race_config(algorithm, "bf16", true),
                  {{"accumulate", 1}, {"sync", {{"replica", 2}}}, {"steps", 12}}));
  check(5, with(race_config("gossip", "fp32", true),
                {{"data", {{"limit", 400}}}, {"sync", {{"topology", groups_of_three()}}}}));
}

TEST_CASE(
    "nccl/race: whole runs with averages by the clock have none, and all ranks issue in one "
    "order") {
  for (const char* precision : {"fp32", "fp16"}) {
    CAPTURE(std::string(precision));
    FakeNccl nccl(3);
    check_order(record_run(3, asynchronous_config(precision), by_nccl(nccl)), 3);
  }
}

namespace {

/// A run of four ranks in two replicas.
std::vector<Call> record_replicas(const char* algorithm, const char* precision, bool by_peers) {
  struct InPlace {
    InPlace() { cuda::shim::map_in_place(true); }
    ~InPlace() { cuda::shim::map_in_place(false); }
  } const in_place;
  FakeNccl nccl(4);
  const TransportMaker below = by_nccl(nccl);
  const nlohmann::json config = with(race_config(algorithm, precision, false),
                                     {{"accumulate", 1}, {"sync", {{"replica", 2}}}});
  return record_run(4, config, [&](std::unique_ptr<Transport> control, Backend& backend) {
    std::unique_ptr<Transport> transport = below(std::move(control), backend);
    if (!by_peers) return transport;
    std::string refusal;
    auto peers = make_peer_transport(std::move(transport), backend,
                                     make_thread_sharing("host", false), {20.0, 2, 128}, refusal);
    require(peers != nullptr, "test", "peer memory was refused: {}", refusal);
    return peers;
  });
}

}  // namespace

TEST_CASE("nccl/race: whole runs in replicas have none, and all ranks issue in one order") {
  for (const char* algorithm : {"gossip", "allreduce"}) {
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      for (const bool by_peers : {false, true}) {
        CAPTURE(std::string(algorithm));
        CAPTURE(std::string(precision));
        CAPTURE(by_peers);
        check_order(record_replicas(algorithm, precision, by_peers), 4);
      }
    }
  }
}

TEST_CASE("nccl/race: in replicas whose ranks read each other's memory a removed wait is found") {
  const std::vector<Call> calls = record_replicas("allreduce", "bf16", true);
  for (const bool released : {false, true}) {
    CAPTURE(released);
    std::vector<Call> without = calls;
    const auto erased = std::erase_if(without, [&](const Call& call) {  // see DeviceCounts
      return call.kind == CallKind::kAwait &&
             (reinterpret_cast<std::uintptr_t>(call.from) % 256 == 128) == released;
    });
    CHECK(erased >= 20);
    CHECK(lines(cuda::shim::check_races(without)) != "");
  }
}

TEST_CASE(
    "nccl/race: the checks see an exchange that waits for no update, and an update that waits for "
    "no exchange") {
  const std::vector<Call> calls = record({}, 2, 4);
  std::map<cuda::StreamHandle, std::string> names;
  std::size_t sends = 0, receives = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].kind == CallKind::kCreateStream) names[calls[i].stream] = calls[i].label;
    if (calls[i].kind != CallKind::kRecord || calls[i].thread != calls.front().thread) continue;
    if (names[calls[i].stream] == "update") sends += missed(calls, i, "update", "send") > 0;
    if (names[calls[i].stream] == "communication")
      receives += missed(calls, i, "receive", "update") > 0;
  }
  CHECK(sends >= 6);
  CHECK(receives >= 6);
}

TEST_CASE(
    "nccl/race: buckets are sent where they lie, in their order, and the host waits for nothing "
    "and asks for no memory") {
  for (const bool in_backward : {true, false}) {
    CAPTURE(in_backward);
    NcclWorld world(2);
    std::vector<Call> calls;
    using Buffers = std::vector<const void*>;
    std::vector<Buffers> wanted(2);  // by rank, for two steps
    world.run([&](Transport& transport, cuda::CudaBackend& backend) {
      TrainingJob job(backend, transport, {.in_backward = in_backward});
      // The barriers are the control plane's, which asks the device for nothing.
      const auto alone = [&](const auto& work) {
        transport.world().barrier();
        if (transport.rank() == 0) work();
        transport.world().barrier();
      };
      job.step();
      job.step();
      alone([] {
        cuda::shim::hold_events(true);  // the device does nothing until somebody waits
        cuda::shim::start_recording();
      });
      job.step();
      // the host reads the loss of the step before, whose copy the device has not come to
      alone([] {
        cuda::shim::hold_events(false);
        cuda::shim::hold_events(true);
      });
      job.step();
      alone([&] {
        calls = cuda::shim::stop_recording();
        cuda::shim::hold_events(false);
      });
      Buffers& parameters = wanted[static_cast<std::size_t>(transport.rank())];
      for (int step = 0; step < 2; ++step) {
        for (std::size_t b = 0; b < job.buckets(); ++b)
          parameters.push_back(job.parameters_of(b).raw());
      }
      job.finish();
    });
    for (const CallKind kind : {CallKind::kHostWait, CallKind::kAllocate, CallKind::kFree})
      CHECK(count(calls, kind) == 0);
    std::map<std::uint32_t, Buffers> sent;  // by thread
    for (const Call& call : calls) {
      if (call.kind == CallKind::kNcclSend) sent[call.thread].push_back(call.from);
    }
    REQUIRE(sent.size() == 2);
    CHECK(wanted[0].size() >= 2 * 3);
    for (const auto& [thread, buffers] : sent)
      CHECK(std::count(wanted.begin(), wanted.end(), buffers) == 1);
  }
}

}  // namespace starling::tests
