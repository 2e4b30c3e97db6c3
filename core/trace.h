#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

/// Lanes of the timeline of one rank: what its host does (on a GPU: issues, and waits for), and
/// what the streams of its device do.
enum class TraceLane : std::uint8_t {
  kCompute,
  kUpdate,
  kExchange,
  kLoader,
  kDeviceCompute,
  kDeviceUpdate,
  kDeviceExchange
};

/// Collects spans of one rank's work for the file of --trace (Chrome's trace event format:
/// Perfetto, chrome://tracing). Thread-safe. A thread's spans go to the tracer that was installed
/// on it; with none installed a span costs a branch.
class Tracer {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Tracer(int rank) : rank_(rank) {}
  /// The calling thread's spans go nowhere any more where they went here.
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  void add(TraceLane lane, std::string name, Clock::time_point begin, Clock::time_point end);
  /// The events as JSON objects separated by commas, times in microseconds since `origin`.
  std::string events(Clock::time_point origin) const;

  /// Makes `tracer` (or none) the calling thread's.
  static void install(Tracer* tracer);
  static Tracer* current();

 private:
  struct Span {
    TraceLane lane;
    std::string name;
    Clock::time_point begin, end;
  };
  int rank_;
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
};

/// What else is told of spans of the host as they begin and end, on their thread: a profiler's
/// ranges.
struct TraceHook {
  void (*begin)(const char* name);
  void (*end)();
  bool always = false;  ///< also where no tracer is installed
};
/// The hook stays valid until the process ends.
void set_trace_hook(const TraceHook* hook);
const TraceHook* trace_hook();

/// The hook, where the calling thread's spans go to it.
inline const TraceHook* active_trace_hook() {
  const TraceHook* hook = trace_hook();
  return hook && (hook->always || Tracer::current()) ? hook : nullptr;
}

/// "update bucket 3"; the verb alone where `what` is empty.
std::string span_name(std::string_view verb, std::string_view what);

/// A span of the calling thread's work, from construction to destruction.
class TraceSpan {
 public:
  explicit TraceSpan(std::string_view verb, std::string_view what = {},
                     TraceLane lane = TraceLane::kCompute)
      : tracer_(Tracer::current()), hook_(active_trace_hook()) {
    if (tracer_ || hook_) start(verb, what, lane);
  }
  ~TraceSpan() {
    if (hook_) hook_->end();
    if (tracer_) tracer_->add(lane_, std::move(name_), begin_, Tracer::Clock::now());
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  void start(std::string_view verb, std::string_view what, TraceLane lane);
  Tracer* tracer_;
  const TraceHook* hook_;
  TraceLane lane_ = TraceLane::kCompute;
  std::string name_;
  Tracer::Clock::time_point begin_;
};

/// A range for the hook alone: the calling thread hands work to a device, whose time is a
/// DeviceSpan of the same name.
class TraceRange {
 public:
  explicit TraceRange(std::string_view verb, std::string_view what = {})
      : hook_(active_trace_hook()) {
    if (hook_) hook_->begin(span_name(verb, what).c_str());
  }
  ~TraceRange() {
    if (hook_) hook_->end();
  }
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  const TraceHook* hook_;
};

}  // namespace starling
