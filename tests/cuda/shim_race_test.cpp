#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/shared/peer_transport.h"
#include "comm/transports/staged.h"
#include "tests/cuda/race_training.h"
#include "tests/fakes/cuda/peer_fake.h"
#include "tests/fakes/transport/thread_sharing.h"

// The race checker on training steps, on whole runs with the trainer, and on ranks that read each
// other's memory: it finds nothing in what is there, and what a change of the record breaks.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;
using cuda::shim::check_races;
using cuda::shim::Finding;

struct RaceVariant {
  const char* name;
  TrainingSettings settings;
};

std::vector<RaceVariant> variants() {
  std::vector<RaceVariant> result{{"bf16 on the wire", {.bf16_exchange = true}}};
  for (const char* algorithm : {"gossip", "allreduce"}) {
    const TrainingSettings clipped{.in_backward = false, .clip = {0.5}, .algorithm = algorithm};
    const RaceVariant all[] = {
        {"in backward", {.algorithm = algorithm}},
        {"in backward, bf16, clipped by buckets",
         {.compute = DType::kBFloat16, .clip = {0.5, true}, .algorithm = algorithm}},
        {"after the pass", {.in_backward = false, .algorithm = algorithm}},
        {"clipped", clipped},
        {"fp16, clipped, with an overflow check", in_fp16(clipped)}};
    result.insert(result.end(), std::begin(all), std::end(all));
  }
  return result;
}

/// The thread that made the first stream.
std::uint32_t first_thread(const std::vector<Call>& calls) {
  const auto it = std::find_if(calls.begin(), calls.end(), [](const Call& call) {
    return call.kind == CallKind::kCreateStream;
  });
  REQUIRE(it != calls.end());
  return it->thread;
}

/// Its stream of this name.
cuda::StreamHandle stream_of(const std::vector<Call>& calls, const std::string& name) {
  const std::uint32_t thread = first_thread(calls);
  const auto it = std::find_if(calls.begin(), calls.end(), [&](const Call& call) {
    return call.kind == CallKind::kCreateStream && call.label == name && call.thread == thread;
  });
  REQUIRE(it != calls.end());
  return it->stream;
}

/// Where the thread begins this step.
std::size_t step_begin(const std::vector<Call>& calls, int step, std::uint32_t thread) {
  const auto it = std::find_if(calls.begin(), calls.end(), [&](const Call& call) {
    return call.kind == CallKind::kMark && call.thread == thread &&
           call.label == "step " + std::to_string(step);
  });
  REQUIRE(it != calls.end());
  return static_cast<std::size_t>(it - calls.begin());
}

std::vector<Call> record_whole(int ranks, const nlohmann::json& config, bool held = false) {
  std::optional<LaggingDevice> device;
  if (held) device.emplace();
  return record_run(ranks, config, by_host);
}

/// Steps of ranks that read each other's memory. Eager ones: a launched graph touches all of its
/// memory at once here, so that two ranks' graphs that read each other would always race.
std::vector<Call> record_peers(int ranks, const char* topology, bool in_backward) {
  struct InPlace {
    InPlace() { cuda::shim::map_in_place(true); }
    ~InPlace() { cuda::shim::map_in_place(false); }
  } const in_place;
  const TrainingSettings settings{.in_backward = in_backward, .topology = {{"type", topology}}};
  return record_training(
      {settings, ranks, 5}, [](std::unique_ptr<Transport> end, Backend& backend) {
        std::string refusal;
        auto peers = make_peer_transport(make_staged_transport(std::move(end)), backend,
                                         make_thread_sharing("host", false), {20.0}, refusal);
        REQUIRE(peers != nullptr);
        return peers;
      });
}

/// Waits for `published` counters lie at even multiples of 128 bytes, those for `released` at odd
/// ones.
bool awaits(const Call& call, bool released) {
  return call.kind == CallKind::kAwait &&
         (reinterpret_cast<std::uintptr_t>(call.from) % 256 == 128) == released;
}

}  // namespace

TEST_CASE(
    "cuda/race: training steps have none, of one rank, and of two that exchange through host "
    "memory") {
  for (const auto& [name, settings] : variants()) {
    for (const auto& [ranks, held] : {std::pair{1, false}, {1, true}, {2, false}}) {
      CAPTURE(settings.algorithm);
      CAPTURE(name);
      CAPTURE(ranks);
      CAPTURE(held);
      const auto calls = record_training({settings, ranks, 4, held}, by_host);
      CHECK(count(calls, CallKind::kWrite) > 100);
      CHECK((ranks == 1 || count(calls, CallKind::kCopy) > 0));
      CHECK(lines(check_races(calls)) == "");
    }
  }
}

TEST_CASE("cuda/race: without the waits for one of its events a step races") {
  const auto calls = record_training({}, by_host);
  REQUIRE(lines(check_races(calls)) == "");
  const cuda::StreamHandle compute = stream_of(calls, "compute"),
                           update = stream_of(calls, "update"),
                           communication = stream_of(calls, "communication");
  const std::uint32_t thread = first_thread(calls);
  const std::size_t begin = step_begin(calls, 2, thread), end = step_begin(calls, 3, thread);
  std::size_t gradients = 0, sent = 0, arrived = 0, joined = 0;
  for (std::size_t i = begin; i < end; ++i) {
    if (calls[i].kind != CallKind::kRecord || calls[i].thread != thread) continue;
    if (calls[i].stream == compute) {
      gradients += missed(calls, i, "conv2d_backward_weights", "update") > 0 ||
                   missed(calls, i, "matmul", "update") > 0 ||
                   missed(calls, i, "batch_norm_backward", "update") > 0 ||
                   missed(calls, i, "reduce", "update") > 0;
    } else if (calls[i].stream == update) {
      sent += missed(calls, i, "update", "copy to the host") > 0;
      joined += missed(calls, i, "update", "conv2d_forward") > 0;
    } else if (calls[i].stream == communication) {
      arrived += missed(calls, i, "copy to the device", "update") > 0;
    }
  }
  MESSAGE("gradients " << gradients << ", sent " << sent << ", arrived " << arrived << ", joined "
                       << joined);
  CHECK(gradients >= 3);  // one for each bucket
  CHECK(sent >= 3);
  // How many copies came after the last event that an update waits for depends on when the
  // exchanges arrived: each event may be covered by a later one, all of them are not.
  std::vector<Call> unmarked = calls;
  std::erase_if(unmarked, [&](const Call& call) {
    return call.kind == CallKind::kRecord && call.thread == thread && call.stream == communication;
  });
  CHECK(races(unmarked, "copy to the device", "update") > 0);
  CHECK(joined >= 1);
}

TEST_CASE(
    "cuda/race: whole runs have none, issued or replayed, with moving averages, slow numbers and "
    "averages by the clock") {
  const auto check = [](int ranks, const nlohmann::json& config, bool held = false) {
    CAPTURE(ranks);
    CAPTURE(config.dump());
    CAPTURE(held);
    const std::vector<Call> calls = record_whole(ranks, config, held);
    CHECK((count(calls, CallKind::kLaunchGraph) > 0) == config["cuda_graphs"].get<bool>());
    CHECK(lines(check_races(calls)) == "");
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
    const std::vector<Call> calls = record_whole(1, race_config("gossip", "bf16", graphs));
    const auto upload = std::find_if(calls.begin(), calls.end(), [](const Call& call) {
      return call.kind == CallKind::kCreateStream && call.label == "upload";
    });
    REQUIRE(upload != calls.end());
    const cuda::StreamHandle stream = upload->stream;
    /// Whether a copy to the device races once one of the upload stream's calls is changed.
    const auto found = [&](CallKind kind, const auto& changed, std::string Finding::*name) {
      for (std::size_t i = 0; i < calls.size(); ++i) {
        if (calls[i].kind != kind || calls[i].stream != stream) continue;
        const std::vector<Finding> races = check_races(changed(i));
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

TEST_CASE("cuda/peer races: nothing is read before it is final, or written before it is read") {
  for (const bool in_backward : {true, false}) {
    for (const auto& [topology, ranks] : {std::pair{"ring", 2}, {"ring", 4}, {"static-exp", 3}}) {
      CAPTURE(std::string(topology));
      CAPTURE(ranks);
      CHECK(lines(check_races(record_peers(ranks, topology, in_backward))) == "");
    }
  }
}

TEST_CASE(
    "cuda/peer races: a removed wait is found, the one for neighbours and the one for readers") {
  const std::vector<Call> calls = record_peers(4, "ring", true);
  for (const bool released : {false, true}) {
    CAPTURE(released);
    std::vector<Call> without = calls;
    CHECK(std::erase_if(without, [&](const Call& call) { return awaits(call, released); }) >= 20);
    CHECK(races(without, "update", "update") > 0);
  }
}

}  // namespace starling::tests
