#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/shim/recorder.h"

// The runtime on host memory. Everything happens at once, in issue order, so an event is done when it is recorded.
namespace starling::cuda {
namespace {

struct FakeEvent {
  std::uint64_t recordings = 0;
  std::atomic<std::uint64_t> place{0};  ///< of the last recording in the issue order of all
};
struct FakeStream {
  std::string name;
};

struct World {
  std::mutex mutex;
  shim::FakeMachine machine;
  bool recording = false;
  std::vector<shim::Call> calls;
  std::map<void*, std::size_t> blocks;  ///< of device memory
  std::size_t in_use = 0;
  std::atomic<bool> held{false};
  std::atomic<std::uint64_t> recorded{0}, reached{0};  ///< recordings so far; while held, up to which the device has come
  std::atomic<std::uint64_t> allocations{0}, host_waits{0}, launches{0};

  void note(shim::Call call) {
    const std::lock_guard lock(mutex);
    if (recording) calls.push_back(std::move(call));
  }
};
World& world() {
  static World one;
  return one;
}

std::uint64_t recording_of(EventHandle event) { return static_cast<FakeEvent*>(event)->recordings; }

/// The device works in issue order: with this all before it is done.
void reach(std::uint64_t place) {
  std::uint64_t before = world().reached;
  while (before < place && !world().reached.compare_exchange_weak(before, place)) {
  }
}

void* take(std::size_t bytes) { return std::aligned_alloc(512, (bytes + 511) / 512 * 512); }

}  // namespace

namespace shim {

void start_recording() {
  const std::lock_guard lock(world().mutex);
  world().recording = true;
  world().calls.clear();
}
std::vector<Call> stop_recording() {
  const std::lock_guard lock(world().mutex);
  world().recording = false;
  return std::exchange(world().calls, {});
}
void hold_events(bool held) {
  reach(world().recorded);
  world().held = held;
}
void note_mark(const std::string& label) { world().note({.kind = CallKind::kMark, .label = label}); }
void note_launch(StreamHandle stream, const char* label) {
  ++world().launches;
  world().note({.kind = CallKind::kLaunch, .stream = stream, .label = label});
}
void set_machine(const FakeMachine& machine) {
  const std::lock_guard lock(world().mutex);
  world().machine = machine;
}

}  // namespace shim

int device_count(std::string& why) {
  const std::lock_guard lock(world().mutex);
  why = world().machine.no_driver;
  return why.empty() ? static_cast<int>(world().machine.devices.size()) : -1;
}
DeviceInfo device_info(int device) {
  const std::lock_guard lock(world().mutex);
  return world().machine.devices.at(static_cast<std::size_t>(device));
}
void use_device(int device) { require(device >= 0, "shim", "device {}", device); }
std::size_t free_memory() {
  const std::lock_guard lock(world().mutex);
  const std::size_t all = world().machine.memory ? world().machine.memory : world().machine.devices.at(0).total_memory;
  return all - std::min(all, world().in_use);
}

StreamHandle create_stream(const char* name, bool high_priority) {
  auto* stream = new FakeStream{name};
  world().note({.kind = shim::CallKind::kCreateStream, .stream = stream, .label = name, .high_priority = high_priority});
  return stream;
}
void destroy_stream(StreamHandle stream) noexcept { delete static_cast<FakeStream*>(stream); }

EventHandle create_event() {
  auto* event = new FakeEvent;
  world().note({.kind = shim::CallKind::kCreateEvent, .event = event});
  return event;
}
void destroy_event(EventHandle event) noexcept { delete static_cast<FakeEvent*>(event); }
void record_event(EventHandle event, StreamHandle stream) {
  const std::uint64_t recording = ++static_cast<FakeEvent*>(event)->recordings;
  static_cast<FakeEvent*>(event)->place = ++world().recorded;
  world().note({.kind = shim::CallKind::kRecord, .stream = stream, .event = event, .recording = recording});
}
void stream_wait(StreamHandle stream, EventHandle event) {
  world().note({.kind = shim::CallKind::kWait, .stream = stream, .event = event, .recording = recording_of(event)});
}
bool event_done(EventHandle event) { return !world().held || static_cast<FakeEvent*>(event)->place <= world().reached; }
void host_wait(EventHandle event) {
  reach(static_cast<FakeEvent*>(event)->place);
  ++world().host_waits;
  world().note({.kind = shim::CallKind::kHostWait, .event = event, .recording = recording_of(event)});
}
void host_wait_stream(StreamHandle stream) {
  reach(world().recorded);
  ++world().host_waits;
  world().note({.kind = shim::CallKind::kHostWait, .stream = stream});
}

void* device_allocate(std::size_t bytes) {
  ++world().allocations;
  void* memory = nullptr;
  {
    const std::lock_guard lock(world().mutex);
    const std::size_t most = world().machine.memory;
    if (most != 0 && world().in_use + bytes > most) return nullptr;
    memory = take(bytes);
    if (!memory) return nullptr;
    world().blocks[memory] = bytes;
    world().in_use += bytes;
  }
  std::memset(memory, 0xff, bytes);  // NaN: what nobody wrote must not count
  world().note({.kind = shim::CallKind::kAllocate, .label = "device", .to = memory, .bytes = bytes});
  return memory;
}
void device_free(void* memory) noexcept {
  {
    const std::lock_guard lock(world().mutex);
    const auto it = world().blocks.find(memory);
    if (it == world().blocks.end()) std::abort();  // freed twice, or never allocated
    world().in_use -= it->second;
    world().blocks.erase(it);
  }
  world().note({.kind = shim::CallKind::kFree, .label = "device", .to = memory});
  std::free(memory);
}
void* pinned_allocate(std::size_t bytes) {
  ++world().allocations;
  void* memory = take(bytes);
  world().note({.kind = shim::CallKind::kAllocate, .label = "pinned", .to = memory, .bytes = bytes});
  return memory;
}
void pinned_free(void* memory) noexcept {
  world().note({.kind = shim::CallKind::kFree, .label = "pinned", .to = memory});
  std::free(memory);
}

void copy_async(void* to, const void* from, std::size_t bytes, CopyKind kind, StreamHandle stream) {
  world().note({.kind = shim::CallKind::kCopy, .stream = stream, .from = from, .to = to, .bytes = bytes, .copy = kind});
  std::memmove(to, from, bytes);
}
void set_async(void* memory, int byte, std::size_t bytes, StreamHandle stream) {
  world().note({.kind = shim::CallKind::kSet, .stream = stream, .to = memory, .bytes = bytes});
  std::memset(memory, byte, bytes);
}

void launch_kernel(const void*, Dim3, Dim3, std::size_t, StreamHandle, void**, const char* label) {
  fail(ExitCode::kInternal, "shim", "{} was compiled for a GPU; in this build launch() runs kernels itself", label);
}

RuntimeCounters runtime_counters() { return {world().allocations, world().host_waits, world().launches}; }

}  // namespace starling::cuda
