#include "core/device_trace.h"

#include <utility>

namespace starling {

namespace {
thread_local DeviceTrace* current_trace = nullptr;
}

DeviceTrace::DeviceTrace(Tracer& tracer, Backend& backend)
    : tracer_(tracer), backend_(backend), clock_(backend.device_clock()) {
  if (clock_) current_trace = this;
}

DeviceTrace::~DeviceTrace() {
  if (current_trace == this) current_trace = nullptr;
}

DeviceTrace* DeviceTrace::current() { return current_trace; }

/// The leading spans whose end the device has reached.
void DeviceTrace::collect() {
  while (!pending_.empty()) {
    Span& span = pending_.front();
    if (!span.began) {
      const auto begin = clock_->time_of(span.begin);
      if (!begin) return;
      span.begin_time = *begin;
      span.began = true;
    }
    const auto end = clock_->time_of(span.end);
    if (!end) return;
    tracer_.add(span.lane, std::move(span.name), span.begin_time, *end);
    pending_.pop_front();
  }
}

void DeviceTrace::finish() {
  if (!clock_) return;
  backend_.synchronize();
  collect();
}

void DeviceSpan::start(TraceLane lane, std::string_view verb, std::string_view what) {
  if (trace_->backend_.capturing()) {
    trace_ = nullptr;
    return;
  }
  lane_ = lane;
  name_ = span_name(verb, what);
  begin_ = trace_->clock_->mark();
}

void DeviceSpan::end() noexcept {
  try {
    trace_->pending_.push_back({lane_, std::move(name_), begin_, trace_->clock_->mark()});
    trace_->collect();
  } catch (...) {
    // An error of the device shows in the next call that may throw; the timeline lacks this span.
  }
}

}  // namespace starling
