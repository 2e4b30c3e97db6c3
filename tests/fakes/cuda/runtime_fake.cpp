#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/fakes/cuda/capture.h"
#include "tests/fakes/cuda/recorder.h"

// The runtime on host memory. Everything happens at once, in issue order, so an event is done when
// it is recorded.
namespace starling::cuda {
namespace {

/// What keeps a stream stuck; kept until the process ends.
struct Hold {
  std::atomic<bool> open{false};
};
struct FakeEvent {
  std::atomic<std::uint64_t> recordings{0};
  std::atomic<std::uint64_t> place{0};  ///< of the last recording in the issue order of all
  bool timed = false;
  std::chrono::steady_clock::time_point time{};  ///< of the last recording, where timed
  std::atomic<Hold*> hold{nullptr};              ///< what its stream was stuck in then
  std::shared_ptr<shim::Capture> capture;        ///< where the last recording was a capture's
  shim::Capture::Clock captured;
};
struct FakeStream {
  std::string name;
  std::atomic<Hold*> hold{nullptr};
  std::shared_ptr<shim::Capture> capture;  ///< while it captures
};

bool stuck(const Hold* hold) { return hold && !hold->open; }

struct World {
  std::mutex mutex;
  shim::FakeMachine machine;
  bool recording = false, answers = false;
  std::vector<shim::Call> calls;
  std::map<void*, std::size_t> blocks;  ///< of device memory
  std::mutex mapping;
  std::map<void*, std::size_t> mapped;
  std::size_t in_use = 0;
  std::atomic<bool> held{false}, skipped{false};
  /// Recordings so far; while held, up to which the device has come
  std::atomic<std::uint64_t> recorded{0}, reached{0};
  std::atomic<std::uint64_t> allocations{0}, host_waits{0}, launches{0}, graph_launches{0};

  std::atomic<std::uint32_t> threads{0};
  std::deque<Hold> holds;

  void note(shim::Call call) {
    thread_local const std::uint32_t thread = ++threads;
    call.thread = thread;
    const std::lock_guard lock(mutex);
    if (recording && (answers || call.kind != shim::CallKind::kDone))
      calls.push_back(std::move(call));
  }
};
World& world() {
  static World one;
  return one;
}

/// Of the first device; world().mutex is held.
std::size_t all_memory() {
  return world().machine.memory ? world().machine.memory
                                : world().machine.devices.at(0).total_memory;
}

std::uint64_t recording_of(EventHandle event) { return static_cast<FakeEvent*>(event)->recordings; }

/// The host's wait for a stuck stream.
void wait_until_open(const Hold* hold) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (stuck(hold)) {
    if (std::chrono::steady_clock::now() > limit)
      fail(ExitCode::kInternal, "shim", "the host would wait for ever, for a stuck stream");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

/// The device works in issue order: with this all before it is done.
void reach(std::uint64_t place) {
  std::uint64_t before = world().reached;
  while (before < place && !world().reached.compare_exchange_weak(before, place)) {
  }
}

thread_local std::shared_ptr<shim::Capture> own_capture;  ///< that this thread began
thread_local bool relaxed = false;
thread_local StreamHandle launch_stream = nullptr;

shim::Capture* capture_of(StreamHandle stream) {
  return stream ? static_cast<FakeStream*>(stream)->capture.get() : nullptr;
}

/// The thread-local mode of a capture: what it does not allow is an error, and spoils the capture.
void refuse_in_capture(const char* call) {
  if (!shim::forbids_driver()) return;
  const std::string text = fmt::format(
      "{}: operation not permitted when stream is capturing (cudaErrorStreamCaptureUnsupported)",
      call);
  own_capture->spoil(text);
  fail(ExitCode::kInternal, "cuda", "{}", text);
}
/// Of an event that a capture has recorded there is nothing to ask.
void refuse_captured(EventHandle event, const char* call) {
  const auto& capture = static_cast<FakeEvent*>(event)->capture;
  if (!capture) return;
  const std::string text = fmt::format(
      "{}: operation not permitted on an event last recorded in a capturing stream "
      "(cudaErrorCapturedEvent)",
      call);
  if (!capture->over) capture->spoil(text);
  fail(ExitCode::kInternal, "cuda", "{}", text);
}
/// Work that a capture keeps, or that is done at once.
template <class F>
void do_or_keep(StreamHandle stream, const F& work) {
  if (shim::Capture* capture = capture_of(stream)) {
    capture->add(stream, work);
  } else if (!world().skipped) {
    work();
  }
}
/// The streams of a capture work again; events that it recorded stay its own.
void finish_capture(shim::Capture& capture) {
  capture.over = true;
  for (const StreamHandle stream : capture.streams())
    static_cast<FakeStream*>(stream)->capture.reset();
  own_capture.reset();
}

/// Full of NaN: what nobody wrote must not count. Large blocks, such as a pool's slab, map the
/// pages of one file over and over: what is touched of them alone costs.
void* take(std::size_t bytes) {
  constexpr std::size_t kPart = std::size_t{4} << 20;
  if (bytes < kPart) {
    void* memory = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
    if (memory && !world().skipped) std::memset(memory, 0xff, bytes);
    return memory;
  }
  static const int file = [] {
    const std::vector<char> part(kPart, '\xff');
    const int made = memfd_create("starling-fake-memory", MFD_CLOEXEC);
    return write(made, part.data(), kPart) == static_cast<ssize_t>(kPart) ? made : -1;
  }();
  const int access = PROT_READ | PROT_WRITE;
  void* memory = mmap(nullptr, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  if (file < 0) std::memset(memory, 0xff, bytes);  // a limit on files, as a test sets it
  for (std::size_t at = 0; file >= 0 && at < bytes; at += kPart) {
    if (mmap(static_cast<char*>(memory) + at, std::min(kPart, bytes - at), access,
             MAP_PRIVATE | MAP_FIXED, file, 0) == MAP_FAILED)
      fail(ExitCode::kMemory, "shim", "no memory can be mapped: {}", std::strerror(errno));
  }
  const std::lock_guard lock(world().mapping);
  world().mapped[memory] = bytes;
  return memory;
}
void give_back(void* memory) {
  const std::lock_guard lock(world().mapping);
  const auto it = world().mapped.find(memory);
  if (it == world().mapped.end()) return std::free(memory);
  munmap(memory, it->second);
  world().mapped.erase(it);
}

}  // namespace

namespace shim {

void start_recording(bool answers) {
  const std::lock_guard lock(world().mutex);
  world().answers = answers;
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
void let_events(std::uint64_t count) {
  reach(std::min<std::uint64_t>(world().recorded, world().reached + count));
}
std::uint64_t recordings() { return world().recorded; }
void let_events_to(std::uint64_t recording) {
  reach(std::min<std::uint64_t>(world().recorded, recording));
}
void hold_stream(StreamHandle stream) {
  const std::lock_guard lock(world().mutex);
  auto* fake = static_cast<FakeStream*>(stream);
  if (!stuck(fake->hold)) fake->hold = &world().holds.emplace_back();
}
void release_stream(StreamHandle stream) {
  if (Hold* hold = static_cast<FakeStream*>(stream)->hold) hold->open = true;
}
void skip_work(bool skipped) { world().skipped = skipped; }
void note_mark(const std::string& label) {
  world().note({.kind = CallKind::kMark, .label = label});
}
void note(Call call) { world().note(std::move(call)); }
void note_launch(StreamHandle stream, const char* label) {
  ++world().launches;
  world().note({.kind = CallKind::kLaunch, .stream = stream, .label = label});
}
bool captures(StreamHandle stream) { return capture_of(stream) != nullptr || world().skipped; }
std::string spoilt(StreamHandle stream) {
  const Capture* capture = capture_of(stream);
  return capture ? capture->spoiled() : std::string();
}
void keep_work(StreamHandle stream, std::function<void()> work) {
  if (shim::Capture* capture = capture_of(stream)) capture->add(stream, std::move(work));
}
bool forbids_driver() { return own_capture && !relaxed; }
StreamHandle launching() { return launch_stream; }
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
  return all_memory() - std::min(all_memory(), world().in_use);
}

StreamHandle create_stream(const char* name, bool high_priority) {
  auto* stream = new FakeStream{name};
  world().note({.kind = shim::CallKind::kCreateStream,
                .stream = stream,
                .label = name,
                .high_priority = high_priority});
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
  if (static_cast<FakeEvent*>(event)->timed)
    static_cast<FakeEvent*>(event)->time = std::chrono::steady_clock::now();
  static_cast<FakeEvent*>(event)->hold = static_cast<FakeStream*>(stream)->hold.load();
  if (static_cast<FakeStream*>(stream)->capture || static_cast<FakeEvent*>(event)->capture) {
    static_cast<FakeEvent*>(event)->capture = static_cast<FakeStream*>(stream)->capture;
    if (const shim::Capture* capture = capture_of(stream))
      static_cast<FakeEvent*>(event)->captured = capture->record(stream);
  }
  world().note(
      {.kind = shim::CallKind::kRecord, .stream = stream, .event = event, .recording = recording});
}
void stream_wait(StreamHandle stream, EventHandle event) {
  Hold* hold = static_cast<FakeEvent*>(event)->hold;
  auto* waiting = static_cast<FakeStream*>(stream);
  const auto& recorded = static_cast<FakeEvent*>(event)->capture;
  if (recorded != waiting->capture && (waiting->capture || recorded->over)) {
    const std::string text = fmt::format(
        "cudaStreamWaitEvent: dependency created on uncaptured work in another stream "
        "(cudaErrorStreamCaptureIsolation), stream {}",
        waiting->name);
    if (waiting->capture) waiting->capture->spoil(text);
    fail(ExitCode::kInternal, "cuda", "{}", text);
  }
  if (recorded) {
    waiting->capture = recorded;
    recorded->wait(stream, waiting->name, static_cast<FakeEvent*>(event)->captured);
  }
  if (stuck(hold) && !stuck(waiting->hold)) waiting->hold = hold;
  world().note({.kind = shim::CallKind::kWait,
                .stream = stream,
                .event = event,
                .recording = recording_of(event)});
}
bool event_done(EventHandle event) {
  refuse_in_capture("cudaEventQuery");
  refuse_captured(event, "cudaEventQuery");
  if (stuck(static_cast<FakeEvent*>(event)->hold)) return false;
  if (world().held && static_cast<FakeEvent*>(event)->place > world().reached) return false;
  world().note({.kind = shim::CallKind::kDone, .event = event, .recording = recording_of(event)});
  return true;
}
void host_wait(EventHandle event) {
  refuse_in_capture("cudaEventSynchronize");
  refuse_captured(event, "cudaEventSynchronize");
  wait_until_open(static_cast<FakeEvent*>(event)->hold);
  reach(static_cast<FakeEvent*>(event)->place);
  ++world().host_waits;
  world().note(
      {.kind = shim::CallKind::kHostWait, .event = event, .recording = recording_of(event)});
}
void host_wait_stream(StreamHandle stream) {
  refuse_in_capture("cudaStreamSynchronize");
  require(!capture_of(stream), "cuda",
          "cudaStreamSynchronize: operation not permitted when stream is capturing, stream {}",
          static_cast<FakeStream*>(stream)->name);
  wait_until_open(static_cast<FakeStream*>(stream)->hold);
  reach(world().recorded);
  ++world().host_waits;
  world().note({.kind = shim::CallKind::kHostWait, .stream = stream});
}

void* device_allocate(std::size_t bytes) {
  refuse_in_capture("cudaMalloc");
  ++world().allocations;
  void* memory = nullptr;
  {
    const std::lock_guard lock(world().mutex);
    if (world().in_use + bytes > all_memory()) return nullptr;
    memory = take(bytes);
    if (!memory) return nullptr;
    world().blocks[memory] = bytes;
    world().in_use += bytes;
  }
  world().note(
      {.kind = shim::CallKind::kAllocate, .label = "device", .to = memory, .bytes = bytes});
  return memory;
}
void device_free(void* memory) noexcept {
  if (shim::forbids_driver())
    own_capture->spoil(
        "cudaFree: operation not permitted when stream is capturing "
        "(cudaErrorStreamCaptureUnsupported)");
  {
    const std::lock_guard lock(world().mutex);
    const auto it = world().blocks.find(memory);
    if (it == world().blocks.end()) std::abort();  // freed twice, or never allocated
    world().in_use -= it->second;
    world().blocks.erase(it);
  }
  world().note({.kind = shim::CallKind::kFree, .label = "device", .to = memory});
  give_back(memory);
}
void* pinned_allocate(std::size_t bytes) {
  refuse_in_capture("cudaHostAlloc");
  ++world().allocations;
  {
    const std::lock_guard lock(world().mutex);
    if (world().machine.pinned != 0 && bytes > world().machine.pinned) return nullptr;
  }
  void* memory = take(bytes);
  world().note(
      {.kind = shim::CallKind::kAllocate, .label = "pinned", .to = memory, .bytes = bytes});
  return memory;
}
void pinned_free(void* memory) noexcept {
  if (shim::forbids_driver()) {
    own_capture->spoil(
        "cudaFreeHost: operation not permitted when stream is capturing "
        "(cudaErrorStreamCaptureUnsupported)");
  }
  world().note({.kind = shim::CallKind::kFree, .label = "pinned", .to = memory});
  give_back(memory);
}

void copy_async(void* to, const void* from, std::size_t bytes, CopyKind kind, StreamHandle stream) {
  world().note({.kind = shim::CallKind::kCopy,
                .stream = stream,
                .from = from,
                .to = to,
                .bytes = bytes,
                .copy = kind});
  if (world().skipped && kind == CopyKind::kDeviceToHost && !capture_of(stream))
    std::memset(to, 0, bytes);
  do_or_keep(stream, [=] { std::memmove(to, from, bytes); });
}
void set_async(void* memory, int byte, std::size_t bytes, StreamHandle stream) {
  world().note({.kind = shim::CallKind::kSet, .stream = stream, .to = memory, .bytes = bytes});
  do_or_keep(stream, [=] { std::memset(memory, byte, bytes); });
}

void launch_kernel(const void*, Dim3, Dim3, std::size_t, StreamHandle, void**, const char* label) {
  fail(ExitCode::kInternal, "shim",
       "{} was compiled for a GPU; in this build launch() runs kernels itself", label);
}

RuntimeCounters runtime_counters() {
  return {world().allocations, world().host_waits, world().launches, world().graph_launches};
}

EventHandle create_timed_event() {
  const EventHandle event = create_event();
  static_cast<FakeEvent*>(event)->timed = true;
  return event;
}
double seconds_between(EventHandle begin, EventHandle end) {
  const auto *from = static_cast<FakeEvent*>(begin), *to = static_cast<FakeEvent*>(end);
  require(from->timed && to->timed && from->recordings > 0 && to->recordings > 0, "shim",
          "the time between events that have none");
  require(event_done(begin) && event_done(end), "shim",
          "the time between events that are not done");
  return std::chrono::duration<double>(to->time - from->time).count();
}

void begin_capture(StreamHandle stream) {
  auto* fake = static_cast<FakeStream*>(stream);
  require(!own_capture && !fake->capture, "cuda",
          "cudaStreamBeginCapture: a capture is under way (cudaErrorIllegalState)");
  fake->capture = own_capture = std::make_shared<shim::Capture>(stream, fake->name);
  world().note({.kind = shim::CallKind::kBeginCapture, .stream = stream});
}
GraphHandle end_capture(StreamHandle stream, bool own_priorities) {
  const auto capture = static_cast<FakeStream*>(stream)->capture;
  require(capture && capture->origin() == stream, "cuda",
          "cudaStreamEndCapture: the stream began no capture (cudaErrorIllegalState)");
  require(
      capture == own_capture, "cuda",
      "cudaStreamEndCapture: another thread began the capture (cudaErrorStreamCaptureWrongThread)");
  finish_capture(*capture);
  if (!capture->spoiled().empty()) {
    world().note({.kind = shim::CallKind::kEndCapture, .stream = stream});
    fail(ExitCode::kInternal, "cuda", "cudaStreamEndCapture: the capture failed ({})",
         capture->spoiled());
  }
  if (const std::string loose = capture->unjoined(); !loose.empty()) {
    world().note({.kind = shim::CallKind::kEndCapture, .stream = stream});
    fail(ExitCode::kInternal, "cuda",
         "cudaStreamEndCapture: unjoined work (cudaErrorStreamCaptureUnjoined); the capturing "
         "stream has not waited for the work of stream "
         "{}",
         loose);
  }
  auto* graph = new shim::FakeGraph{capture->take_work()};
  world().note({.kind = shim::CallKind::kEndCapture,
                .stream = stream,
                .graph = graph,
                .own_priorities = own_priorities});
  return graph;
}
void check_capturing(StreamHandle stream) {
  require(shim::captures(stream), "cuda", "the capture does not reach this stream");
  if (shim::spoilt(stream).empty()) return;
  fail(ExitCode::kInternal, "cuda",
       "the capture was spoilt by an earlier call that a capture does not allow");
}
void abandon_capture(StreamHandle stream) noexcept {
  const auto capture = static_cast<FakeStream*>(stream)->capture;
  if (!capture || capture != own_capture) return;
  finish_capture(*capture);
  capture->spoil("abandoned");  // what the work holds goes now, whoever remembers the capture
  world().note({.kind = shim::CallKind::kEndCapture, .stream = stream});
}
void launch_graph(GraphHandle graph, StreamHandle stream) {
  require(!capture_of(stream), "shim", "a graph within a graph");
  ++world().graph_launches;
  world().note({.kind = shim::CallKind::kLaunchGraph, .stream = stream, .graph = graph});
  const struct Launching {
    explicit Launching(StreamHandle on) { launch_stream = on; }
    ~Launching() { launch_stream = nullptr; }
  } launching(stream);
  if (world().skipped) return;
  for (const auto& work : static_cast<shim::FakeGraph*>(graph)->work) work();
}
void destroy_graph(GraphHandle graph) noexcept {
  if (!graph) return;
  world().note({.kind = shim::CallKind::kDestroyGraph, .graph = graph});
  delete static_cast<shim::FakeGraph*>(graph);
}

RelaxedCapture::RelaxedCapture() : before_(relaxed ? 1 : 0) { relaxed = true; }
RelaxedCapture::~RelaxedCapture() { relaxed = before_ != 0; }

}  // namespace starling::cuda
