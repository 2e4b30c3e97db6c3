#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/cuda/held_device.h"
#include "tests/cuda/race_training.h"
#include "tests/fakes/cuda/race_checker.h"
#include "tests/fakes/cuda/recorder.h"

// The race checker on whole runs with the trainer: batches that go up ahead of their step, the loss
// on its way back, metrics, the mean model at a test and a checkpoint.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;
using cuda::shim::Finding;

std::vector<Call> record(int ranks, const nlohmann::json& config, bool held = false) {
  std::optional<LaggingDevice> device;
  if (held) device.emplace();
  return record_run(ranks, config, by_host);
}

}  // namespace

TEST_CASE(
    "cuda/race: whole runs have none, issued or replayed, with moving averages, slow numbers and "
    "averages by the clock") {
  const auto check = [](int ranks, const nlohmann::json& config, bool held = false) {
    CAPTURE(ranks);
    CAPTURE(config.dump());
    CAPTURE(held);
    const std::vector<Call> calls = record(ranks, config, held);
    CHECK((count(calls, CallKind::kLaunchGraph) > 0) == config["cuda_graphs"].get<bool>());
    CHECK(lines(cuda::shim::check_races(calls)) == "");
  };
  for (const std::string precision : {"fp32", "bf16", "fp16"}) {
    for (const bool held : {false, true}) {
      check(1, race_config("gossip", precision, false), held);
      check(1, race_config("gossip", precision, true), held);
      check(1, with(race_config("gossip", precision, true), {{"ema", nlohmann::json::object()}}),
            held);
    }
    for (const char* algorithm : {"gossip", "allreduce"}) {
      const nlohmann::json config = race_config(algorithm, precision, false),
                           lookahead = with(config, {{"lookahead", {{"every", 2}}}});
      check(2, config);
      check(1, lookahead);
      check(2, lookahead);
    }
    check(3, asynchronous_config(precision));
    for (const int accumulate : {1, 2}) {
      check(4, with(race_config("gossip", precision, false), {{"accumulate", accumulate},
                                                              {"sync", {{"replica", 2}}},
                                                              {"ema", nlohmann::json::object()},
                                                              {"lookahead", {{"every", 2}}}}));
    }
  }
}

TEST_CASE(
    "cuda/race: a batch that goes up without waiting for the work on the one before it is found") {
  for (const bool graphs : {false, true}) {
    CAPTURE(graphs);
    const std::vector<Call> calls = record(1, race_config("gossip", "bf16", graphs));
    const auto upload = std::find_if(calls.begin(), calls.end(), [](const Call& call) {
      return call.kind == CallKind::kCreateStream && call.label == "upload";
    });
    REQUIRE(upload != calls.end());
    const cuda::StreamHandle stream = upload->stream;
    /// Whether a copy to the device races once one of the upload stream's calls is changed.
    const auto found = [&](CallKind kind, const auto& changed, std::string Finding::*name) {
      for (std::size_t i = 0; i < calls.size(); ++i) {
        if (calls[i].kind != kind || calls[i].stream != stream) continue;
        const std::vector<Finding> races = cuda::shim::check_races(changed(i));
        if (std::any_of(races.begin(), races.end(), [&](const Finding& finding) {
              return finding.*name == "copy to the device";
            }))
          return true;
      }
      return false;
    };
    const auto without = [&](std::size_t i) {
      std::vector<Call> changed = calls;
      changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(i));
      return changed;
    };
    CHECK(found(CallKind::kWait, without, &Finding::other));
    // The other way round: the batch is used without waiting for its arrival.
    const auto unawaited = [&](std::size_t i) { return without_waits_for(calls, i); };
    CHECK(found(CallKind::kRecord, unawaited, &Finding::one));
  }
}

}  // namespace starling::tests
