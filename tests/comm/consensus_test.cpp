#include "comm/consensus.h"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "comm/algorithm.h"
#include "kernels/open_backend.h"
#include "support.h"

using namespace starling;

namespace {

struct Case {
  nlohmann::json algorithm;
  const char* exchange;
};

EncodedConsensus of(const Case& c, const char* topology, int ranks) {
  register_builtin_algorithms();
  const auto backend = open_backend(DeviceType::kCpu, 1);
  return encoded_consensus(algorithm_of(c.algorithm), mixers().make(c.exchange, "exchange"),
                           *test::make_test_topology({{"type", topology}}, ranks), *backend);
}

}  // namespace

TEST_CASE(
    "comm/consensus: replicas and differences of what is known agree to rounding, whole parameters "
    "to a code's step") {
  for (const char* type : {"choco", "low_precision"}) {
    for (const char* compressor : {"int8", "minmax8"}) {
      CAPTURE(type);
      CAPTURE(compressor);
      const EncodedConsensus found =
          of({{{"type", type}, {"compressor", compressor}}, "fp32"}, "static-ring", 8);
      CHECK(found.floor == 0.0);
      // The ring's own rate: (1 + 2 cos(2π/8)) / 3.
      CHECK(found.rate == doctest::Approx((1.0 + std::sqrt(2.0)) / 3.0).epsilon(0.03));
    }
  }
  // Numbers of size 1 lie between ±2·sqrt(3), so a step of 8 bits is 0.027 wide, and one of bf16 at
  // most 0.016.
  const EncodedConsensus bytes = of({"gossip", "int8"}, "static-ring", 8),
                         halves = of({"gossip", "bf16"}, "static-ring", 8);
  CHECK(bytes.floor > 1e-3);
  CHECK(bytes.floor < 0.03);
  CHECK(halves.floor < bytes.floor);
  CHECK(bytes.rate == doctest::Approx((1.0 + std::sqrt(2.0)) / 3.0).epsilon(0.1));
}

TEST_CASE("comm/consensus: exact rounds, half steps and one rank") {
  // Nothing is encoded: one-peer-exp agrees exactly in three rounds, so every round of it leaves
  // what three make nothing of.
  CHECK(of({{{"type", "choco"}, {"compressor", "none"}}, "fp32"}, "complete", 8).rate < 1e-5);
  CHECK(of({"gossip", "int8"}, "one-peer-exp", 1).rate == 0.0);
  // γ = 1/2 on complete: half of the disagreement stays.
  const EncodedConsensus half =
      of({{{"type", "choco"}, {"consensus_step", 0.5}}, "fp32"}, "complete", 8);
  CHECK(half.rate == doctest::Approx(0.5).epsilon(0.03));
  CHECK(half.floor == 0.0);
  register_builtin_algorithms();
  CHECK(!encodes(algorithm_of("gossip"), mixers().make("fp32", "exchange")));
  CHECK(!encodes(algorithm_of("exact_diffusion"), mixers().make("int8", "exchange")));
}
