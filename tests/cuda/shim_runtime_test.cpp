#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/choose_device.h"
#include "kernels/cuda/runtime/pool.h"
#include "kernels/cuda/runtime/staging.h"
#include "kernels/cuda_plugin.h"
#include "tests/cuda/held_device.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/support/errors.h"

extern "C" std::uint32_t starling_cuda_open(StarlingCudaOpening* opening);

namespace starling::cuda {
namespace {

using shim::Call;
using shim::CallKind;

using test::contains;
using test::error_of;

/// The fake machine of one test.
struct Machine {
  explicit Machine(const shim::FakeMachine& machine) { shim::set_machine(machine); }
  ~Machine() { shim::set_machine({}); }
};

DeviceInfo gpu_of(int major, int minor, const char* name = "GPU") {
  return {name, 0, major, minor, 100, std::size_t{80} << 30, 13000, 13000};
}

}  // namespace

TEST_CASE("cuda/pool: size classes waste an eighth at most") {
  for (std::size_t bytes :
       {1u, 511u, 512u, 513u, 4096u, 4097u, 5000u, 100000u, 9999999u, 123456789u}) {
    const std::size_t size = Pool::size_class(bytes);
    CHECK(size >= bytes);
    CHECK(size % 512 == 0);
    CHECK(Pool::size_class(size) == size);
    if (bytes > 4096) CHECK(size - bytes <= bytes / 8);
  }
}

TEST_CASE(
    "cuda/pool: at the end of memory cached blocks go back first, then comes one clear error") {
  shim::FakeMachine small;
  // 64 MiB more than other tests hold
  small.memory = device_info(0).total_memory - free_memory() + (std::size_t{64} << 20);
  const Machine machine(small);
  int waits = 0;
  Pool pool(0, "NVIDIA H200", [&] { ++waits; });
  const Pool::Block a = pool.take(std::size_t{40} << 20, StreamKind::kCompute);
  pool.give_back(a);
  const Pool::Block b = pool.take(std::size_t{60} << 20, StreamKind::kCompute);  // only without a
  CHECK(waits == 1);
  const std::string text =
      error_of(ExitCode::kMemory, [&] { pool.take(std::size_t{10} << 20, StreamKind::kCompute); });
  CHECK(contains(text,
                 "out of memory on NVIDIA H200: 10.0 MiB needed, 4.0 MiB free of 141.00 GiB, 60.0 "
                 "MiB in use by tensors"));
  pool.give_back(b);
  CHECK(pool.take(1, StreamKind::kCompute).data != nullptr);
}

TEST_CASE(
    "cuda/events: a stream waits for the recording that it was told, and for none that is done") {
  CudaBackend backend(0, false, false, true);
  shim::start_recording();
  const Event first = backend.record();
  backend.wait(first);  // its own stream: nothing to wait for
  {
    const StreamScope scope(backend, StreamKind::kUpdate);
    backend.wait(first);
    backend.wait(Event{});  // of a backend without streams
  }
  std::vector<Call> calls = shim::stop_recording();
  REQUIRE(calls.size() == 2);
  CHECK(calls[0].kind == CallKind::kRecord);
  CHECK(calls[1].kind == CallKind::kWait);
  CHECK(calls[1].event == calls[0].event);
  CHECK(calls[1].recording == calls[0].recording);
  CHECK(calls[1].stream != calls[0].stream);

  for (std::size_t i = 0; i < 10 * EventRing::kHandles; ++i) backend.record();
  shim::start_recording();
  {
    const StreamScope scope(backend, StreamKind::kUpdate);
    backend.wait(first);
  }
  backend.synchronize(first);
  CHECK(shim::stop_recording().empty());
  CHECK(contains(error_of(ExitCode::kInternal, [&] { backend.wait(Event{1u << 30}); }),
                 "never recorded"));
}

TEST_CASE(
    "cuda/events: far ahead of the device no handle is recorded twice, and every wait is for its "
    "own") {
  CudaBackend backend(0, false, false, true);
  const tests::HeldDevice held;
  shim::start_recording();
  std::vector<Event> events;
  for (std::size_t i = 0; i < 3 * EventRing::kHandles; ++i) events.push_back(backend.record());
  {
    const StreamScope scope(backend, StreamKind::kUpdate);
    backend.wait(events[5]);
  }
  backend.synchronize(events[7]);
  backend.synchronize(events[7]);
  std::vector<Call> calls = shim::stop_recording();
  std::vector<Call> records;
  std::copy_if(calls.begin(), calls.end(), std::back_inserter(records),
               [](const Call& c) { return c.kind == CallKind::kRecord; });
  REQUIRE(records.size() == events.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) REQUIRE(records[i].event != records[j].event);
  }
  REQUIRE(calls.size() >= 2);
  // the second synchronize found it done
  const Call &wait = calls[calls.size() - 2], &host = calls.back();
  CHECK(wait.kind == CallKind::kWait);
  CHECK(wait.event == records[5].event);
  CHECK(host.kind == CallKind::kHostWait);
  CHECK(host.event == records[7].event);
}

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
  const Machine machine(small);
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

TEST_CASE("cuda/staging: copies to the device wait for it only where all pinned memory is in use") {
  CudaBackend backend(0, false, false, true);
  const tests::HeldDevice held;
  std::vector<float> numbers(100);
  const Tensor tensor(backend, Shape{100}, DType::kFloat32);
  const auto before = runtime_counters().host_waits;
  for (int i = 0; i < 32; ++i) backend.copy_from_host(numbers.data(), tensor);
  const auto full = runtime_counters().host_waits;
  backend.copy_from_host(numbers.data(), tensor);
  CHECK(runtime_counters().host_waits == full + 1);
  CHECK(full == before);
}

TEST_CASE("cuda/streams: the update and the communication go first") {
  shim::start_recording();
  { const CudaBackend backend(0, false, false, true); }
  std::vector<std::string> names;
  for (const Call& call : shim::stop_recording()) {
    if (call.kind == CallKind::kCreateStream)
      names.push_back(call.label + (call.high_priority ? " high" : ""));
  }
  CHECK(names ==
        std::vector<std::string>{"compute", "update high", "communication high", "upload"});
}

TEST_CASE("cuda/open: rank i takes device i, and every reason against it comes with its remedy") {
  const std::vector<DeviceInfo> two = {gpu_of(9, 0), gpu_of(8, 0)};
  CHECK(choose_device({0, 2}, two, "", nullptr).device == 0);
  CHECK(choose_device({1, 2}, two, "", nullptr).device == 1);
  CHECK(choose_device({3, 4, true}, two, "", nullptr).device == 1);
  CHECK(choose_device({0, 1}, std::vector{gpu_of(12, 0)}, "", nullptr).device == 0);
  const auto message = [](const DeviceRequest& request, const std::vector<DeviceInfo>& devices,
                          const char* visible = nullptr) {
    const DeviceChoice choice = choose_device(request, devices, "", visible);
    CHECK(choice.device == -1);
    CHECK(choice.message.size() < 400);
    return choice.message;
  };
  CHECK(contains(message({0, 4}, two),
                 "4 ranks on this host but 2 GPUs; start at most 2 ranks a host, or set "
                 "STARLING_SHARE_GPUS=1"));
  CHECK(contains(message({1, 2}, {gpu_of(9, 0)}), "1 GPU; start at most 1 rank a host"));
  CHECK(contains(message({0, 1}, {gpu_of(7, 5, "Tesla T4")}),
                 "GPU 0, Tesla T4, is an sm_75; this plug-in has code for sm_80, sm_90, sm_100"));
  CHECK(contains(message({1, 2}, {gpu_of(9, 0), gpu_of(7, 0)}), "GPU 1"));
  CHECK(message({-1, 1}, two) == "a local rank of -1; it counts from 0");
  CHECK(contains(message({0, 1}, {}, ""), "CUDA_VISIBLE_DEVICES=(empty)"));
  CHECK(contains(message({0, 1}, {}, "7"), "CUDA_VISIBLE_DEVICES=7"));
  CHECK(contains(message({0, 1}, {}), "nvidia-smi"));
  DeviceInfo old = gpu_of(9, 0);
  old.driver_version = 12080;
  CHECK(contains(
      message({0, 1}, {old}),
      "the NVIDIA driver supports CUDA 12.8, this program needs 13.0; install a newer driver"));
  CHECK(choose_device({0, 1}, {}, "no driver is loaded", nullptr).message == "no driver is loaded");
}

TEST_CASE("cuda/open: the plug-in's entry point never throws") {
  StarlingCudaOpening opening{};
  opening.abi = kStarlingCudaAbi;
  opening.local_size = 1;
  const auto refused = [&](const shim::FakeMachine& fake) {
    const Machine machine(fake);
    CHECK(starling_cuda_open(&opening) == kStarlingCudaAbi);
    CHECK(opening.backend == nullptr);
    return std::string(opening.message);
  };
  shim::FakeMachine no_driver;
  no_driver.no_driver = std::string(2000, 'x') + "\n";
  CHECK(refused(no_driver) == std::string(511, 'x'));
  shim::FakeMachine none;
  none.devices.clear();
  CHECK(!refused(none).empty());
  shim::FakeMachine turing;
  turing.devices = {gpu_of(7, 5)};
  CHECK(contains(refused(turing), "sm_75"));
}

}  // namespace starling::cuda
