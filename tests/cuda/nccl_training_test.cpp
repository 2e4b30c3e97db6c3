#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/transports/staged.h"
#include "tests/cuda/call_order.h"
#include "tests/cuda/nccl_world.h"
#include "tests/cuda/training_job.h"
#include "tests/fakes/cuda/recorder.h"

// Whole training steps over the NCCL transport: what they learn, and what they ask the device for, in which order.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;

constexpr int kSteps = 4;

std::vector<double> train(Backend& backend, Transport& transport, const TrainingSettings& settings) {
  TrainingJob job(backend, transport, settings);
  for (int step = 0; step < kSteps; ++step) job.step();
  job.finish();
  return job.numbers();
}

/// Parameters and buffers of every rank at the end.
using Numbers = std::vector<std::vector<double>>;

Numbers train_by_nccl(int ranks, const TrainingSettings& settings) {
  Numbers numbers(static_cast<std::size_t>(ranks));
  NcclWorld world(ranks);
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    numbers[static_cast<std::size_t>(transport.rank())] = train(backend, transport, settings);
  });
  return numbers;
}

/// The same GPUs, and exchanges through host memory.
Numbers train_staged(int ranks, const TrainingSettings& settings) {
  Numbers numbers(static_cast<std::size_t>(ranks));
  FakeWorld world(ranks);
  world.run([&](Transport& end) {
    cuda::CudaBackend backend(0, false, false, true);
    const auto transport = make_staged_transport(world.transport(end.rank()));
    numbers[static_cast<std::size_t>(end.rank())] = train(backend, *transport, settings);
  });
  return numbers;
}

void compare(const Numbers& found, const Numbers& wanted, bool exact) {
  REQUIRE(found.size() == wanted.size());
  for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
    REQUIRE(found[rank].size() == wanted[rank].size());
    double largest = 0.0;
    for (std::size_t i = 0; i < wanted[rank].size(); ++i) largest = std::max(largest, std::abs(found[rank][i] - wanted[rank][i]));
    CHECK(largest <= (exact ? 0.0 : 1e-4));
    CHECK(wanted[rank].size() > 100);
  }
}

}  // namespace

TEST_CASE("nccl/training: gossip in pairs ends with the bits of the transport through host memory") {
  for (const char* topology : {"ring", "static-exp"}) {
    for (const int ranks : {2, 4}) {
      CAPTURE(std::string(topology));
      CAPTURE(ranks);
      TrainingSettings settings;
      settings.topology = {{"type", topology}};
      compare(train_by_nccl(ranks, settings), train_staged(ranks, settings), true);
    }
  }
}

TEST_CASE("nccl/training: groups, gradient all-reduce, bf16 on the wire, clipping, and no overlap") {
  struct Variant {
    const char* name;
    int ranks;
    bool exact;
    void (*set)(TrainingSettings&);
  };
  const Variant variants[] = {
      {"a group of three", 3, false,
       [](TrainingSettings& s) {
         s.topology = {{"type", "complete"}};
       }},
      {"groups of base-2", 3, false,
       [](TrainingSettings& s) {
         s.topology = {{"type", "base-2"}};
       }},
      {"all-reduce", 3, false, [](TrainingSettings& s) { s.algorithm = "allreduce"; }},
      {"bf16 pairs", 2, true, [](TrainingSettings& s) { s.bf16_exchange = true; }},
      {"a bf16 group", 3, false,
       [](TrainingSettings& s) {
         s.bf16_exchange = true;
         s.topology = {{"type", "complete"}};
       }},
      {"no overlap", 2, true, [](TrainingSettings& s) { s.overlap = false; }},
      {"a clipped norm, in bf16", 2, true,
       [](TrainingSettings& s) {
         s.clip.norm = 0.5;
         s.in_backward = false;
         s.compute = DType::kBFloat16;
       }},
  };
  for (const Variant& variant : variants) {
    CAPTURE(std::string(variant.name));
    TrainingSettings settings;
    variant.set(settings);
    compare(train_by_nccl(variant.ranks, settings), train_staged(variant.ranks, settings), variant.exact);
  }
}

namespace {

/// What one rank did in two steps.
struct RankLog {
  cuda::StreamHandle compute = nullptr, update = nullptr, communication = nullptr;
  std::vector<const void*> parameters;  ///< per bucket
};
struct Recorded {
  std::vector<Call> calls;
  std::vector<RankLog> ranks;
  std::vector<Call> of(const RankLog& rank) const {
    std::vector<Call> mine;
    for (const Call& call : calls) {
      if (call.stream == rank.compute || call.stream == rank.update || call.stream == rank.communication) mine.push_back(call);
    }
    return mine;
  }
};

/// The third and the fourth step of every rank, while the device does nothing until somebody waits. The barriers are the control plane's,
/// which asks the device for nothing.
Recorded record_steps(int ranks, const TrainingSettings& settings) {
  Recorded result;
  result.ranks.resize(static_cast<std::size_t>(ranks));
  NcclWorld world(ranks);
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    TrainingJob job(backend, transport, settings);
    job.step();
    job.step();
    transport.world().barrier();
    if (transport.rank() == 0) {
      cuda::shim::hold_events(true);
      cuda::shim::start_recording();
    }
    transport.world().barrier();
    job.step();
    transport.world().barrier();
    // The host reads the loss of the step before, whose copy the device has not come to.
    if (transport.rank() == 0) {
      cuda::shim::hold_events(false);
      cuda::shim::hold_events(true);
    }
    transport.world().barrier();
    job.step();
    transport.world().barrier();
    if (transport.rank() == 0) {
      result.calls = cuda::shim::stop_recording();
      cuda::shim::hold_events(false);
    }
    transport.world().barrier();
    RankLog& mine = result.ranks[static_cast<std::size_t>(transport.rank())];
    const auto handle = [&](StreamKind stream) {
      const StreamScope scope(backend, stream);
      return backend.handle();
    };
    mine = {handle(StreamKind::kCompute), handle(StreamKind::kUpdate), handle(StreamKind::kCommunication), {}};
    for (std::size_t b = 0; b < job.buckets(); ++b) mine.parameters.push_back(job.parameters_of(b).raw());
    job.finish();
  });
  return result;
}

bool is_update(const Call& call) { return call.kind == CallKind::kLaunch && call.label.find("UpdateBuffers") != std::string::npos; }

}  // namespace

TEST_CASE("nccl/training: buckets go in one order on all ranks, behind their update and before the next; the host waits for nothing") {
  for (const bool in_backward : {true, false}) {
    CAPTURE(in_backward);
    TrainingSettings settings;
    settings.in_backward = in_backward;
    const Recorded steps = record_steps(2, settings);
    for (const Call& call : steps.calls) {
      CHECK(call.kind != CallKind::kHostWait);
      CHECK(call.kind != CallKind::kAllocate);
      CHECK(call.kind != CallKind::kFree);
    }
    for (const RankLog& rank : steps.ranks) {
      const std::vector<Call> calls = steps.of(rank);
      const std::size_t buckets = rank.parameters.size();
      REQUIRE(buckets >= 3);
      const auto sends = places(calls, [](const Call& call) { return call.kind == CallKind::kNcclSend; });
      const auto receives = places(calls, [](const Call& call) { return call.kind == CallKind::kNcclReceive; });
      const auto updates = places(calls, is_update);
      REQUIRE(sends.size() == 2 * buckets);
      REQUIRE(receives.size() == 2 * buckets);
      REQUIRE(updates.size() == 2 * buckets);
      for (std::size_t step = 0; step < 2; ++step) {
        for (std::size_t b = 0; b < buckets; ++b) {
          CAPTURE(step);
          CAPTURE(b);
          const std::size_t at = step * buckets + b;
          const Call &send = calls[sends[at]], &receive = calls[receives[at]];
          CHECK(send.from == rank.parameters[b]);  // in the order of buckets, in place
          CHECK(send.stream == rank.communication);
          CHECK(receive.stream == rank.communication);
          CHECK(send.bytes == receive.bytes);
          CHECK(calls[updates[at]].stream == rank.update);
          CHECK(ordered(calls, updates[at], sends[at]));     // sent once it is final
          CHECK(ordered(calls, updates[at], receives[at]));  // received where the update has read
          if (step == 0) {
            const std::size_t next = buckets + b;
            CHECK(calls[receives[next]].to == receive.to);
            CHECK(ordered(calls, receives[at], updates[next]));  // mixed once it is there
            CHECK(ordered(calls, sends[at], updates[next]));     // overwritten once it has gone
          }
        }
      }
    }
  }
}

TEST_CASE("nccl/training: all ranks of a group issue their sums in the same order") {
  TrainingSettings settings;
  settings.topology = {{"type", "complete"}};
  const Recorded steps = record_steps(3, settings);
  std::vector<std::vector<std::size_t>> sizes;
  for (const RankLog& rank : steps.ranks) {
    sizes.emplace_back();
    const std::vector<Call> calls = steps.of(rank);
    std::size_t at = 0;
    for (const Call& call : calls) {
      if (call.kind != CallKind::kNcclCollective) continue;
      CHECK(call.label == "all_reduce");
      CHECK(call.from == rank.parameters[at++ % rank.parameters.size()]);
      CHECK(call.to != call.from);  // out of place
      sizes.back().push_back(call.bytes);
    }
    CHECK(at == 2 * rank.parameters.size());
  }
  CHECK(sizes[0] == sizes[1]);
  CHECK(sizes[0] == sizes[2]);
}

}  // namespace starling::tests
