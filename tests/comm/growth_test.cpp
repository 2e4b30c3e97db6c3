#include "comm/growth.h"

#include <doctest/doctest.h>

#include <cmath>

#include "comm/consensus.h"
#include "core/config.h"
#include "kernels/open_backend.h"
#include "support.h"
#include "tests/kernels/optimizer_reference.h"

using namespace starling;

namespace {

std::unique_ptr<OptimizerRule> sgd(double momentum) {
  return test::make_rule("sgd", {{"momentum", momentum}});
}

double growth(const nlohmann::json& algorithm, const nlohmann::json& topology, int ranks,
              double momentum = 0.9) {
  register_builtin_algorithms();
  return growth_per_step(algorithm_of(algorithm), *sgd(momentum),
                         *test::make_test_topology(topology, ranks))
      .per_step;
}

const nlohmann::json kD2 = {{"type", "exact_diffusion"}, {"lazy", false}};

/// An algorithm and how its messages travel.
struct Encoded {
  nlohmann::json algorithm;
  const char* exchange;
};

EncodedConsensus consensus_of(const Encoded& c, const char* topology, int ranks) {
  register_builtin_algorithms();
  const auto backend = open_backend(DeviceType::kCpu, 1);
  return encoded_consensus(algorithm_of(c.algorithm), mixers().make(c.exchange, "exchange"),
                           *test::make_test_topology({{"type", topology}}, ranks), *backend);
}

}  // namespace

TEST_CASE(
    "comm/growth: DecentLaM and D2 grow on graphs that change or mix too fast, as an outside "
    "computation found") {
  struct Case {
    const char* topology;
    int ranks;
    double decentlam, d2;
  };
  // Known: decentlam 1.05, 1.22, 1.07, 1.24; D2 1.26, 1.32, 1.36, 1.04.
  for (const auto& [topology, ranks, decentlam, d2] :
       {Case{"one-peer-exp", 8, 1.05, 1.26}, Case{"one-peer-exp", 16, 1.22, 1.32},
        Case{"base-2", 6, 1.07, 1.36}, Case{"static-exp", 8, 1.24, 1.04}}) {
    CAPTURE(topology);
    CAPTURE(ranks);
    CHECK(growth("decentlam", {{"type", topology}}, ranks) ==
          doctest::Approx(decentlam).epsilon(0.006));
    CHECK(growth(kD2, {{"type", topology}}, ranks, 0.0) == doctest::Approx(d2).epsilon(0.006));
    CHECK(growth("exact_diffusion", {{"type", topology}}, ranks) < 1.0);
    CHECK(growth("qgm", {{"type", topology}}, ranks) < 1.0);
    CHECK(growth("gossip", {{"type", topology}}, ranks) < 1.0);
  }
  CHECK(growth(kD2, {{"type", "static-ring"}}, 8, 0.0) == doctest::Approx(1.0).epsilon(1e-3));
}

TEST_CASE("comm/growth: what settles slowly on 64 ranks is not taken for growth") {
  const nlohmann::json ring{{"type", "static-ring"}};
  const double matrix = (1.0 + 2.0 * std::cos(2.0 * M_PI / 64.0)) / 3.0;  // the second eigenvalue
  CHECK(growth("gossip", ring, 64) == doctest::Approx(matrix).epsilon(1e-9));
  // y is mixed as x is and moves x: the same eigenvalue twice, in one Jordan block.
  CHECK(growth("gradient_tracking", ring, 64, 0.0) == doctest::Approx(matrix).epsilon(1e-6));
  CHECK(growth("gradient_tracking", ring, 64) == doctest::Approx(matrix).epsilon(1e-6));
  CHECK(growth("exact_diffusion", ring, 64) < 1.0);
  CHECK(growth("decentlam", ring, 64) < 1.0);
}

TEST_CASE(
    "comm/growth: above the size of a matrix it is an estimate, which refuses nothing within its "
    "error") {
  register_builtin_algorithms();
  const nlohmann::json ring{{"type", "static-ring"}};
  const Growth slow = growth_per_step(algorithm_of("exact_diffusion"), *sgd(0.9),
                                      *test::make_test_topology(ring, 128));
  CHECK(slow.estimated);
  CHECK(slow.per_step == doctest::Approx(1.0).epsilon(0.01));
  CHECK(!slow.grows());
  CHECK(growth_per_step(algorithm_of(kD2), *sgd(0.0),
                        *test::make_test_topology({{"type", "one-peer-exp"}}, 128))
            .grows());
}

TEST_CASE("comm/growth: gossip's disagreement falls as the slower of the matrix and the momentum") {
  for (const double momentum : {0.0, 0.5, 0.95}) {
    // the second eigenvalue of static-ring with weights 1/3
    const double matrix = (1.0 + 2.0 * std::cos(2.0 * M_PI / 8.0)) / 3.0;
    CHECK(growth("gossip", {{"type", "static-ring"}}, 8, momentum) ==
          doctest::Approx(std::max(matrix, momentum)).epsilon(3e-3));
    CHECK(growth({{"type", "gossip"}, {"order", "atc"}}, {{"type", "static-ring"}}, 8, momentum) ==
          doctest::Approx(std::max(matrix, momentum)).epsilon(3e-3));
  }
  CHECK(growth("gossip", {{"type", "complete"}}, 1) == 0.0);
  // has no model: its means leave no disagreement
  CHECK(growth("local_sgd", {{"type", "complete"}}, 4) == 0.0);
}

TEST_CASE("comm/growth: keys that mix less, or now and then, are in the number") {
  const nlohmann::json ring{{"type", "static-ring"}};
  const double matrix = (1.0 + 2.0 * std::cos(2.0 * M_PI / 8.0)) / 3.0;
  const auto of = [&](nlohmann::json keys, double momentum) {
    if (!keys.contains("type")) keys["type"] = "gossip";
    return growth(keys, ring, 8, momentum);
  };
  for (const char* order : {"awc", "atc"}) {
    CHECK(of({{"order", order}, {"mixing", 0.1}}, 0.2) ==
          doctest::Approx(0.9 + 0.1 * matrix).epsilon(1e-6));
    CHECK(of({{"order", order}, {"interval", 50}}, 0.2) ==
          doctest::Approx(std::pow(matrix, 1.0 / 50)).epsilon(1e-6));
    // A mean over all leaves the momentum's part alone: what a step takes from x after it, of m
    // before it.
    CHECK(of({{"order", order}, {"global_every", 4}}, 0.0) < 1e-3);
    CHECK(of({{"order", order}, {"global_every", 4}}, 0.5) == doctest::Approx(0.5).epsilon(3e-3));
    CHECK(of({{"order", order}, {"global_every", 4}}, 0.95) == doctest::Approx(0.95).epsilon(3e-3));
  }
  // three steps of the momentum an exchange
  CHECK(of({{"interval", 3}}, 0.97) == doctest::Approx(0.97).epsilon(1e-3));
  CHECK(of({{"type", "choco"}, {"compressor", "none"}}, 0.0) ==
        doctest::Approx(matrix).epsilon(1e-6));
  CHECK(of({{"type", "low_precision"}, {"interval", 2}}, 0.0) ==
        doctest::Approx(std::sqrt(matrix)).epsilon(1e-6));
  CHECK(of({{"type", "local_sgd"}, {"average", "topology"}, {"period", 8}}, 0.0) ==
        doctest::Approx(std::pow(matrix, 1.0 / 8)).epsilon(1e-6));
  CHECK(of({{"type", "slowmo"}, {"inner", "gossip"}, {"mixing", 0.5}}, 0.0) ==
        doctest::Approx(0.5 + 0.5 * matrix).epsilon(1e-6));
  CHECK(of({{"type", "push_sum"}}, 0.0) == doctest::Approx(matrix).epsilon(1e-6));
  CHECK(test::error_text([] {
          algorithm_of({{"type", "diloco"}, {"blend", 1}});
        }).find("algorithm.blend: is 1, so that ranks keep") != std::string::npos);
}

TEST_CASE("comm/growth: what grows is refused with the number, and with what would do") {
  register_builtin_algorithms();
  const auto refusal = [](const char* algorithm, const char* topology, int ranks) {
    const auto made = test::make_test_topology({{"type", topology}}, ranks);
    const nlohmann::json config{{"switch", {{"algorithm", algorithm}}}};
    ConfigSection root(config, "mine.json");
    const ConfigSection section = root.section("switch", "");
    return test::error_text([&] {
      check_growth(algorithm_of(algorithm), *sgd(0.9), "sgd", *made, topology, {ranks, 1}, section);
    });
  };
  const std::string text = refusal("decentlam", "static-exp", 8);
  CAPTURE(text);
  CHECK(text.find("mine.json: switch.algorithm: DecentLaM makes the ranks' disagreement 1.2") !=
        std::string::npos);
  CHECK(text.find("times as large in every step on 'static-exp' for 8 ranks") != std::string::npos);
  CHECK(text.find("static-ring") != std::string::npos);
  CHECK(text.find("algorithms that fit this one: gossip, gossip_diloco, gradient_tracking") !=
        std::string::npos);
  CHECK(refusal("decentlam", "static-ring", 8).empty());
}

TEST_CASE(
    "comm/consensus: replicas and differences of what is known agree to rounding, whole parameters "
    "to a code's step") {
  for (const char* type : {"choco", "low_precision"}) {
    for (const char* compressor : {"int8", "minmax8"}) {
      CAPTURE(type);
      CAPTURE(compressor);
      const EncodedConsensus found =
          consensus_of({{{"type", type}, {"compressor", compressor}}, "fp32"}, "static-ring", 8);
      CHECK(found.floor == 0.0);
      // The ring's own rate: (1 + 2 cos(2π/8)) / 3.
      CHECK(found.rate == doctest::Approx((1.0 + std::sqrt(2.0)) / 3.0).epsilon(0.03));
    }
  }
  // Numbers of size 1 lie between ±2·sqrt(3), so a step of 8 bits is 0.027 wide, and one of bf16 at
  // most 0.016.
  const EncodedConsensus bytes = consensus_of({"gossip", "int8"}, "static-ring", 8),
                         halves = consensus_of({"gossip", "bf16"}, "static-ring", 8);
  CHECK(bytes.floor > 1e-3);
  CHECK(bytes.floor < 0.03);
  CHECK(halves.floor < bytes.floor);
  CHECK(bytes.rate == doctest::Approx((1.0 + std::sqrt(2.0)) / 3.0).epsilon(0.1));
}

TEST_CASE("comm/consensus: exact rounds, half steps and one rank") {
  // Nothing is encoded: one-peer-exp agrees exactly in three rounds, so every round of it leaves
  // what three make nothing of.
  CHECK(consensus_of({{{"type", "choco"}, {"compressor", "none"}}, "fp32"}, "complete", 8).rate <
        1e-5);
  CHECK(consensus_of({"gossip", "int8"}, "one-peer-exp", 1).rate == 0.0);
  // γ = 1/2 on complete: half of the disagreement stays.
  const EncodedConsensus half =
      consensus_of({{{"type", "choco"}, {"consensus_step", 0.5}}, "fp32"}, "complete", 8);
  CHECK(half.rate == doctest::Approx(0.5).epsilon(0.03));
  CHECK(half.floor == 0.0);
  register_builtin_algorithms();
  CHECK(!encodes(algorithm_of("gossip"), mixers().make("fp32", "exchange")));
  CHECK(!encodes(algorithm_of("exact_diffusion"), mixers().make("int8", "exchange")));
}
