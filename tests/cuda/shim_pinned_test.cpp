#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/staging.h"
#include "tests/cuda/held_device.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/support/errors.h"

// Pinned memory of the caller's own, and events that other threads ask for.
namespace starling::cuda {
namespace {

using shim::Call;
using shim::CallKind;

}  // namespace

TEST_CASE("cuda/pinned: memory is the driver's, counted, and freed with its last owner") {
  CudaBackend backend(0, false, false, true);
  const auto before = runtime_counters().device_allocations;
  shim::start_recording();
  std::shared_ptr<std::byte> memory = backend.allocate_host(1000);
  const void* address = memory.get();
  std::memset(memory.get(), 1, 1000);
  memory.reset();
  const auto nothing = backend.allocate_host(0);
  CHECK(nothing != nullptr);
  const std::vector<Call> calls = shim::stop_recording();
  REQUIRE(calls.size() == 3);
  CHECK(calls[0].kind == CallKind::kAllocate);
  CHECK(calls[0].label == "pinned");
  CHECK(calls[0].bytes == 1000);
  CHECK(calls[0].to == address);
  CHECK(calls[1].kind == CallKind::kFree);
  CHECK(calls[1].to == address);
  CHECK(runtime_counters().device_allocations == before + 2);
}

TEST_CASE("cuda/pinned: refused memory is one clear error") {
  CudaBackend backend(0, false, false, true);
  shim::FakeMachine small;
  small.pinned = 4096;
  struct Back {
    ~Back() { shim::set_machine({}); }
  } back;
  shim::set_machine(small);
  CHECK(backend.allocate_host(4096) != nullptr);
  const std::string text =
      test::error_of(ExitCode::kMemory, [&] { backend.allocate_host(123456789); });
  CHECK(test::contains(text, "123456789 bytes"));
  CHECK(test::contains(text, "ulimit -l"));
}

TEST_CASE("cuda/events: whether an event is done is known without a wait, event by event") {
  CudaBackend backend(0, false, false, true);
  const tests::HeldDevice held;
  const auto waits = runtime_counters().host_waits;
  const Event first = backend.record(), second = backend.record();
  CHECK(backend.done(Event{}));
  CHECK(!backend.done(first));
  shim::let_events(1);
  CHECK(backend.done(first));
  CHECK(!backend.done(second));
  shim::let_events(1);
  CHECK(backend.done(second));
  CHECK(runtime_counters().host_waits == waits);
}

TEST_CASE(
    "cuda/events: other threads may ask while one records, and a number that was done stays done") {
  CudaBackend backend(0, false, false, true);
  std::atomic<std::uint64_t> last{0};
  std::atomic<bool> stop{false};
  std::atomic<int> fallen{0}, asked{0};
  std::vector<std::thread> threads;
  {
    const tests::HeldDevice held;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        std::uint64_t done = 0;
        while (!stop) {
          const std::uint64_t newest = last;
          while (done < newest && backend.done(Event{done + 1})) ++done;
          if (done > 0 && (!backend.done(Event{done}) || !backend.done(Event{1 + done / 2})))
            ++fallen;
          ++asked;
        }
      });
    }
    for (int i = 0; i < 5000; ++i) {
      last = backend.record().id;
      if (i % 100 == 99) shim::let_events(100);
    }
    while (asked < 100) std::this_thread::yield();
    stop = true;
    for (std::thread& thread : threads) thread.join();
  }
  CHECK(fallen == 0);
}

TEST_CASE("cuda/events: the steady state makes no events, however far the device is behind") {
  CudaBackend backend(0, false, false, true);
  const tests::HeldDevice held;
  const auto burst = [&] {
    Event last;
    for (std::size_t i = 0; i < 5 * EventRing::kHandles; ++i) last = backend.record();
    shim::let_events(5 * EventRing::kHandles);
    CHECK(backend.done(last));
  };
  burst();
  shim::start_recording();
  for (int i = 0; i < 5; ++i) burst();
  for (const Call& call : shim::stop_recording()) CHECK(call.kind != CallKind::kCreateEvent);
}

}  // namespace starling::cuda
