#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/nccl_race.h"

// The race checker on steps that are graphs, exchanges by NCCL included.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;
using cuda::shim::check_communicators;
using cuda::shim::check_races;
using cuda::shim::Finding;
using cuda::shim::ranks_of;
using Kind = cuda::shim::Finding::Kind;

constexpr int kSteps = 7;

std::vector<Call> record(TrainingSettings settings, int ranks) {
  settings.start_at_begin = settings.graphs = true;
  return record_by_nccl(settings, ranks, kSteps);
}

/// One rank's calls between the two ends of its n-th capture that holds NCCL's operations.
std::pair<std::size_t, std::size_t> capture_of(const std::vector<Call>& calls, std::uint32_t thread) {
  std::size_t begin = calls.size();
  bool holds = false;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].thread != thread) continue;
    if (calls[i].kind == CallKind::kBeginCapture) begin = i, holds = false;
    if (calls[i].kind == CallKind::kNcclGroupEnd) holds = true;
    if (calls[i].kind == CallKind::kEndCapture && holds && begin < i) return {begin, i};
  }
  FAIL("no capture with an exchange in it");
  return {};
}

std::size_t count(const std::vector<Call>& calls, CallKind kind) {
  return static_cast<std::size_t>(std::count_if(calls.begin(), calls.end(), [&](const Call& call) { return call.kind == kind; }));
}

}  // namespace

TEST_CASE("nccl/race: steps that are graphs have none, and all ranks launch in one order") {
  struct Variant {
    const char* name;
    int ranks;
    std::function<void(TrainingSettings&)> set;
  };
  const std::vector<Variant> variants = {
      {"pairs", 2, [](TrainingSettings&) {}},
      {"pairs, bf16 on the wire", 2, [](TrainingSettings& s) { s.bf16_exchange = true; }},
      {"all-reduce", 2, [](TrainingSettings& s) { s.algorithm = "allreduce"; }},
      {"groups of three", 5, [](TrainingSettings& s) { s.topology = groups_of_three(); }},
      {"all-reduce, fp16 with an overflow check", 2,
       [](TrainingSettings& s) {
         s.algorithm = "allreduce";
         s.in_backward = false;
         s.compute = DType::kFloat16;
         s.check_overflow = true;
         s.net = kNormNet;
         s.defer_norms = true;
       }},
  };
  for (const Variant& variant : variants) {
    CAPTURE(std::string(variant.name));
    TrainingSettings settings;
    variant.set(settings);
    const std::vector<Call> calls = record(settings, variant.ranks);
    CHECK(count(calls, CallKind::kLaunchGraph) >= static_cast<std::size_t>(2 * variant.ranks));
    CHECK(lines(check_races(calls)) == "");
    const auto ranks = ranks_of(calls);
    REQUIRE(ranks.size() == static_cast<std::size_t>(variant.ranks));
    CHECK(lines(check_communicators(ranks)) == "");
  }
}

TEST_CASE("nccl/race: whole runs whose steps are graphs have none, tests and checkpoints between them included") {
  const nlohmann::json layers = nlohmann::json::parse(R"([
    {"type": "conv2d", "out_channels": 8, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
    {"type": "dropout", "p": 0.1}, {"type": "global_avg_pool"}, {"type": "linear", "out_features": 4}])");
  for (const char* algorithm : {"gossip", "allreduce"}) {
    for (const char* precision : {"fp32", "fp16"}) {
      for (const int accumulate : {1, 2}) {
        CAPTURE(std::string(algorithm));
        CAPTURE(std::string(precision));
        CAPTURE(accumulate);
        const nlohmann::json config{{"model", {{"type", "sequential"}, {"num_classes", 4}, {"layers", layers}}},
                                    {"data", {{"type", "synthetic"}, {"image_size", 8}, {"classes", 4}, {"limit", 128}, {"test_limit", 8}}},
                                    {"batch_size", 4},
                                    {"accumulate", accumulate},
                                    {"steps", 9},
                                    {"precision", precision},
                                    {"cuda_graphs", true},
                                    {"sync", {{"algorithm", algorithm}, {"bucket_mb", 0.0005}}},
                                    {"evaluate", {{"every_steps", 6}}},
                                    {"checkpoint", {{"every_steps", 7}}},
                                    {"log_every", 2},
                                    {"tensorboard", false}};
        FakeNccl nccl(2);
        cuda::shim::start_recording(true);
        train_ranks(
            2, config,
            [&](std::unique_ptr<Transport> control, Backend& backend) {
              const int rank = control->rank();
              return make_nccl_transport(std::move(control), backend, nccl.open(rank), {20.0, 0, 0.01});
            },
            [](int, Backend&, const TrainConfig&, const std::function<void()>& run) { run(); });
        const std::vector<Call> calls = cuda::shim::stop_recording();
        CHECK(count(calls, CallKind::kLaunchGraph) >= static_cast<std::size_t>(2 * 5 * accumulate));
        CHECK(lines(check_races(calls)) == "");
        CHECK(lines(check_communicators(ranks_of(calls))) == "");
      }
    }
  }
}

TEST_CASE("nccl/race: waits removed within a capture are found") {
  const std::vector<Call> calls = record({}, 2);
  const auto first = std::find_if(calls.begin(), calls.end(), [](const Call& call) { return call.kind == CallKind::kNcclReceive; });
  REQUIRE(first != calls.end());
  const auto [begin, end] = capture_of(calls, first->thread);
  std::size_t waits = 0, exchanges = 0, gradients = 0;
  for (std::size_t i = begin; i < end; ++i) {
    if (calls[i].thread != first->thread || calls[i].kind != CallKind::kRecord) continue;
    const std::vector<Call> changed = without_waits_for(calls, i);
    if (changed.size() == calls.size()) continue;
    ++waits;
    const std::vector<Finding> findings = check_races(changed);
    const auto race_of = [&](const std::string& one, const std::string& other) {
      return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) {
        return f.kind == Kind::kRace && ((f.one == one && f.other == other) || (f.one == other && f.other == one));
      });
    };
    exchanges += race_of("receive", "update");
    gradients += std::any_of(findings.begin(), findings.end(), [](const Finding& f) {
      return f.kind == Kind::kRace && f.other == "update" && f.one.find("backward") != std::string::npos;
    });
  }
  CHECK(waits >= 6);
  CHECK(exchanges >= 3);  // an update waits for each bucket's exchange
  CHECK(gradients >= 3);  // and for each bucket's gradients
}

TEST_CASE("nccl/race: communicators in another order within one rank's graph are found") {
  TrainingSettings settings;
  settings.topology = groups_of_three();
  std::vector<Call> calls = record(settings, 5);
  CHECK(lines(check_communicators(ranks_of(calls))) == "");
  // Rank 2 is in both groups of three; its captures of the two rounds hold one each.
  std::map<std::uint32_t, std::vector<int>> made;
  for (const Call& call : calls) {
    if (call.kind == CallKind::kNcclSplit && call.communicator != 0) made[call.thread].push_back(call.communicator);
  }
  const auto rank = std::find_if(made.begin(), made.end(), [](const auto& each) { return each.second.size() == 2; });
  REQUIRE(rank != made.end());
  bool capturing = false;
  std::size_t swapped = 0;
  for (Call& call : calls) {
    if (call.thread != rank->first) continue;
    capturing = capturing ? call.kind != CallKind::kEndCapture : call.kind == CallKind::kBeginCapture;
    if (!capturing || call.kind != CallKind::kNcclCollective) continue;
    call.communicator = call.communicator == rank->second[0] ? rank->second[1] : rank->second[0];
    ++swapped;
  }
  REQUIRE(swapped > 0);
  const std::vector<Finding> found = check_communicators(ranks_of(calls));
  REQUIRE_FALSE(found.empty());
  for (const Finding& finding : found) CHECK(finding.kind == Kind::kCommunicatorOrder);
}

TEST_CASE("nccl/race: a host's wait between an exchange and the end of its capture is found") {
  std::vector<Call> calls = record({}, 2);
  const auto first = std::find_if(calls.begin(), calls.end(), [](const Call& call) { return call.kind == CallKind::kNcclReceive; });
  REQUIRE(first != calls.end());
  const auto [begin, end] = capture_of(calls, first->thread);
  Call wait{.kind = CallKind::kHostWait, .stream = first->stream};
  wait.thread = first->thread;
  calls.insert(calls.begin() + static_cast<std::ptrdiff_t>(end), wait);
  const std::vector<Finding> found = check_races(calls);
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == Kind::kWaitInCapture);
  CHECK(found[0].first == begin);
}

}  // namespace starling::tests
