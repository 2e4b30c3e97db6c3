#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/race_training.h"

// The race checker on training steps: it finds nothing in what is there, and what a change of the
// record breaks.
namespace starling::tests {
namespace {

using cuda::CopyKind;
using cuda::shim::Call;
using cuda::shim::CallKind;
using cuda::shim::check_races;
using cuda::shim::Finding;
using Kind = cuda::shim::Finding::Kind;

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

std::size_t place_of(const std::vector<Call>& calls, std::size_t from,
                     const std::function<bool(const Call&)>& is) {
  for (std::size_t i = from; i < calls.size(); ++i) {
    if (is(calls[i])) return i;
  }
  REQUIRE_MESSAGE(false, "no such call");
  return calls.size();
}

std::size_t step_begin(const std::vector<Call>& calls, int step, std::uint32_t thread) {
  return place_of(calls, 0, [&](const Call& call) {
    return call.kind == CallKind::kMark && call.thread == thread &&
           call.label == "step " + std::to_string(step);
  });
}

bool has_finding(const std::vector<Finding>& findings, Kind kind, const std::string& one,
                 const std::string& other) {
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& finding) {
    return finding.kind == kind && finding.one == one && finding.other == other;
  });
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
    "cuda/race: a buffer that is used again too early, and an exchange at another place, are "
    "found") {
  const auto calls = record_training({}, by_host);
  const cuda::StreamHandle compute = stream_of(calls, "compute"),
                           update = stream_of(calls, "update"),
                           communication = stream_of(calls, "communication");
  const std::uint32_t thread = first_thread(calls);
  const std::size_t begin = step_begin(calls, 2, thread);
  const std::size_t updated = place_of(calls, begin, [&](const Call& call) {
    return call.kind == CallKind::kWrite && call.stream == update && call.label == "update";
  });
  SUBCASE("the pool gives a bucket out while its update runs") {
    auto changed = calls;
    const std::size_t launch = place_of(calls, updated, [&](const Call& call) {
      return call.kind == CallKind::kLaunch && call.stream == update;
    });
    Call take{.kind = CallKind::kTake,
              .stream = compute,
              .to = calls[updated].to,
              .bytes = calls[updated].bytes};
    take.thread = thread;
    changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(launch) + 1, take);
    CHECK(has_finding(check_races(changed), Kind::kReusedMemory, "update", "stream compute"));
  }
  SUBCASE("the bucket is copied to the host before its update") {
    const std::size_t download = place_of(calls, updated, [&](const Call& call) {
      return call.kind == CallKind::kCopy && call.stream == communication &&
             call.copy == CopyKind::kDeviceToHost;
    });
    CHECK(calls[download].from == calls[updated].to);
    // To before the wait for the update: the communication stream may read while the update writes.
    std::size_t wait = download;
    while (!(calls[wait].kind == CallKind::kWait && calls[wait].stream == communication)) --wait;
    auto changed = calls;
    std::rotate(changed.begin() + static_cast<std::ptrdiff_t>(wait),
                changed.begin() + static_cast<std::ptrdiff_t>(download),
                changed.begin() + static_cast<std::ptrdiff_t>(download) + 1);
    CHECK(races(changed, "update", "copy to the host") > 0);
  }
  SUBCASE("what comes next is copied to the device while the update still reads what came last") {
    std::set<const void*> read;
    for (std::size_t i = updated;
         calls[i - 1].kind == CallKind::kRead || calls[i - 1].kind == CallKind::kWrite ||
         calls[i - 1].thread != thread;
         --i) {
      if (calls[i - 1].kind == CallKind::kRead && calls[i - 1].thread == thread)
        read.insert(calls[i - 1].from);
    }
    const std::size_t upload = place_of(calls, updated, [&](const Call& call) {
      return call.kind == CallKind::kCopy && call.copy == CopyKind::kHostToDevice &&
             call.thread == thread && read.contains(call.to);
    });
    auto changed = calls;
    std::rotate(changed.begin() + static_cast<std::ptrdiff_t>(updated) + 1,
                changed.begin() + static_cast<std::ptrdiff_t>(upload),
                changed.begin() + static_cast<std::ptrdiff_t>(upload) + 1);
    CHECK(races(changed, "update", "copy to the device") > 0);
  }
  SUBCASE("an event is never recorded") {
    const std::size_t wait = place_of(calls, begin, [&](const Call& call) {
      return call.kind == CallKind::kWait && call.stream == update;
    });
    const std::size_t record = place_of(calls, 0, [&](const Call& call) {
      return call.kind == CallKind::kRecord && call.event == calls[wait].event &&
             call.recording == calls[wait].recording;
    });
    auto changed = calls;
    changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(record));
    CHECK(has_finding(check_races(changed), Kind::kUnrecordedEvent, "wait", "stream update"));
  }
}

}  // namespace starling::tests
