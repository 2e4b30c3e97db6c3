#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/transports/staged.h"
#include "tests/cuda/held_device.h"
#include "tests/cuda/race_training.h"
#include "tests/fakes/cuda/race_checker.h"
#include "tests/fakes/cuda/recorder.h"

// The race checker on whole runs with the trainer: batches that go up ahead of their step, the loss on its way back, metrics, the mean
// model at a test and a checkpoint.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;
using cuda::shim::Finding;

std::vector<Call> record(const std::string& algorithm, const std::string& precision, int ranks, bool held, bool graphs = false) {
  std::optional<LaggingDevice> device;
  if (held) device.emplace();
  return record_run(ranks, race_config(algorithm, precision, graphs), [&](std::unique_ptr<Transport> end, Backend&) {
    return ranks > 1 ? make_staged_transport(std::move(end)) : std::move(end);
  });
}

}  // namespace

TEST_CASE("cuda/race: whole runs have none") {
  for (const std::string precision : {"fp32", "bf16", "fp16"}) {
    CAPTURE(precision);
    for (const bool held : {false, true}) {
      CAPTURE(held);
      CHECK(lines(cuda::shim::check_races(record("gossip", precision, 1, held))) == "");
      const std::vector<Call> replayed = record("gossip", precision, 1, held, true);
      CHECK(std::any_of(replayed.begin(), replayed.end(), [](const Call& call) { return call.kind == CallKind::kLaunchGraph; }));
      CHECK(lines(cuda::shim::check_races(replayed)) == "");
    }
    for (const char* algorithm : {"gossip", "allreduce"}) {
      CAPTURE(algorithm);
      CHECK(lines(cuda::shim::check_races(record(algorithm, precision, 2, false))) == "");
    }
  }
}

TEST_CASE("cuda/race: whole runs that go back to slow numbers have none, on one rank and on several") {
  for (const std::string precision : {"fp32", "bf16", "fp16"}) {
    CAPTURE(precision);
    for (const char* algorithm : {"gossip", "allreduce"}) {
      CAPTURE(algorithm);
      for (const int ranks : {1, 2}) {
        auto config = race_config(algorithm, precision, false);
        config["lookahead"] = {{"every", 2}};
        const std::vector<Call> calls = record_run(ranks, config, [&](std::unique_ptr<Transport> end, Backend&) {
          return ranks > 1 ? make_staged_transport(std::move(end)) : std::move(end);
        });
        CHECK(!calls.empty());
        CHECK(lines(cuda::shim::check_races(calls)) == "");
      }
    }
  }
}

TEST_CASE("cuda/race: whole runs with averages by the clock have none") {
  const auto staged = [](std::unique_ptr<Transport> end, Backend&) { return make_staged_transport(std::move(end)); };
  for (const std::string precision : {"fp32", "bf16", "fp16"}) {
    CAPTURE(precision);
    CHECK(lines(cuda::shim::check_races(record_run(3, asynchronous_config(precision), staged))) == "");
  }
}

TEST_CASE("cuda/race: a batch that goes up without waiting for the work on the one before it is found") {
  for (const bool graphs : {false, true}) {
    CAPTURE(graphs);
    const std::vector<Call> calls = record("gossip", "bf16", 1, false, graphs);
    const auto upload = std::find_if(calls.begin(), calls.end(),
                                     [](const Call& call) { return call.kind == CallKind::kCreateStream && call.label == "upload"; });
    REQUIRE(upload != calls.end());
    const cuda::StreamHandle stream = upload->stream;
    std::size_t waits = 0, found = 0, arrivals = 0;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].kind != CallKind::kWait || calls[i].stream != stream) continue;
      ++waits;
      std::vector<Call> changed = calls;
      changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(i));
      const std::vector<Finding> races = cuda::shim::check_races(changed);
      found += std::any_of(races.begin(), races.end(), [](const Finding& finding) { return finding.other == "copy to the device"; });
    }
    // The other way round: the batch is used without waiting for its arrival.
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].kind != CallKind::kRecord || calls[i].stream != stream) continue;
      const std::vector<Call> changed = without_waits_for(calls, i);
      const std::vector<Finding> races = cuda::shim::check_races(changed);
      arrivals += std::any_of(races.begin(), races.end(), [](const Finding& finding) { return finding.one == "copy to the device"; });
    }
    MESSAGE("waits of the upload stream: " << waits << ", found missing " << found << ", missing arrivals found " << arrivals);
    CHECK(waits > 0);
    CHECK(found > 0);
    CHECK(arrivals > 0);
  }
}

}  // namespace starling::tests
