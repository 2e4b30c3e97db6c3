#include <doctest/doctest.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

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

}  // namespace

TEST_CASE("core/trace: events are JSON with rank, lane, name and microseconds") {
  Tracer tracer(3);
  const auto origin = Tracer::Clock::now();
  using namespace std::chrono;
  tracer.add(TraceLane::kCompute, "forward \"conv\"\n\x01\xff", origin + nanoseconds(1500), origin + microseconds(10));
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
