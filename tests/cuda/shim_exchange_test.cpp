#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/transports/forwarding.h"
#include "comm/transports/staged.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda/held_device.h"
#include "tests/cuda/support.h"
#include "tests/cuda/training_job.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/exchanges.h"

// Training steps of two ranks whose buckets go through host memory (comm/transports/staged.h): rank
// 0 on the recording fake of the CUDA runtime, rank 1 on the CPU. What is checked is an order that
// holds however far the device runs behind the host.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;

/// Whether call `later`, on its stream, runs after call `earlier`, on its own, by the waits between
/// them alone.
bool ordered(const std::vector<Call>& calls, std::size_t earlier, std::size_t later) {
  if (earlier >= later) return false;
  if (calls[earlier].stream == calls[later].stream) return true;
  for (std::size_t wait = earlier + 1; wait < later; ++wait) {
    if (calls[wait].kind != CallKind::kWait || calls[wait].stream != calls[later].stream) continue;
    for (std::size_t record = earlier + 1; record < wait; ++record) {
      const Call& call = calls[record];
      if (call.kind == CallKind::kRecord && call.stream == calls[earlier].stream &&
          call.event == calls[wait].event && call.recording == calls[wait].recording) {
        return true;
      }
    }
  }
  return false;
}

/// Places in the record of the calls of which is(call) holds.
template <class Is>
std::vector<std::size_t> places(const std::vector<Call>& calls, const Is& is) {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (is(calls[i])) result.push_back(i);
  }
  return result;
}

/// What the transport of host memory was told, and where the host's buffers lie.
struct Started {
  std::int64_t step = 0;
  int bucket = 0;
  const void* send = nullptr;
  const void* receive = nullptr;
  std::size_t bytes = 0;
};

std::string name_of_mark(const char* what, std::int64_t step, int bucket) {
  return std::string(what) + " " + std::to_string(step) + "." + std::to_string(bucket);
}

/// Notes when the transport of host memory is told to start, when it finds that all may be sent and
/// when all has come, and when an exchange has ended.
class NotingTransport final : public ForwardingTransport {
 public:
  NotingTransport(Transport& inner, std::vector<Started>& started)
      : ForwardingTransport(inner), started_(started) {}
  Ticket start_exchange(const Exchange& exchange, const Tensor& send,
                        const std::vector<Tensor>& receive, const ExchangeLabel& label,
                        std::shared_ptr<Flow> flow) override {
    cuda::shim::note_mark(name_of_mark("start", label.step, label.bucket));
    started_.push_back({label.step, label.bucket, send.raw(), receive.at(0).raw(), send.bytes()});
    REQUIRE(flow != nullptr);
    flow_ = std::make_shared<NotingFlow>(std::move(flow), label);
    const Ticket ticket =
        ForwardingTransport::start_exchange(exchange, send, receive, label, flow_);
    labels_[ticket] = label;
    return ticket;
  }
  void wait(Ticket ticket) override {
    ForwardingTransport::wait(ticket);
    if (const auto it = labels_.find(ticket); it != labels_.end()) {
      cuda::shim::note_mark(name_of_mark("ended", it->second.step, it->second.bucket));
    }
  }
  /// Of the exchange started last.
  const std::shared_ptr<Flow>& flow() const { return flow_; }

 private:
  class NotingFlow final : public Flow {
   public:
    NotingFlow(std::shared_ptr<Flow> inner, const ExchangeLabel& label)
        : Flow(inner->bytes()), inner_(std::move(inner)), label_(label) {}
    std::size_t ready() override {
      const std::size_t bytes_ready = inner_->ready();
      if (bytes_ready == bytes() && !left_.exchange(true))
        cuda::shim::note_mark(name_of_mark("leaves", label_.step, label_.bucket));
      return bytes_ready;
    }
    void arrived(std::size_t buffer, std::size_t count) override {
      if (count == bytes())
        cuda::shim::note_mark(name_of_mark("arrived", label_.step, label_.bucket));
      inner_->arrived(buffer, count);
    }
    void look() override { inner_->look(); }

   private:
    std::shared_ptr<Flow> inner_;
    ExchangeLabel label_;
    std::atomic<bool> left_{false};
  };

  std::vector<Started>& started_;
  std::map<Ticket, ExchangeLabel> labels_;
  std::shared_ptr<Flow> flow_;
};

/// What rank 0 did in its third and fourth step (numbers 2 and 3).
struct Recorded {
  std::vector<Call> calls;
  cuda::StreamHandle compute = nullptr, update = nullptr, communication = nullptr;
  std::vector<const void*> parameters;  ///< per bucket
  std::vector<std::size_t> bytes;
  std::vector<Started> started;
};

Recorded record_two_steps(const TrainingSettings& settings) {
  Recorded result;
  FakeWorld world(2);
  world.run([&](Transport& transport) {
    if (transport.rank() == 1) {
      CpuBackend cpu(1);
      TrainingJob job(cpu, transport, settings);
      for (int i = 0; i < 6; ++i) job.step();
      job.finish();
      return;
    }
    cuda::CudaBackend backend(0, false, false, true);
    const auto staged =
        make_staged_transport(std::make_unique<NotingTransport>(transport, result.started));
    TrainingJob job(backend, *staged, settings);
    job.step();
    job.step();
    {
      const HeldDevice held;
      cuda::shim::start_recording();
      job.step();
      // time for messages to leave too early
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      cuda::shim::note_mark("let go");
      // what the step issued is done; what the next one issues is not
      cuda::shim::let_events(1'000'000);
      job.step();
    }
    result.calls = cuda::shim::stop_recording();
    result.compute = handle_of(backend, StreamKind::kCompute);
    result.update = handle_of(backend, StreamKind::kUpdate);
    result.communication = handle_of(backend, StreamKind::kCommunication);
    for (std::size_t b = 0; b < job.buckets(); ++b) {
      result.parameters.push_back(job.parameters_of(b).raw());
      result.bytes.push_back(job.parameters_of(b).bytes());
    }
    const auto before = cuda::runtime_counters().device_allocations;
    job.step();
    job.step();
    CHECK(cuda::runtime_counters().device_allocations == before);
    job.finish();
  });
  return result;
}

std::size_t mark(const std::vector<Call>& calls, const std::string& label) {
  CAPTURE(label);
  const auto found = places(
      calls, [&](const Call& call) { return call.kind == CallKind::kMark && call.label == label; });
  REQUIRE(found.size() == 1);
  return found[0];
}

const Started& start_of(const Recorded& record, std::int64_t step, std::size_t bucket) {
  const auto it =
      std::find_if(record.started.begin(), record.started.end(), [&](const Started& one) {
        return one.step == step && one.bucket == static_cast<int>(bucket);
      });
  REQUIRE(it != record.started.end());
  return *it;
}

}  // namespace

TEST_CASE(
    "cuda/exchange: a bucket is sent after its update, and mixed after what arrived is on the "
    "device, and the host waits for neither") {
  for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool in_backward : {true, false}) {
      CAPTURE(name_of(compute));
      CAPTURE(in_backward);
      const Recorded record = record_two_steps({.compute = compute, .in_backward = in_backward});
      const std::vector<Call>& calls = record.calls;
      const std::size_t buckets = record.parameters.size(), let_go = mark(calls, "let go");
      REQUIRE(buckets >= 3);
      const auto updates = places(calls, [](const Call& call) {
        return call.kind == CallKind::kLaunch &&
               call.label.find("UpdateBuffers") != std::string::npos;
      });
      REQUIRE(updates.size() == 2 * buckets);
      for (std::size_t i = 0; i < calls.size(); ++i) {
        CHECK(calls[i].kind != CallKind::kHostWait);
        // The second buffer that a bucket receives into is the last memory that a run asks for.
        if (calls[i].kind == CallKind::kAllocate) CHECK(calls[i].label == "pinned");
        CHECK(calls[i].kind != CallKind::kFree);
        CHECK(calls[i].kind != CallKind::kCreateStream);
      }
      // In backward an update is issued as soon as its bucket's gradients are complete, otherwise
      // behind the pass.
      const auto computed_after = [&](std::size_t update) {
        return places(calls,
                      [&](const Call& call) {
                        return call.kind == CallKind::kLaunch && call.stream == record.compute &&
                               &call > &calls[update] && &call < &calls[let_go];
                      })
            .size();
      };
      CHECK((in_backward ? computed_after(updates[0]) > 5
                         : computed_after(updates[buckets - 1]) == 0));
      const auto copies = [&](cuda::CopyKind kind, const void* from, const void* to,
                              std::size_t begin, std::size_t end) {
        std::vector<std::size_t> found;
        for (std::size_t i = begin; i < end; ++i) {
          if (calls[i].kind == CallKind::kCopy && calls[i].copy == kind &&
              (!from || calls[i].from == from) && (!to || calls[i].to == to)) {
            found.push_back(i);
          }
        }
        return found;
      };
      for (std::size_t b = 0; b < buckets; ++b) {
        CAPTURE(b);
        const int bucket = static_cast<int>(b);
        const Started &first = start_of(record, 2, b), &second = start_of(record, 3, b);
        const std::size_t start = mark(calls, name_of_mark("start", 2, bucket)),
                          leaves = mark(calls, name_of_mark("leaves", 2, bucket));
        const std::size_t arrived = mark(calls, name_of_mark("arrived", 2, bucket)),
                          ended = mark(calls, name_of_mark("ended", 2, bucket));
        const std::size_t again = mark(calls, name_of_mark("start", 3, bucket));
        const std::size_t update = updates[b], next_update = updates[buckets + b];
        CHECK(first.bytes == record.bytes[b]);

        const auto down =
            copies(cuda::CopyKind::kDeviceToHost, record.parameters[b], nullptr, 0, start);
        REQUIRE(down.size() == 1);
        CHECK(calls[down[0]].to == first.send);
        CHECK(calls[down[0]].bytes == record.bytes[b]);
        CHECK(calls[down[0]].stream == record.communication);
        CHECK(calls[update].stream == record.update);
        CHECK(ordered(calls, update, down[0]));
        CHECK(ordered(calls, down[0], next_update));  // which overwrites what is sent
        CHECK(start < let_go);
        CHECK(let_go < leaves);  // not before its copy is done
        CHECK(leaves < ended);

        const auto up = copies(cuda::CopyKind::kHostToDevice, first.receive, nullptr, start, again);
        REQUIRE(up.size() == 1);
        CHECK(calls[up[0]].bytes == record.bytes[b]);
        CHECK(calls[up[0]].stream == record.communication);
        CHECK(arrived < up[0]);
        CHECK(ordered(calls, up[0], next_update));
        // which may read what the exchange before brought, at the same place
        CHECK(ordered(calls, update, up[0]));

        const auto down_again =
            copies(cuda::CopyKind::kDeviceToHost, nullptr, first.send, start, calls.size());
        REQUIRE(down_again.size() == 1);  // the buffer is used again, once its message is through
        CHECK(ended < down_again[0]);
        CHECK(down_again[0] < again);
        CHECK(second.send == first.send);
        // Nobody receives into what the device, which does nothing meanwhile, has still to copy
        // from.
        CHECK(copies(cuda::CopyKind::kHostToDevice, first.receive, nullptr, 0, start).empty());
        CHECK(
            copies(cuda::CopyKind::kHostToDevice, second.receive, nullptr, let_go, again).empty());
      }
    }
  }
}

TEST_CASE("cuda/exchange: pieces leave one by one, as the device copies them") {
  constexpr std::size_t kBytes = 3 * kStagedPieceBytes + 40;
  FakeWorld world(2);
  std::vector<Started> started;
  const auto inner = world.transport(0), other = world.transport(1);
  CpuBackend cpu(1);
  cuda::CudaBackend backend(0, false, false, true);
  const Shape shape{static_cast<std::int64_t>(kBytes / sizeof(float))};
  std::vector<float> numbers(kBytes / sizeof(float));
  std::iota(numbers.begin(), numbers.end(), 1.0f);
  const Tensor own(backend, shape, DType::kFloat32), target(backend, shape, DType::kFloat32);
  const Tensor theirs(cpu, shape, DType::kFloat32), there(cpu, shape, DType::kFloat32);
  backend.copy_from_host(numbers.data(), own);
  cpu.fill(theirs, 7.0);
  const Exchange exchange = test::pair_with(1), mirrored = test::pair_with(0);

  auto noting = std::make_unique<NotingTransport>(*inner, started);
  const NotingTransport& noted = *noting;
  const auto staged = make_staged_transport(std::move(noting));
  const HeldDevice held;
  const auto waits = cuda::runtime_counters().host_waits;
  Ticket ticket{};
  const std::vector<Call> calls = cuda::shim::recorded([&] {
    ticket = staged->start_exchange(exchange, own, {target}, {0, 0, 0});
  });
  CHECK(cuda::runtime_counters().host_waits == waits);
  // Copy, event, copy, event, …
  std::vector<CallKind> kinds;
  std::size_t sum = 0;
  for (const Call& call : calls) {
    if (call.kind != CallKind::kCopy && !(call.kind == CallKind::kRecord && !kinds.empty()))
      continue;
    kinds.push_back(call.kind);
    sum += call.bytes;
    CHECK(call.bytes <= kStagedPieceBytes);
  }
  REQUIRE(kinds.size() == 8);
  for (std::size_t i = 0; i < kinds.size(); ++i)
    CHECK(kinds[i] == (i % 2 ? CallKind::kRecord : CallKind::kCopy));
  CHECK(sum == kBytes);

  Flow& flow = *noted.flow();
  CHECK(flow.ready() == 0);
  cuda::shim::let_events(2);  // the marks on the compute and the update stream
  CHECK(flow.ready() == 0);
  for (std::size_t piece = 1; piece <= 4; ++piece) {
    cuda::shim::let_events(1);
    CHECK(flow.ready() == std::min(kBytes, piece * kStagedPieceBytes));
  }
  const Ticket mirror = other->start_exchange(mirrored, theirs, {there}, {0, 0, 0});
  staged->wait(ticket);
  other->wait(mirror);
  CHECK(std::equal(numbers.begin(), numbers.end(), there.data<float>()));
  CHECK(cuda::runtime_counters().host_waits == waits);
  CHECK(host_copy(target) == std::vector<float>(numbers.size(), 7.0f));
}

}  // namespace starling::tests
