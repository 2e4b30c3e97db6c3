#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/bucket.h"
#include "core/device_trace.h"
#include "core/trace.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda/fake_ranks.h"
#include "tests/fakes/cuda/recorder.h"

// The device's lanes of --trace on the fake of the CUDA runtime, which does everything at once: its
// times are the host's.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;
using nlohmann::json;

struct Span {
  std::string name;
  double begin = 0.0, end = 0.0;
};
using Lanes = std::map<std::string, std::vector<Span>>;  ///< by lane, in the order of their begins

Lanes lanes_of(const Tracer& tracer, Tracer::Clock::time_point origin) {
  Lanes lanes;
  for (const json& event : json::parse(fmt::format("[{}]", tracer.events(origin)))) {
    if (event["ph"] != "X") continue;
    const double begin = event["ts"].get<double>();
    lanes[event["cat"]].push_back({event["name"], begin, begin + event["dur"].get<double>()});
  }
  for (auto& [name, spans] : lanes)
    std::sort(spans.begin(), spans.end(),
              [](const Span& a, const Span& b) { return a.begin < b.begin; });
  return lanes;
}

std::vector<Span> named(const Lanes& lanes, const std::string& lane, const std::string& name) {
  std::vector<Span> result;
  if (const auto it = lanes.find(lane); it != lanes.end()) {
    std::copy_if(it->second.begin(), it->second.end(), std::back_inserter(result),
                 [&](const Span& span) { return span.name == name; });
  }
  return result;
}

constexpr std::size_t kSteps = 5;
constexpr int kRanks = 2;

struct Trained {
  std::vector<Lanes> lanes = std::vector<Lanes>(kRanks);  ///< by rank
  std::size_t buckets = 0;
  /// Recordings of events, as count_records() has it; spans of the device
  std::size_t records = 0, timed = 0;
};

/// Without the upload streams': whether a step, even the last, uploads the batch that follows
/// depends on how far the loader is by then.
std::size_t count_records(const std::vector<Call>& calls) {
  std::set<cuda::StreamHandle> upload;
  std::size_t records = 0;
  for (const Call& call : calls) {
    if (call.kind == CallKind::kCreateStream && call.label == "upload") upload.insert(call.stream);
    records += call.kind == CallKind::kRecord && !upload.contains(call.stream);
  }
  return records;
}

Trained train(const std::string& algorithm, bool tracing) {
  const json config_json = with(graph_config(kSteps), {{"batch_size", 4},
                                                       {"data", {{"limit", 256}}},
                                                       {"sync", {{"algorithm", algorithm}}},
                                                       {"cuda_graphs", false},
                                                       {"log_every", 1000}});
  Trained result;
  cuda::shim::start_recording();
  train_ranks(
      kRanks, config_json, by_host,
      [&](int rank, Backend& backend, const TrainConfig& config, const std::function<void()>& run) {
        const auto origin = Tracer::Clock::now();
        Tracer tracer(rank);
        struct Installed {
          explicit Installed(Tracer& tracer) { Tracer::install(&tracer); }
          ~Installed() { Tracer::install(nullptr); }
        } const installed(tracer);
        std::optional<DeviceTrace> device_trace;
        if (tracing) device_trace.emplace(tracer, backend);
        run();
        if (device_trace) device_trace->finish();
        result.lanes[static_cast<std::size_t>(rank)] = lanes_of(tracer, origin);
        const ShapeTrace trace = trace_shapes(config);
        if (rank == 0)
          result.buckets = plan_buckets(trace.ready_order, trace.unused, config.device.dtype,
                                        config.sync.bucket_bytes)
                               .buckets.size();
      });
  result.records = count_records(cuda::shim::stop_recording());
  for (const Lanes& lanes : result.lanes) {
    for (const auto& [lane, spans] : lanes)
      result.timed += lane.ends_with("(device)") ? spans.size() : 0;
  }
  return result;
}

}  // namespace

TEST_CASE(
    "cuda/trace: the device's lanes have every bucket of every step, in the order of the work") {
  for (const std::string algorithm : {"gossip", "allreduce"}) {
    CAPTURE(algorithm);
    const Trained trained = train(algorithm, true);
    REQUIRE(trained.buckets >= 3);
    for (const Lanes& lanes : trained.lanes) {
      REQUIRE(lanes.size() == 7);  // the host's four as well
      for (const char* lane : {"compute (device)", "update (device)", "exchange (device)"}) {
        const std::vector<Span>& spans = lanes.at(lane);
        for (std::size_t i = 0; i < spans.size(); ++i) {
          CHECK(spans[i].begin <= spans[i].end);
          if (spans[i].name.starts_with("backward bucket")) continue;  // within "backward": below
          // a stream does one thing after the other; times are rounded
          if (i > 0) CHECK(spans[i - 1].end <= spans[i].begin + 0.002);
        }
      }
      const auto forward = named(lanes, "compute (device)", "forward"),
                 backward = named(lanes, "compute (device)", "backward");
      const auto steps = named(lanes, "compute", "forward");
      REQUIRE(forward.size() == kSteps);
      REQUIRE(backward.size() == kSteps);
      REQUIRE(steps.size() >= kSteps);
      for (std::size_t t = 0; t < kSteps; ++t) {
        CHECK(forward[t].end <= backward[t].begin + 0.002);
        if (t > 0) CHECK(backward[t - 1].end <= forward[t].begin + 0.002);
      }
      for (std::size_t b = 0; b < trained.buckets; ++b) {
        const std::string bucket = "bucket " + std::to_string(b);
        CAPTURE(bucket);
        const auto gradients = named(lanes, "compute (device)", "backward " + bucket),
                   updates = named(lanes, "update (device)", "update " + bucket),
                   sends = named(lanes, "exchange (device)", "send " + bucket),
                   receives = named(lanes, "exchange (device)", "receive " + bucket);
        REQUIRE(gradients.size() == kSteps);
        REQUIRE(updates.size() == kSteps);
        REQUIRE(sends.size() == kSteps);
        REQUIRE(receives.size() >= kSteps - 1);
        for (std::size_t t = 0; t < kSteps; ++t) {
          CAPTURE(t);
          const double begun = b == 0 ? backward[t].begin
                                      : named(lanes, "compute (device)",
                                              "backward bucket " + std::to_string(b - 1))[t]
                                            .end;
          CHECK(begun <= gradients[t].begin + 0.002);
          CHECK(gradients[t].end <= backward[t].end + 0.002);
          CHECK(gradients[t].end <= (algorithm == "gossip" ? updates : sends)[t].begin + 0.002);
          if (algorithm == "gossip") {
            CHECK(updates[t].end <= sends[t].begin + 0.002);
            if (t > 0) {
              // The update mixes what the exchange of the step before has brought.
              CHECK(sends[t - 1].end <= receives[t - 1].begin + 0.002);
              CHECK(receives[t - 1].end <= updates[t].begin + 0.002);
            }
          } else {
            CHECK(sends[t].end <= receives[t].begin + 0.002);
            CHECK(receives[t].end <= updates[t].begin + 0.002);
          }
        }
      }
    }
  }
}

TEST_CASE("cuda/trace: without a device's timeline not one event more is recorded") {
  const Trained without = train("gossip", false), with = train("gossip", true);
  CHECK(without.timed == 0);
  CHECK(with.timed > 0);
  // Two to each span, and the reference.
  CHECK(with.records == without.records + 2 * with.timed + kRanks);
  for (const Lanes& lanes : without.lanes) CHECK(lanes.size() == 4);
}

namespace {

using Clock = Tracer::Clock;

/// A clock whose reference the host was kept from looking at in time is late by as much, and stays
/// so. Of a few tries, the one that is the least late, in us: once() says by how much the last time
/// that it was given lies behind the host's at that moment.
double least_late(const std::function<double()>& once) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 5 && least > 5e3; ++i) least = std::min(least, once());
  return least;
}

double microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

}  // namespace

TEST_CASE("cuda/trace: spans are read as the device comes to them, without a wait before the end") {
  cuda::CudaBackend backend(0, false, false, true);
  const double late = least_late([&] {
    Tracer tracer(0);
    const auto origin = Clock::now();
    DeviceTrace trace(tracer, backend);
    REQUIRE(DeviceTrace::current() == &trace);
    const auto spans = [&] { return lanes_of(tracer, origin)["update (device)"]; };
    cuda::shim::hold_events(true);
    const auto waits = cuda::runtime_counters().host_waits;
    const auto before = Clock::now();
    for (int i = 0; i < 10; ++i) {
      const StreamScope scope(backend, StreamKind::kUpdate);
      const DeviceSpan span(TraceLane::kDeviceUpdate, "update", "bucket " + std::to_string(i));
    }
    const auto after = Clock::now();
    CHECK(spans().empty());
    CHECK(cuda::runtime_counters().host_waits == waits);
    cuda::shim::hold_events(false);  // the device catches up; the next span finds it so
    { const DeviceSpan span(TraceLane::kDeviceCompute, "forward"); }
    CHECK(cuda::runtime_counters().host_waits == waits);
    CHECK(spans().size() == 10);
    cuda::shim::hold_events(true);
    { const DeviceSpan span(TraceLane::kDeviceUpdate, "update", "bucket 10"); }
    CHECK(spans().size() == 10);
    trace.finish();
    cuda::shim::hold_events(false);
    REQUIRE(spans().size() == 11);
    for (std::size_t i = 0; i < 10; ++i) {
      CHECK(spans()[i].name == "update bucket " + std::to_string(i));
      CHECK(spans()[i].begin >= microseconds(before - origin) - 5e3);
    }
    return spans()[9].end - microseconds(after - origin);
  });
  CHECK(late <= 5e3);
}

TEST_CASE(
    "cuda/trace: where the host waits for the device is a span, where it need not there is none") {
  cuda::CudaBackend backend(0, false, false, true);
  Tracer tracer(0);
  Tracer::install(&tracer);
  const auto origin = Clock::now();
  const auto waits = [&] {
    return named(lanes_of(tracer, origin), "compute", "wait for the device").size();
  };
  cuda::shim::hold_events(true);
  const Event ahead = backend.record();
  CHECK(waits() == 0);
  backend.synchronize(ahead);
  CHECK(waits() == 1);
  backend.synchronize(ahead);  // it is done by now
  CHECK(waits() == 1);
  cuda::shim::hold_events(false);
  backend.synchronize();
  CHECK(waits() == 2);
  Tracer::install(nullptr);
}

TEST_CASE("cuda/trace: times stay on the host's clock as the reference moves on") {
  cuda::CudaBackend backend(0, false, false, true);
  const double late = least_late([&] {
    Tracer tracer(0);
    const auto origin = Clock::now();
    {
      DeviceTrace trace(tracer, backend);
      // the reference moves on after a second
      std::this_thread::sleep_for(std::chrono::milliseconds(1100));
      for (int i = 0; i < 3; ++i) {
        const DeviceSpan span(TraceLane::kDeviceCompute, "forward");
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      trace.finish();
    }
    const double end = microseconds(Clock::now() - origin);
    const auto spans = lanes_of(tracer, origin)["compute (device)"];
    REQUIRE(spans.size() == 3);
    CHECK(spans[0].begin >= 1.1e6 - 5e3);
    for (const Span& span : spans) CHECK(span.end - span.begin >= 2e4 - 1e3);
    CHECK(DeviceTrace::current() == nullptr);
    return spans[2].end - end;
  });
  CHECK(late <= 5e3);
}

}  // namespace starling::tests
