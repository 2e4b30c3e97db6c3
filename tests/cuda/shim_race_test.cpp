#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/race_training.h"

// The race checker on training steps: it finds nothing in what is there, and what a change of the
// record breaks.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;
using cuda::shim::check_races;

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

}  // namespace starling::tests
