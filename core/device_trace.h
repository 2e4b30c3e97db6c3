#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "core/backend.h"
#include "core/device_clock.h"
#include "core/trace.h"

namespace starling {

/// During its lifetime, passes the device times of the calling thread's DeviceSpans to `tracer`.
/// Does nothing for backends without a clock (synchronous ones). The backend outlives it.
class DeviceTrace {
 public:
  DeviceTrace(Tracer& tracer, Backend& backend);
  ~DeviceTrace();
  DeviceTrace(const DeviceTrace&) = delete;
  DeviceTrace& operator=(const DeviceTrace&) = delete;

  /// Waits for the device, so that the tracer has all spans.
  void finish();
  /// The calling thread's, if it has a clock; otherwise null.
  static DeviceTrace* current();

 private:
  friend class DeviceSpan;
  struct Span {
    TraceLane lane;
    std::string name;
    DeviceClock::Mark begin, end;
    bool began = false;  ///< the time of `begin` is known
    DeviceClock::Time begin_time{};
  };
  void collect();

  Tracer& tracer_;
  Backend& backend_;
  std::unique_ptr<DeviceClock> clock_;
  std::deque<Span> pending_;  ///< in the order of issue
};

/// A span of the device's work: what the enclosed calls issue to the current stream. Not recorded
/// in a capture, where nothing executes; a graph's launch is one span, made by the caller.
class DeviceSpan {
 public:
  DeviceSpan(TraceLane lane, std::string_view verb, std::string_view what = {})
      : trace_(DeviceTrace::current()) {
    if (trace_) start(lane, verb, what);
  }
  ~DeviceSpan() {
    if (trace_) end();
  }
  DeviceSpan(const DeviceSpan&) = delete;
  DeviceSpan& operator=(const DeviceSpan&) = delete;

 private:
  void start(TraceLane lane, std::string_view verb, std::string_view what);
  void end() noexcept;
  DeviceTrace* trace_;
  TraceLane lane_ = TraceLane::kDeviceCompute;
  std::string name_;
  DeviceClock::Mark begin_ = 0;
};

}  // namespace starling
