#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "core/backend.h"
#include "core/device_clock.h"
#include "core/trace.h"

namespace starling {

/// While it lives, the device's times of the calling thread's DeviceSpans go to `tracer`, as the
/// device comes to them. Of a backend without a clock (a CPU, whose work is done when a call
/// returns) there are none. The backend outlives it.
class DeviceTrace {
 public:
  DeviceTrace(Tracer& tracer, Backend& backend);
  ~DeviceTrace();
  DeviceTrace(const DeviceTrace&) = delete;
  DeviceTrace& operator=(const DeviceTrace&) = delete;

  /// Waits for the device; the tracer has all spans then.
  void finish();
  /// The calling thread's, where it has a clock.
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
  std::deque<Span> pending_;  ///< in the order in which they were issued
};

/// A span of the device's work: what the enclosed calls issue to the stream that is current at
/// construction, and again at destruction. None in a capture, where nothing is done yet and no time
/// may be asked for: a replayed graph is one span, of whoever launches it.
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
