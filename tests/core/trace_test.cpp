#include <doctest/doctest.h>
#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/device_trace.h"
#include "core/forwarding_backend.h"
#include "core/trace.h"

using namespace starling;
using nlohmann::json;

namespace {

std::vector<json> spans_of(const Tracer& tracer, Tracer::Clock::time_point origin) {
  std::vector<json> spans;
  for (json& event : json::parse(fmt::format("[{}]", tracer.events(origin)))) {
    if (event["ph"] == "X") spans.push_back(std::move(event));
  }
  return spans;
}

/// What the hook was told on this thread; "" ends a range
thread_local std::vector<std::string> ranges;
std::atomic<int> told{0};

/// Counts its marks: mark n is passed once `reached` is n, n milliseconds after `begin`.
struct CountingClock final : DeviceClock {
  Mark last = 0, reached = 0;
  Time begin{};
  Mark mark() override { return ++last; }
  std::optional<Time> time_of(Mark mark) override {
    if (mark > reached) return std::nullopt;
    return begin + std::chrono::milliseconds(mark);
  }
};

class ClockedBackend final : public ForwardingBackend {
 public:
  ClockedBackend() : ForwardingBackend(meta_backend()) {}
  CountingClock* clock = nullptr;
  std::unique_ptr<DeviceClock> device_clock() override {
    auto made = std::make_unique<CountingClock>();
    clock = made.get();
    return made;
  }
  using ForwardingBackend::synchronize;
  void synchronize() override { clock->reached = clock->last; }
};

}  // namespace

TEST_CASE("core/trace: events are JSON with rank, lane, name and microseconds") {
  Tracer tracer(3);
  const auto origin = Tracer::Clock::now();
  using namespace std::chrono;
  tracer.add(TraceLane::kCompute, "forward \"conv\"\n\x01\xff", origin + nanoseconds(1500),
             origin + microseconds(10));
  tracer.add(TraceLane::kExchange, "exchange bucket 2", origin - milliseconds(1), origin);
  const std::vector<json> spans = spans_of(tracer, origin);
  REQUIRE(spans.size() == 2);
  CHECK(spans[0]["name"].get<std::string>().starts_with("forward \"conv\"\n"));
  CHECK(spans[0]["ts"] == 1.5);
  CHECK(spans[0]["dur"] == 8.5);
  CHECK(spans[0]["pid"] == 3);
  CHECK(spans[1]["ts"] == -1000.0);
  CHECK(spans[1]["tid"] != spans[0]["tid"]);
  int names = 0;
  for (const json& event : json::parse(fmt::format("[{}]", tracer.events(origin)))) {
    if (event["ph"] != "M") continue;
    ++names;
    CHECK(event["pid"] == 3);
    if (event["name"] == "process_name") CHECK(event["args"]["name"] == "rank 3");
  }
  CHECK(names == 6);
}

TEST_CASE("core/trace: spans go to the thread's tracer, nest, and cost nothing without one") {
  Tracer tracer(0), other(1);
  const auto origin = Tracer::Clock::now();
  { const TraceSpan nobody("lost"); }
  Tracer::install(&tracer);
  {
    const TraceSpan outer("backward", "conv2d");
    const TraceSpan inner("update", "bucket 1", TraceLane::kUpdate);
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&other] {
      CHECK(Tracer::current() == nullptr);
      Tracer::install(&other);
      for (int i = 0; i < 100; ++i) const TraceSpan span("exchange", {}, TraceLane::kExchange);
    });
  }
  for (std::thread& thread : threads) thread.join();
  Tracer::install(nullptr);
  { const TraceSpan nobody("lost"); }
  const std::vector<json> spans = spans_of(tracer, origin);
  REQUIRE(spans.size() == 2);
  CHECK(spans[0]["name"] == "update bucket 1");  // the inner one ends first
  CHECK(spans[1]["name"] == "backward conv2d");
  const auto begin = [](const json& span) { return span["ts"].get<double>(); };
  const auto end = [&](const json& span) { return begin(span) + span["dur"].get<double>(); };
  CHECK(begin(spans[1]) <= begin(spans[0]));
  CHECK(end(spans[1]) >= end(spans[0]) - 1e-6);
  CHECK(spans_of(other, origin).size() == 400);
}

TEST_CASE("core/trace: with its tracer's end, by an error too, a thread's spans go nowhere") {
  try {
    Tracer tracer(0);
    Tracer::install(&tracer);
    throw 1;
  } catch (int) {
  }
  CHECK(Tracer::current() == nullptr);
  { const TraceSpan nobody("lost"); }
}

TEST_CASE(
    "core/trace: the hook hears of spans that are traced, on their thread, and of all where it "
    "asks for all") {
  static const TraceHook traced{[](const char* name) { ranges.emplace_back(name), ++told; },
                                [] { ranges.emplace_back(); }};
  static const TraceHook all{traced.begin, traced.end, true};
  Tracer tracer(0);
  for (const TraceHook* hook : {&traced, &all}) {
    set_trace_hook(hook);
    ranges.clear();
    { const TraceSpan span("nobody"); }
    CHECK(ranges ==
          (hook->always ? std::vector<std::string>{"nobody", ""} : std::vector<std::string>{}));
    ranges.clear();
    Tracer::install(&tracer);
    {
      const TraceSpan outer("step", "3");
      const TraceSpan inner("update", "bucket 1", TraceLane::kUpdate);
      const TraceRange issued("exchange", "bucket 2");
      std::thread([] { CHECK(ranges.empty()); }).join();
    }
    Tracer::install(nullptr);
    CHECK(ranges ==
          std::vector<std::string>{"step 3", "update bucket 1", "exchange bucket 2", "", "", ""});
    ranges.clear();
    { const TraceRange nobody("exchange"); }
    CHECK(ranges ==
          (hook->always ? std::vector<std::string>{"exchange", ""} : std::vector<std::string>{}));
  }
  set_trace_hook(nullptr);
  told = 0;
  Tracer::install(&tracer);
  { const TraceSpan span("step"); }
  Tracer::install(nullptr);
  CHECK(told == 0);
}

TEST_CASE(
    "core/trace: the device's spans come in lanes of their own, as the device passes their ends") {
  Tracer tracer(2);
  const auto origin = Tracer::Clock::now();
  ClockedBackend backend;
  { const DeviceSpan nobody(TraceLane::kDeviceCompute, "lost"); }
  {
    DeviceTrace trace(tracer, backend);
    backend.clock->begin = origin;
    { const DeviceSpan span(TraceLane::kDeviceUpdate, "update", "bucket 0"); }  // marks 1 and 2
    {
      const DeviceSpan outer(TraceLane::kDeviceCompute, "backward");  // marks 3 and 6
      const DeviceSpan inner(TraceLane::kDeviceExchange, "exchange", "bucket 0");
      std::thread([] { CHECK(DeviceTrace::current() == nullptr); }).join();
    }
    CHECK(spans_of(tracer, origin).empty());
    backend.clock->reached = 1;
    { const DeviceSpan span(TraceLane::kDeviceUpdate, "update", "bucket 1"); }  // marks 7 and 8
    CHECK(spans_of(tracer, origin).empty());
    backend.clock->reached = 5;
    { const DeviceSpan span(TraceLane::kDeviceUpdate, "update", "bucket 2"); }  // marks 9 and 10
    CHECK(spans_of(tracer, origin).size() == 2);
    trace.finish();
  }
  const std::vector<json> spans = spans_of(tracer, origin);
  REQUIRE(spans.size() == 5);
  CHECK(spans[0]["name"] == "update bucket 0");
  CHECK(spans[0]["cat"] == "update (device)");
  CHECK(spans[0]["ts"] == 1000.0);
  CHECK(spans[0]["dur"] == 1000.0);
  CHECK(spans[1]["name"] == "exchange bucket 0");
  CHECK(spans[1]["cat"] == "exchange (device)");
  CHECK(spans[2]["name"] == "backward");
  CHECK(spans[2]["cat"] == "compute (device)");
  CHECK(spans[2]["dur"] == 3000.0);
  CHECK(spans[4]["name"] == "update bucket 2");
  int lanes = 0;
  for (const json& event : json::parse(fmt::format("[{}]", tracer.events(origin))))
    lanes += event["name"] == "thread_name";
  CHECK(lanes == 7);
  // Without a clock there is nothing to follow.
  DeviceTrace of_host(tracer, meta_backend());
  CHECK(DeviceTrace::current() == nullptr);
  of_host.finish();
}
