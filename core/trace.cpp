#include "core/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>

namespace starling {

namespace {

thread_local Tracer* current_tracer = nullptr;
std::atomic<const TraceHook*> current_hook{nullptr};

constexpr TraceLane kLanes[] = {TraceLane::kCompute,       TraceLane::kUpdate,
                                TraceLane::kExchange,      TraceLane::kLoader,
                                TraceLane::kDeviceCompute, TraceLane::kDeviceUpdate,
                                TraceLane::kDeviceExchange};

constexpr std::string_view name_of(TraceLane lane) {
  switch (lane) {
    case TraceLane::kCompute: return "compute";
    case TraceLane::kUpdate: return "update";
    case TraceLane::kExchange: return "exchange";
    case TraceLane::kLoader: return "loader";
    case TraceLane::kDeviceCompute: return "compute (device)";
    case TraceLane::kDeviceUpdate: return "update (device)";
    case TraceLane::kDeviceExchange: return "exchange (device)";
  }
  return "?";
}

/// Names are for people here: readers of timelines take no lone surrogates.
std::string label_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Tracer::~Tracer() {
  if (current_tracer == this) current_tracer = nullptr;
}

void Tracer::add(TraceLane lane, std::string name, Clock::time_point begin, Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  spans_.push_back({lane, std::move(name), begin, end});
}

std::string Tracer::events(Clock::time_point origin) const {
  const auto microseconds = [](Clock::duration duration) {
    return static_cast<double>(
               std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count()) /
           1e3;
  };
  std::string result = fmt::format(
      R"({{"ph":"M","name":"process_name","pid":{0},"tid":0,"args":{{"name":"rank {0}"}}}},)"
      R"({{"ph":"M","name":"process_sort_index","pid":{0},"tid":0,"args":{{"sort_index":{0}}}}})",
      rank_);
  const std::lock_guard lock(mutex_);
  const bool device = std::any_of(spans_.begin(), spans_.end(), [](const Span& span) {
    return span.lane >= TraceLane::kDeviceCompute;
  });
  for (const TraceLane lane : kLanes) {
    if (lane >= TraceLane::kDeviceCompute && !device) continue;
    result += fmt::format(
        R"(,{{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})", rank_,
        static_cast<int>(lane), name_of(lane));
  }
  for (const Span& span : spans_) {
    // Nanoseconds are kept, so that spans which nest in time nest in the file.
    result += fmt::format(
        R"(,{{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f}}})",
        label_text(span.name), name_of(span.lane), rank_, static_cast<int>(span.lane),
        microseconds(span.begin - origin), microseconds(span.end - span.begin));
  }
  return result;
}

void Tracer::install(Tracer* tracer) { current_tracer = tracer; }
Tracer* Tracer::current() { return current_tracer; }

void set_trace_hook(const TraceHook* hook) { current_hook = hook; }
const TraceHook* trace_hook() { return current_hook.load(std::memory_order_acquire); }

std::string span_name(std::string_view verb, std::string_view what) {
  std::string name(verb);
  if (!what.empty()) (name += ' ') += what;
  return name;
}

void TraceSpan::start(std::string_view verb, std::string_view what, TraceLane lane) {
  lane_ = lane;
  name_ = span_name(verb, what);
  if (hook_) hook_->begin(name_.c_str());
  begin_ = Tracer::Clock::now();
}

}  // namespace starling
