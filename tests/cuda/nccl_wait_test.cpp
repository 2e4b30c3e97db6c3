#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/nccl/transport.h"
#include "comm/transports/forwarding.h"
#include "tests/cuda/race_training.h"
#include "tests/fakes/nccl/nccl_fake.h"

// Who waits for an exchange on a GPU: the stream that goes on with its numbers, and nobody else.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;

/// Waits on the compute stream, whatever the stream of the call.
class WaitsOnCompute final : public ForwardingTransport {
 public:
  WaitsOnCompute(std::unique_ptr<Transport> inner, Backend& backend)
      : ForwardingTransport(*inner), owned_(std::move(inner)), backend_(backend) {}
  void wait(Ticket ticket) override {
    const StreamScope scope(backend_, StreamKind::kCompute);
    ForwardingTransport::wait(ticket);
  }

 private:
  std::unique_ptr<Transport> owned_;
  Backend& backend_;
};

struct Waits {
  int of_compute = 0;  ///< for the communication stream, between the first and the last gradient of a step
  int of_update = 0;   ///< for the communication stream, anywhere
  int passes = 0;
};

/// In the record of steps from the second on.
Waits count_waits(const std::vector<Call>& calls) {
  std::map<cuda::StreamHandle, std::string> names;
  std::map<std::pair<cuda::EventHandle, std::uint64_t>, std::string> recorded;  ///< the stream's name
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
    if (call.kind == CallKind::kWrite && names[call.stream] == "compute" && call.label.find("backward") != std::string::npos) {
      rank.begun = true;
      rank.until_last = rank.in_pass;
    }
    if (call.kind != CallKind::kWait) continue;
    const std::string& whom = recorded[{call.event, call.recording}];
    if (whom == "communication" && names[call.stream] == "update") ++waits.of_update;
    // An update waits for its exchange, so who waits for updates waits for exchanges.
    if (rank.begun && names[call.stream] == "compute" && (whom == "communication" || whom == "update")) ++rank.in_pass;
  }
  return waits;
}

Waits train(const TrainingSettings& settings, bool on_compute) {
  FakeNccl nccl(2);
  return count_waits(record_training({settings, 2, 4}, [&](std::unique_ptr<Transport> control, Backend& backend) {
    const int rank = control->rank();
    std::unique_ptr<Transport> transport = make_nccl_transport(std::move(control), backend, nccl.open(rank), {20.0, 0, 0.01});
    if (on_compute) transport = std::make_unique<WaitsOnCompute>(std::move(transport), backend);
    return transport;
  }));
}

}  // namespace

TEST_CASE("nccl/wait: the backward pass never waits for an exchange, updates do") {
  for (const char* algorithm : {"gossip", "allreduce"}) {
    for (const bool start_at_begin : {false, true}) {
      CAPTURE(std::string(algorithm));
      CAPTURE(start_at_begin);
      TrainingSettings settings;
      settings.algorithm = algorithm;
      settings.start_at_begin = start_at_begin;
      const Waits waits = train(settings, false);
      CHECK(waits.passes == 2 * 4);
      CHECK(waits.of_compute == 0);
      CHECK(waits.of_update >= 2 * 3 * 3);  // ranks, steps with an exchange, buckets
    }
  }
  CHECK(train({}, true).of_compute > 0);  // the count can find one
}

TEST_CASE("nccl/wait: the current stream waits, no other one does") {
  FakeNccl nccl(1);
  run_ranks(
      1,
      [&](std::unique_ptr<Transport> control, Backend& backend) {
        return make_nccl_transport(std::move(control), backend, nccl.open(0), {20.0, 0, 0.01});
      },
      [](int, Backend& backend, Transport& transport) {
        const Tensor numbers(backend, Shape{32}, DType::kFloat32);
        for (const StreamKind stream : {StreamKind::kCompute, StreamKind::kUpdate, StreamKind::kUpload}) {
          const Ticket ticket = transport.start_sum(numbers, numbers, {0, 0, 0});
          const StreamScope scope(backend, stream);
          cuda::shim::start_recording();
          transport.wait(ticket);
          const std::vector<Call> calls = cuda::shim::stop_recording();
          const auto waits = std::count_if(calls.begin(), calls.end(), [](const Call& call) { return call.kind == CallKind::kWait; });
          CHECK(waits == 1);
          CHECK(std::all_of(calls.begin(), calls.end(),
                            [&](const Call& call) { return call.kind != CallKind::kWait || call.stream == backend.native_stream(); }));
        }
      });
}

}  // namespace starling::tests
