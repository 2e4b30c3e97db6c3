#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/nccl_race.h"

// The race checker on training steps whose buckets go by NCCL.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;
using cuda::shim::check_communicators;
using cuda::shim::check_races;
using cuda::shim::Finding;
using cuda::shim::ranks_of;
using Kind = cuda::shim::Finding::Kind;

std::vector<Call> record(const TrainingSettings& settings, int ranks) { return record_by_nccl(settings, ranks, 4); }

bool any(const std::vector<Finding>& findings, const std::string& one, const std::string& other) {
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& finding) {
    return finding.kind == Kind::kRace &&
           ((finding.one == one && finding.other == other) || (finding.one == other && finding.other == one));
  });
}

std::size_t nccl_operations(const std::vector<Call>& calls) {
  return static_cast<std::size_t>(std::count_if(calls.begin(), calls.end(), [](const Call& call) {
    return call.kind == CallKind::kNcclSend || call.kind == CallKind::kNcclReceive || call.kind == CallKind::kNcclCollective;
  }));
}

}  // namespace

TEST_CASE("nccl/race: training steps have none, and all ranks issue in one order") {
  struct Variant {
    std::string name;
    int ranks;
    TrainingSettings settings;
  };
  std::vector<Variant> variants;
  TrainingSettings settings;
  variants.push_back({"pairs, in backward", 2, settings});
  settings.bf16_exchange = true;
  variants.push_back({"pairs, bf16 on the wire", 2, settings});
  settings = {};
  settings.in_backward = false;
  settings.clip.norm = 0.5;
  variants.push_back({"pairs, clipped after the pass", 2, settings});
  settings.compute = DType::kFloat16;
  settings.check_overflow = true;
  settings.net = kNormNet;
  settings.defer_norms = true;
  variants.push_back({"pairs, fp16 with an overflow check", 2, settings});
  settings.algorithm = "allreduce";
  variants.push_back({"all-reduce, fp16 with an overflow check", 2, settings});
  settings = {};
  settings.algorithm = "allreduce";
  settings.topology = {{"type", "complete"}};
  variants.push_back({"all-reduce, in backward", 3, settings});
  settings = {};
  settings.topology = {{"type", "static-exp"}};
  variants.push_back({"several neighbours", 4, settings});
  settings.topology = {{"type", "complete"}};
  settings.clip = {0.5, true};
  variants.push_back({"one group, clipped by buckets", 3, settings});
  settings = {};
  settings.topology = groups_of_three();
  variants.push_back({"groups of three", 5, settings});
  for (const Variant& variant : variants) {
    CAPTURE(variant.name);
    const std::vector<Call> calls = record(variant.settings, variant.ranks);
    CHECK(nccl_operations(calls) > 0);
    CHECK(lines(check_races(calls)) == "");
    const auto ranks = ranks_of(calls);
    REQUIRE(ranks.size() == static_cast<std::size_t>(variant.ranks));
    CHECK(lines(check_communicators(ranks)) == "");
  }
}

TEST_CASE("nccl/race: without the waits for one of its events an exchange races with the update") {
  const std::vector<Call> calls = record({}, 2);
  const auto first = std::find_if(calls.begin(), calls.end(), [](const Call& call) { return call.kind == CallKind::kNcclReceive; });
  REQUIRE(first != calls.end());
  const std::uint32_t thread = first->thread;
  const cuda::StreamHandle communication = first->stream;
  const auto update = std::find_if(calls.begin(), calls.end(), [&](const Call& call) {
    return call.kind == CallKind::kWrite && call.label == "update" && call.thread == thread;
  });
  REQUIRE(update != calls.end());
  std::size_t sends = 0, receives = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].kind != CallKind::kRecord || calls[i].thread != thread) continue;
    if (calls[i].stream == update->stream) sends += missed(calls, i, "update", "send") > 0;
    if (calls[i].stream == communication) receives += missed(calls, i, "receive", "update") > 0;
  }
  CHECK(sends >= 6);
  CHECK(receives >= 6);
}

TEST_CASE("nccl/race: an exchange at another place, and communicators in another order, are found") {
  SUBCASE("an exchange before the update that it sends") {
    std::vector<Call> calls = record({}, 2);
    const auto last = std::find_if(calls.rbegin(), calls.rend(), [](const Call& call) { return call.kind == CallKind::kNcclSend; });
    REQUIRE(last != calls.rend());
    const auto at = static_cast<std::size_t>(calls.rend() - last) - 1;
    std::size_t update = at;  // of the bucket that is sent
    while (!(calls[update].kind == CallKind::kWrite && calls[update].label == "update" && calls[update].to == calls[at].from)) --update;
    std::rotate(calls.begin() + static_cast<std::ptrdiff_t>(update), calls.begin() + static_cast<std::ptrdiff_t>(at),
                calls.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    CHECK(any(check_races(calls), "send", "update"));
  }
  SUBCASE("two communicators swapped on one rank") {
    TrainingSettings settings;
    settings.topology = groups_of_three();
    auto ranks = ranks_of(record(settings, 5));
    REQUIRE(ranks.size() == 5);
    CHECK(lines(check_communicators(ranks)) == "");
    // Rank 2 is in both groups of three: [0, 1, 2] and [0, 2, 4].
    Call* before = nullptr;
    for (Call& call : ranks[2]) {
      if (call.kind != CallKind::kNcclCollective) continue;
      if (before && before->communicator != call.communicator) {
        std::swap(before->communicator, call.communicator);
        break;
      }
      before = &call;
    }
    REQUIRE(before != nullptr);
    const std::vector<Finding> found = check_communicators(ranks);
    REQUIRE_FALSE(found.empty());
    for (const Finding& finding : found) {
      CHECK(finding.kind == Kind::kCommunicatorOrder);
      CHECK(finding.text.find("rank 2 issues all_reduce on communicator") != std::string::npos);
    }
  }
}

}  // namespace starling::tests
