#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda/training_job.h"
#include "tests/fakes/cuda/recorder.h"

// Whole training steps, with layers, tape, buckets and gossip, on the recording fake of the CUDA runtime: which calls a step makes, in
// which order, and what comes out.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;

std::vector<Call> record_step(TrainingJob& job) {
  cuda::shim::start_recording();
  job.step();
  return cuda::shim::stop_recording();
}

/// The fused update's launch.
bool is_update(const Call& call) { return call.kind == CallKind::kLaunch && call.label.find("UpdateBuffers") != std::string::npos; }

/// The place of the recording that a wait waits for; calls.size() where it was made before this step.
std::size_t recording_of(const std::vector<Call>& calls, const Call& wait) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].kind == CallKind::kRecord && calls[i].event == wait.event && calls[i].recording == wait.recording) return i;
  }
  return calls.size();
}

}  // namespace

TEST_CASE("cuda/step: in the third step nothing is allocated, and the host waits for nothing") {
  struct Variant {
    DType compute;
    bool defer_norms;
  };
  for (const auto& [compute, defer_norms] :
       {Variant{DType::kFloat32, false}, {DType::kBFloat16, false}, {DType::kFloat16, false}, {DType::kFloat16, true}}) {
    CAPTURE(name_of(compute));
    CAPTURE(defer_norms);
    TrainingSettings settings;
    settings.compute = compute;
    settings.defer_norms = defer_norms;
    if (defer_norms) settings.net = kNormNet;
    settings.in_backward = compute != DType::kFloat16;
    settings.check_overflow = compute == DType::kFloat16;
    cuda::CudaBackend backend(0, false, false, true);
    const auto transport = make_single_transport();
    TrainingJob job(backend, *transport, settings);
    job.step();
    job.step();
    const auto before = cuda::runtime_counters();
    const std::vector<Call> calls = record_step(job);
    for (const Call& call : calls) {
      CHECK(call.kind != CallKind::kAllocate);
      CHECK(call.kind != CallKind::kFree);
      CHECK(call.kind != CallKind::kHostWait);
      CHECK(call.kind != CallKind::kCreateEvent);
      CHECK(call.kind != CallKind::kCreateStream);
    }
    const auto after = cuda::runtime_counters();
    CHECK(after.device_allocations == before.device_allocations);
    CHECK(after.host_waits == before.host_waits);
    CHECK(after.launches > before.launches);
    job.finish();
  }
}

TEST_CASE("cuda/step: with deferred batch norms a step issues each of their parts once, and learns the same") {
  // Launches are named by the operation that made them.
  const auto train = [](bool defer_norms, std::map<std::string, int>& parts) {
    TrainingSettings settings;
    settings.net = kNormNet;
    settings.defer_norms = defer_norms;
    cuda::CudaBackend backend(0, false, false, true);
    const auto transport = make_single_transport();
    TrainingJob job(backend, *transport, settings);
    for (const Call& call : record_step(job)) {
      if (call.kind != CallKind::kLaunch) continue;
      for (const char* name : {"ChannelSums", "BatchNormFinish", "ScaleShift", "BatchNormBackwardSums", "BatchNormBackwardApply",
                               "BatchNormForward", "BatchNormBackward&"}) {
        if (call.label.find(name) != std::string::npos) ++parts[name];
      }
    }
    job.step();
    job.finish();
    return job.numbers();
  };
  std::map<std::string, int> whole, deferred;
  const std::vector<double> wanted = train(false, whole), found = train(true, deferred);
  CHECK(whole["BatchNormForward"] == 4 * 2);
  CHECK(whole["BatchNormBackward&"] == 4 * 2);
  CHECK(whole["ChannelSums"] + whole["ScaleShift"] == 0);
  CHECK(deferred["BatchNormForward"] == 0);
  CHECK(deferred["ChannelSums"] == 4);
  CHECK(deferred["BatchNormFinish"] == 4);
  // The first and the third are read by one convolution each. The other two have two readers or a residual: their gradients come whole.
  CHECK(deferred["BatchNormBackwardSums"] == 2);
  CHECK(deferred["BatchNormBackwardApply"] == 2);
  CHECK(deferred["BatchNormBackward&"] == 2 * 2);
  CHECK(deferred["ScaleShift"] > 0);
  REQUIRE(found.size() == wanted.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < found.size(); ++i) largest = std::max(largest, std::abs(found[i] - wanted[i]));
  CHECK(largest < 1e-3);
}

TEST_CASE("cuda/step: updates run on their stream after the gradients, and the next forward pass after the updates") {
  for (const bool in_backward : {true, false}) {
    CAPTURE(in_backward);
    TrainingSettings settings;
    settings.in_backward = in_backward;
    if (!in_backward) settings.clip.norm = 1.0;
    cuda::CudaBackend backend(0, false, false, true);
    const auto transport = make_single_transport();
    TrainingJob job(backend, *transport, settings);
    REQUIRE(job.buckets() >= 3);
    job.step();
    const std::vector<Call> calls = record_step(job);
    const cuda::StreamHandle compute = backend.handle();
    cuda::StreamHandle update = nullptr;
    {
      const StreamScope scope(backend, StreamKind::kUpdate);
      update = backend.handle();
    }
    std::size_t updates = 0, last_update = 0, last_compute = 0;
    std::set<std::uint64_t> recordings;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].kind == CallKind::kLaunch && calls[i].stream == compute) last_compute = i;
      if (!is_update(calls[i])) continue;
      ++updates;
      last_update = i;
      CHECK(calls[i].stream == update);
      // The wait that came last on this stream is for what compute had been told just before: this bucket's gradients.
      std::size_t wait = i;
      while (wait > 0 && !(calls[wait].kind == CallKind::kWait && calls[wait].stream == update)) --wait;
      REQUIRE(calls[wait].kind == CallKind::kWait);
      const std::size_t record = recording_of(calls, calls[wait]);
      REQUIRE(record < wait);
      CHECK(calls[record].stream == compute);
      CHECK(recordings.insert(record).second);
      for (std::size_t between = record; between < i; ++between) {
        CHECK_FALSE((calls[between].kind == CallKind::kLaunch && calls[between].stream == compute));
      }
    }
    CHECK(updates == job.buckets());
    CHECK((last_compute > calls.size() / 2));
    if (!in_backward) CHECK(last_compute < last_update);
    // Last of all compute waits for the update stream's end.
    const Call& last = calls.back();
    REQUIRE(last.kind == CallKind::kWait);
    CHECK(last.stream == compute);
    const std::size_t record = recording_of(calls, last);
    REQUIRE(record < calls.size());
    CHECK(calls[record].stream == update);
    CHECK(record > last_update);
    job.finish();
  }
}

TEST_CASE("cuda/step: in_backward issues each bucket's update as soon as its gradients are complete") {
  cuda::CudaBackend backend(0, false, false, true);
  const auto transport = make_single_transport();
  TrainingJob job(backend, *transport, {});
  job.step();
  const std::vector<Call> calls = record_step(job);
  const auto first = std::find_if(calls.begin(), calls.end(), is_update);
  REQUIRE(first != calls.end());
  const auto compute_after = std::count_if(
      first, calls.end(), [&](const Call& call) { return call.kind == CallKind::kLaunch && call.stream == backend.handle(); });
  CHECK(compute_after > 5);
  job.finish();
}

}  // namespace starling::tests
