#include <doctest/doctest.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/fake_transport.h"
#include "comm/staged_transport.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/shim/recorder.h"
#include "tests/cuda/training_job.h"
#include "tests/forwarding_transport.h"

// A training step of two ranks whose buckets go through host memory (comm/staged_transport.h): rank 0 on the recording fake of the CUDA
// runtime, rank 1 on the CPU. What is checked is an order that holds however far the device runs behind the host.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;

/// Notes when the transport of host memory is told to start and when an exchange has ended.
class NotingTransport final : public ForwardingTransport {
 public:
  explicit NotingTransport(Transport& inner) : ForwardingTransport(inner) {}
  Ticket start_exchange(const Exchange& exchange, const Tensor& send, const std::vector<Tensor>& receive,
                        const ExchangeLabel& label) override {
    cuda::shim::note_mark("start " + std::to_string(label.bucket));
    const Ticket ticket = ForwardingTransport::start_exchange(exchange, send, receive, label);
    bucket_of_[ticket] = label.bucket;
    return ticket;
  }
  void wait(Ticket ticket) override {
    ForwardingTransport::wait(ticket);
    if (const auto it = bucket_of_.find(ticket); it != bucket_of_.end()) cuda::shim::note_mark("arrived " + std::to_string(it->second));
  }

 private:
  std::map<Ticket, int> bucket_of_;
};

/// What rank 0 did in its third step.
struct Recorded {
  std::vector<Call> calls;
  cuda::StreamHandle compute = nullptr, update = nullptr, communication = nullptr;
  std::vector<const void*> parameters;  ///< per bucket
  std::vector<std::size_t> bytes;
};

cuda::StreamHandle handle_of(cuda::CudaBackend& backend, StreamKind stream) {
  const StreamScope scope(backend, stream);
  return backend.handle();
}

Recorded record_third_step(const TrainingSettings& settings) {
  Recorded result;
  FakeWorld world(2);
  world.run([&](Transport& transport) {
    if (transport.rank() == 1) {
      CpuBackend cpu(1);
      TrainingJob job(cpu, transport, settings);
      for (int i = 0; i < 4; ++i) job.step();
      job.finish();
      return;
    }
    cuda::CudaBackend backend(0, false, false, true);
    const auto staged = make_staged_transport(std::make_unique<NotingTransport>(transport));
    TrainingJob job(backend, *staged, settings);
    job.step();
    job.step();
    struct Held {
      Held() { cuda::shim::hold_events(true); }
      ~Held() { cuda::shim::hold_events(false); }
    };
    {
      const Held held;
      cuda::shim::start_recording();
      job.step();
      result.calls = cuda::shim::stop_recording();
    }
    result.compute = handle_of(backend, StreamKind::kCompute);
    result.update = handle_of(backend, StreamKind::kUpdate);
    result.communication = handle_of(backend, StreamKind::kCommunication);
    for (std::size_t b = 0; b < job.buckets(); ++b) {
      result.parameters.push_back(job.parameters_of(b).raw());
      result.bytes.push_back(job.parameters_of(b).bytes());
    }
    job.step();
    job.finish();
  });
  return result;
}

/// Whether call `later`, on its stream, runs after call `earlier`, on its own, by the waits between them alone.
bool ordered(const std::vector<Call>& calls, std::size_t earlier, std::size_t later) {
  if (earlier >= later) return false;
  if (calls[earlier].stream == calls[later].stream) return true;
  for (std::size_t wait = earlier + 1; wait < later; ++wait) {
    if (calls[wait].kind != CallKind::kWait || calls[wait].stream != calls[later].stream) continue;
    for (std::size_t record = earlier + 1; record < wait; ++record) {
      const Call& call = calls[record];
      if (call.kind == CallKind::kRecord && call.stream == calls[earlier].stream && call.event == calls[wait].event &&
          call.recording == calls[wait].recording) {
        return true;
      }
    }
  }
  return false;
}

/// Whether the host, before call `later`, has waited for an event recorded after call `earlier` on its stream.
bool host_waited(const std::vector<Call>& calls, std::size_t earlier, std::size_t later) {
  for (std::size_t wait = earlier + 1; wait < later; ++wait) {
    if (calls[wait].kind != CallKind::kHostWait) continue;
    for (std::size_t record = earlier + 1; record < wait; ++record) {
      const Call& call = calls[record];
      if (call.kind == CallKind::kRecord && call.stream == calls[earlier].stream && call.event == calls[wait].event &&
          call.recording == calls[wait].recording) {
        return true;
      }
    }
  }
  return false;
}

template <class Is>
std::vector<std::size_t> places(const std::vector<Call>& calls, Is is) {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (is(calls[i])) result.push_back(i);
  }
  return result;
}

std::size_t mark(const std::vector<Call>& calls, const std::string& label) {
  CAPTURE(label);
  const auto found = places(calls, [&](const Call& call) { return call.kind == CallKind::kMark && call.label == label; });
  REQUIRE(found.size() == 1);
  return found[0];
}

}  // namespace

TEST_CASE("cuda/exchange: a bucket is sent after its update, and mixed after what arrived is on the device") {
  for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool in_backward : {true, false}) {
      CAPTURE(name_of(compute));
      CAPTURE(in_backward);
      TrainingSettings settings;
      settings.compute = compute;
      settings.in_backward = in_backward;
      const Recorded step = record_third_step(settings);
      const std::vector<Call>& calls = step.calls;
      REQUIRE(step.parameters.size() >= 3);
      const auto updates = places(
          calls, [](const Call& call) { return call.kind == CallKind::kLaunch && call.label.find("UpdateBuffers") != std::string::npos; });
      CHECK(updates.size() == step.parameters.size());
      for (const Call& call : calls) {
        CHECK(call.kind != CallKind::kAllocate);
        CHECK(call.kind != CallKind::kFree);
        CHECK(call.kind != CallKind::kCreateStream);
      }
      for (std::size_t b = 0; b < step.parameters.size(); ++b) {
        CAPTURE(b);
        // Issue order: arrived, to the device, update, to the host, start.
        const std::size_t arrived = mark(calls, "arrived " + std::to_string(b)), start = mark(calls, "start " + std::to_string(b));
        REQUIRE(arrived < start);
        std::vector<std::size_t> uploads, downloads, own;
        for (std::size_t i = arrived; i < start; ++i) {
          if (calls[i].kind != CallKind::kCopy || calls[i].stream == step.update) continue;  // on it: the update's scalars
          if (calls[i].copy == cuda::CopyKind::kHostToDevice) uploads.push_back(i);
          if (calls[i].copy == cuda::CopyKind::kDeviceToHost) downloads.push_back(i);
        }
        for (const std::size_t update : updates) {
          if (update > arrived && update < start) own.push_back(update);
        }
        REQUIRE(own.size() == 1);
        REQUIRE(uploads.size() == 1);  // one neighbour, and one piece of staging memory
        REQUIRE(downloads.size() == 1);
        const std::size_t update = own[0], upload = uploads[0], download = downloads[0];
        CHECK(calls[update].stream == step.update);
        CHECK(calls[upload].stream == step.communication);
        CHECK(calls[upload].bytes == step.bytes[b]);
        CHECK(calls[download].stream == step.communication);
        CHECK(calls[download].from == step.parameters[b]);
        CHECK(calls[download].bytes == step.bytes[b]);
        CHECK(ordered(calls, upload, update));
        CHECK(ordered(calls, update, download));
        CHECK(host_waited(calls, download, start));
      }
    }
  }
}

}  // namespace starling::tests
