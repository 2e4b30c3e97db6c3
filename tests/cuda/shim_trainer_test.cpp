#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/training/config/plugins.h"
#include "apps/training/training_run.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda/run_config.h"
#include "tests/cuda/support.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/support/folder.h"

// The trainer's own loop on the recording fake of the CUDA runtime. While the fake device does
// nothing until somebody waits, every wait of the host shows.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;

// steps (from 0) that are looked at: from kFirst, to before kLast
constexpr std::int64_t kLogged = 9, kFirst = 2, kLast = 7;

/// Counters at the start of every step; the device falls behind from kFirst on.
struct Log {
  std::vector<cuda::RuntimeCounters> counters;
  std::vector<Call> calls;
  std::vector<std::uint64_t> begins;  ///< of the recorded steps: recordings of events before
  cuda::StreamHandle compute = nullptr, upload = nullptr;

  /// The place of the recording that a wait or host wait is for; calls.size() where it was made
  /// before.
  std::size_t recording_of(const Call& wait) const {
    const auto place = std::find_if(calls.begin(), calls.end(), [&](const Call& call) {
      return call.kind == CallKind::kRecord && call.event == wait.event &&
             call.recording == wait.recording;
    });
    return static_cast<std::size_t>(place - calls.begin());
  }
};

/// Training asks its schedule once at the start of every step.
class NotingSchedule final : public Schedule {
 public:
  NotingSchedule(std::unique_ptr<Schedule> inner, Log& log) : inner_(std::move(inner)), log_(log) {}
  ~NotingSchedule() override { cuda::shim::hold_events(false); }
  double lr(std::int64_t t) const override {
    if (t == kFirst) {
      cuda::shim::hold_events(true);
      cuda::shim::start_recording();
    }
    if (t >= kFirst && t <= kLast) {
      cuda::shim::note_mark("step");
      // The device is two steps behind; the loader's thread waits for it.
      if (log_.begins.size() >= 2) cuda::shim::let_events_to(log_.begins[log_.begins.size() - 2]);
      log_.begins.push_back(cuda::shim::recordings());
    }
    log_.counters.push_back(cuda::runtime_counters());
    if (t == kLast) {
      log_.calls = cuda::shim::stop_recording();
      cuda::shim::hold_events(false);
    }
    return inner_->lr(t);
  }

 private:
  std::unique_ptr<Schedule> inner_;
  Log& log_;
};

Log logged_training(const std::string& precision, std::int64_t log_every) {
  register_builtins();
  const nlohmann::json json = with(graph_config(kLogged), {{"batch_size", 4},
                                                           {"data", {{"limit", 256}}},
                                                           {"precision", precision},
                                                           {"cuda_graphs", false},
                                                           {"log_every", log_every}});
  const test::Folder folder;
  const auto transport = make_single_transport();
  cuda::CudaBackend backend(0, false, false, true);
  Log log;
  log.compute = backend.handle();
  log.upload = handle_of(backend, StreamKind::kUpload);
  TrainConfig config = read_gpu_config(json, {});
  config.optimizer.make_schedule = [make = config.optimizer.make_schedule,
                                    &log](const ScheduleInputs& site) {
    return std::make_unique<NotingSchedule>(make(site), log);
  };
  const ShapeTrace trace = trace_shapes(config);
  {
    Trainer trainer(config, {}, trace, backend, *transport);
    trainer.initialise();
    CHECK(TrainingRun(trainer, folder / ".").run() == ExitCode::kOk);
  }
  config.model.reset();
  REQUIRE(log.counters.size() == static_cast<std::size_t>(kLogged));
  return log;
}

}  // namespace

TEST_CASE(
    "cuda/trainer: from the third step on nothing is allocated, and the host waits once a step in "
    "fp16, else never") {
  for (const std::string precision : {"fp32", "bf16", "fp16"}) {
    CAPTURE(precision);
    const Log log = logged_training(precision, 1000);
    for (std::size_t step = kFirst; step < static_cast<std::size_t>(kLast); ++step) {
      CAPTURE(step);
      const cuda::RuntimeCounters &before = log.counters[step], &after = log.counters[step + 1];
      CHECK(after.device_allocations == before.device_allocations);
      // The step before kFirst ended before the device fell behind, so that its flag needs no wait.
      const bool flag = precision == "fp16" && step > static_cast<std::size_t>(kFirst);
      CHECK(after.host_waits - before.host_waits == (flag ? 1 : 0));
      CHECK(after.launches > before.launches);
    }
    // fp16's wait: for what the step before recorded, once this step's forward pass is on its way.
    std::size_t step_begin = 0, launches = 0, waits = 0;
    for (std::size_t i = 0; i < log.calls.size(); ++i) {
      const Call& call = log.calls[i];
      if (call.kind == CallKind::kMark) {
        step_begin = i;
        launches = 0;
      }
      launches += call.kind == CallKind::kLaunch;
      if (call.kind != CallKind::kHostWait) continue;
      ++waits;
      CHECK(launches >= 5);
      CHECK(log.recording_of(call) < step_begin);
    }
    CHECK(waits == (precision == "fp16" ? kLast - kFirst - 1 : 0));
  }
}

TEST_CASE(
    "cuda/trainer: batches go up on a stream of their own, while the device computes, and no "
    "sooner than their memory is free") {
  const Log log = logged_training("bf16", 1000);
  const std::vector<Call>& calls = log.calls;
  // of each step: its mark, and its first kernel, which makes the batch
  std::vector<std::size_t> begins, firsts;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].kind == CallKind::kMark) begins.push_back(i);
    if (calls[i].kind == CallKind::kLaunch && calls[i].stream == log.compute &&
        firsts.size() < begins.size())
      firsts.push_back(i);
  }
  REQUIRE(begins.size() == static_cast<std::size_t>(kLast - kFirst) + 1);
  REQUIRE(firsts.size() >= begins.size() - 1);
  int ahead = 0;
  for (std::size_t step = 3; step + 1 < begins.size(); ++step) {
    CAPTURE(step);
    // This step's batch arrives before its first kernel ...
    std::size_t wait = firsts[step];
    while (wait > begins[step] &&
           !(calls[wait].kind == CallKind::kWait && calls[wait].stream == log.compute))
      --wait;
    REQUIRE(calls[wait].kind == CallKind::kWait);
    const std::size_t arrived = log.recording_of(calls[wait]);
    REQUIRE(arrived < wait);
    CHECK(calls[arrived].stream == log.upload);
    // ... by the one copy before that ...
    std::size_t first = arrived;
    while (first > begins[step - 1] &&
           !(calls[first].kind == CallKind::kCopy && calls[first].stream == log.upload))
      --first;
    REQUIRE(calls[first].kind == CallKind::kCopy);
    CHECK(calls[first].copy == cuda::CopyKind::kHostToDevice);
    ahead += first < begins[step];
    // ... which waited for the work on the batch that had the memory three steps before, and for no
    // later step's.
    std::size_t freed = first;
    while (freed > 0 &&
           !(calls[freed].kind == CallKind::kWait && calls[freed].stream == log.upload))
      --freed;
    REQUIRE(calls[freed].kind == CallKind::kWait);
    CHECK(freed > begins[step - 1]);
    const std::size_t free = log.recording_of(calls[freed]);
    REQUIRE(free < freed);
    CHECK(calls[free].stream == log.compute);
    CHECK(free > begins[step - 2]);
    CHECK(free < firsts[step - 2]);
  }
  // The step before issues them, after its own kernels; only where the loader's thread was late it
  // is the step itself.
  WARN(ahead >= 1);
  // Nothing else goes up where it would hold up the computation.
  for (const Call& call : calls) {
    if (call.kind == CallKind::kCopy && call.copy == cuda::CopyKind::kHostToDevice)
      CHECK(call.stream != log.compute);
  }
}

TEST_CASE("cuda/trainer: a line of metrics costs one wait, and no memory") {
  const Log log = logged_training("fp32", 2);
  for (std::size_t step = kFirst; step < static_cast<std::size_t>(kLast); ++step) {
    CAPTURE(step);
    const bool line = (step + 1) % 2 == 0;
    CHECK(log.counters[step + 1].host_waits - log.counters[step].host_waits == (line ? 1 : 0));
    CHECK(log.counters[step + 1].device_allocations == log.counters[step].device_allocations);
  }
}

}  // namespace starling::tests
