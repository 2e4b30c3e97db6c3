#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

/// Lanes of a rank's timeline: for its host threads, and for its device's streams.
enum class TraceLane : std::uint8_t {
  kCompute,
  kUpdate,
  kExchange,
  kLoader,
  kDeviceCompute,
  kDeviceUpdate,
  kDeviceExchange
};

/// Collects the spans of one rank for --trace (Chrome's trace event format, for Perfetto and
/// chrome://tracing). Thread-safe. A thread's spans go to the tracer installed on it; without one a
/// span costs a branch.
class Tracer {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Tracer(int rank) : rank_(rank) {}
  /// Uninstalls it from the calling thread.
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  void add(TraceLane lane, std::string name, Clock::time_point begin, Clock::time_point end);
  /// The events as JSON objects separated by commas, times in microseconds since `origin`.
  std::string events(Clock::time_point origin) const;

  /// Installs `tracer` (or null) on the calling thread.
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

/// Called at the beginning and end of spans, on their thread: for a profiler's ranges.
struct TraceHook {
  void (*begin)(const char* name);
  void (*end)();
  bool always = false;  ///< also without a tracer
};
/// The hook must stay valid until the process exits.
void set_trace_hook(const TraceHook* hook);
const TraceHook* trace_hook();

/// The hook if it is called for the calling thread's spans; otherwise null.
inline const TraceHook* active_trace_hook() {
  const TraceHook* hook = trace_hook();
  return hook && (hook->always || Tracer::current()) ? hook : nullptr;
}

/// "update bucket 3"; only the verb if `what` is empty.
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

/// A range for the hook only, around calls that issue a device's work, which is timed by a
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
