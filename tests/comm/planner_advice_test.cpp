#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "comm/growth.h"
#include "comm/planner/advice.h"
#include "comm/planner/network_model.h"
#include "comm/planner/predict.h"
#include "tests/comm/planner_networks.h"
#include "tests/kernels/optimizer_reference.h"
#include "topology/mixing.h"

namespace starling::tests {
namespace {

TEST_CASE(
    "planner/advice: recommends gossip that mixes fast on slow networks, all-reduce where "
    "communication costs nothing") {
  const StepModel step = even_step(25e6, 0.2);
  const Advice slow = advise(hosts(8, 1.0), step, {4, 25});
  CHECK(!slow.choices[slow.best].topology.empty());
  CHECK(slow.choices[slow.best].rounds_to_consensus.has_value());
  CHECK(advice_text(slow, false).find("recommended: " + slow.choices[slow.best].topology) !=
        std::string::npos);
  const nlohmann::json json = nlohmann::json::parse(advice_json(slow));
  CHECK(json["recommended"]["topology"] == slow.choices[slow.best].topology);
  CHECK(json["choices"].size() == slow.choices.size());

  NetworkModel fast = hosts(8, 1e6);
  fast.between.latency = 0.0;
  const Advice quick = advise(fast, step, {25});
  CHECK(quick.choices[quick.best].topology.empty());

  const Advice alone = advise(hosts(1, 1.0), step, {25});
  CHECK(alone.choices[alone.best].prediction.exposed == 0.0);

  // A step of 1000 s is as long with both sizes, which are five times the default and a fifth of
  // it: the faster one.
  const Advice long_step = advise(hosts(8, 1.0), even_step(25e6, 1000.0), {5, 125});
  CHECK(long_step.choices[long_step.best].bucket_mb == 5.0);
}

TEST_CASE("planner/advice: how far apart ranks are follows a simulation of their rounds") {
  register_builtin_algorithms();
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  for (const char* type : {"ring", "static-ring", "complete", "one-peer-exp"}) {
    for (const char* order : {"awc", "atc"}) {
      for (const int interval : {1, 3}) {
        CAPTURE(type);
        CAPTURE(order);
        CAPTURE(interval);
        constexpr int kRanks = 8, kWidth = 150, kSteps = 240;
        const auto topology = make(type, kRanks);
        // Each step's update is noise of size 1 on each rank; what is apart is noted where
        // gradients are taken.
        std::vector<double> x(kRanks * kWidth, 0.0);
        double apart = 0.0;
        int noted = 0;
        for (int t = 0; t < kSteps; ++t) {
          if (t >= kSteps / 2) {
            for (int e = 0; e < kWidth; ++e) {
              double mean = 0.0;
              for (int i = 0; i < kRanks; ++i)
                mean += x[static_cast<std::size_t>(i * kWidth + e)] / kRanks;
              for (int i = 0; i < kRanks; ++i)
                apart += std::pow(x[static_cast<std::size_t>(i * kWidth + e)] - mean, 2);
            }
            noted += kWidth * (kRanks - 1);
          }
          const auto mix = [&](int k) {
            MixingMatrix(topology->round(k), kRanks).apply(x, kWidth);
          };
          const auto update = [&] {
            for (double& v : x) v += normal(random);
          };
          if (std::string(order) == "atc") {
            update();
            if ((t + 1) % interval == 0) mix((t + 1) / interval - 1);
          } else {
            if (t > 0 && t % interval == 0) mix(t / interval - 1);
            update();
          }
        }
        double left = 0.0;
        for (const double part : disagreement_curve(*topology, 200)) left += part * part;
        const AlgorithmPlan plan =
            algorithm_of({{"type", "gossip"}, {"order", order}, {"interval", interval}});
        CHECK(plan.cost.disagreement(left) == doctest::Approx(apart / noted).epsilon(0.08));
      }
    }
  }
  CHECK(algorithm_of("allreduce").cost.disagreement(1.0) == 0.0);
  // the mean of 0 … 4
  CHECK(algorithm_of({{"type", "local_sgd"}, {"period", 5}}).cost.disagreement(1.0) == 2.0);
  // Other ways to mix in every step leave what gossip in their order does; Choco's half way takes
  // twice as many rounds.
  const AlgorithmPlan awc = algorithm_of({{"type", "gossip"}}),
                      atc = algorithm_of({{"type", "gossip"}, {"order", "atc"}});
  for (const char* name : {"gradient_tracking", "momentum_tracking", "choco"})
    CHECK(algorithm_of(name).cost.disagreement(1.7) == awc.cost.disagreement(1.7));
  for (const char* name : {"push_sum", "decentlam", "exact_diffusion", "low_precision"})
    CHECK(algorithm_of(name).cost.disagreement(1.7) == atc.cost.disagreement(1.7));
  CHECK(algorithm_of({{"type", "choco"}, {"consensus_step", 0.5}}).cost.disagreement(1.7) ==
        doctest::Approx(awc.cost.disagreement(2.4)));
  // Outer steps are as far apart as means; above 64 steps nobody has measured what they cost.
  CHECK(algorithm_of({{"type", "diloco"}, {"period", 5}}).cost.disagreement(1.0) == 2.0);
  CHECK(algorithm_of({{"type", "slowmo"}, {"period", 64}}).cost.disagreement(1.0) == 31.5);
  CHECK_FALSE(algorithm_of({{"type", "slowmo"}, {"period", 65}}).cost.disagreement);
  CHECK(algorithm_of({{"type", "gossip_diloco"}, {"period", 5}}).cost.disagreement(1.7) == 2.0);
  // What was measured of their learning is that of the code, share and mix.
  const auto loss = [](const nlohmann::json& keys, const char* exchange) {
    const MixerKind kind = mixers().make(exchange, "exchange");
    const AlgorithmCost cost = exchanged_by(algorithm_of(keys), kind).cost;
    return cost.learning && cost.disagreement ? cost.learning->loss : -1.0;
  };
  const nlohmann::json rare{{"type", "diloco"}, {"period", 48}},
      few{{"type", "diloco"}, {"period", 48}, {"share", 1.0 / 64.0}},
      other{{"type", "diloco"}, {"period", 48}, {"share", 0.02}},
      pairs{{"type", "gossip_diloco"}, {"period", 48}},
      half{{"type", "gossip_diloco"}, {"period", 48}, {"consensus_step", 0.5}},
      third{{"type", "gossip_diloco"}, {"period", 48}, {"consensus_step", 0.3}},
      mixed{{"type", "gossip_diloco"}, {"period", 48}, {"mix_differences", true}};
  CHECK(loss(rare, "fp32") == 0.0);
  CHECK(loss(rare, "int4") == 0.0);
  CHECK(loss(few, "sparse") > loss(rare, "sparse"));
  CHECK(loss(other, "sparse") == -1.0);
  CHECK(loss(pairs, "int8") >= loss(pairs, "fp32"));
  CHECK(loss(pairs, "fp32") > loss(half, "fp32"));
  CHECK(loss(half, "fp32") > loss(mixed, "fp32"));
  CHECK(loss(third, "fp32") == -1.0);
  CHECK(loss(mixed, "fp32") > 0.0);
}

TEST_CASE("planner/advice: a unit of disagreement among many ranks costs 3 % more steps") {
  // docs/benchmarks.md, "What mixing costs in learning"
  CHECK(expected_steps(1.0, 4) == doctest::Approx(1.0225));
  CHECK(expected_steps(1.0, 1) == 1.0);
}

TEST_CASE(
    "planner/advice: what is encoded, or sent by the algorithm's nature, is not read where it "
    "lies") {
  NetworkModel network;
  network.ranks = network.ranks_per_host = 4;
  network.inside = {0.0, 1e9};
  network.memory_bandwidth = 1e15;
  NetworkModel apart = network;
  apart.direct = false;
  register_builtin_algorithms();
  for (const char* order : {"awc", "atc"}) {
    for (const double wire : {1.0, 0.5}) {
      CAPTURE(std::string(order));
      CAPTURE(wire);
      const AlgorithmPlan plan = algorithm_of({{"type", "gossip"}, {"order", order}});
      StepModel step = late_step(1e8, 0.01);
      step.gossip_wire = wire;
      const auto sent = [&](const NetworkModel& on) {
        for (const PlannedChoice& choice : advise(on, step, {25}, &plan).choices) {
          if (choice.topology == "ring") return choice.prediction.sent;
        }
        return -1.0;
      };
      CHECK((sent(network) == sent(apart)) == (wire < 1.0 || plan.messages.always));
    }
  }
}

TEST_CASE("planner/advice: what mixes far better is recommended over what is a little faster") {
  NetworkModel network;  // 8 ranks on 2 hosts, 25 Gbit/s
  network.ranks = 8;
  network.ranks_per_host = 4;
  network.between = {5e-5, 25 * 1.25e8};
  const Advice advice = advise(network, even_step(25.6e6, 0.1), {25}, nullptr, true);
  const PlannedChoice& best = advice.choices[advice.best];
  for (const PlannedChoice& choice : advice.choices) {
    CAPTURE(choice.label());
    CHECK(best.seconds() <= 1.02 * choice.seconds());
    CHECK(choice.steps >= 1.0);
    CHECK((choice.steps == 1.0) == choice.topology.empty());
  }
  // Every key and exchange has its row, once, and their order is that of the time to a loss.
  std::set<std::string> methods;
  for (const PlannedChoice& choice : advice.methods) methods.insert(choice.method());
  CHECK(methods.size() == advice.methods.size());
  for (const char* name :
       {"all-reduce", "gossip", "gossip, int8", "gossip, interval 4, bf16", "local SGD, period 32",
        "DiLoCo, period 48, int4", "DiLoCo, period 48, share 0.015625, sparse",
        "gossip DiLoCo, mix_differences true, period 48, int8"}) {
    CAPTURE(name);
    CHECK(methods.count(name) == 1);
  }
  CHECK(std::is_sorted(
      advice.methods.begin(), advice.methods.end(),
      [](const PlannedChoice& a, const PlannedChoice& b) { return a.seconds() < b.seconds(); }));
  // Every algorithm is predicted; those whose cost in learning nobody measured come last and have
  // no expected time.
  for (const AlgorithmPlan& plan : known_algorithms()) {
    CAPTURE(plan.name);
    const auto found =
        std::find_if(advice.methods.begin(), advice.methods.end(), [&](const auto& m) {
          return m.algorithm == plan.name && m.keys.empty() && m.exchange.empty();
        });
    REQUIRE(found != advice.methods.end());
    CHECK(found->known() == static_cast<bool>(plan.cost.disagreement));
    CHECK(found->prediction.step > 0.1);
    CHECK(found->prediction.sent > 0.0);
  }
  // Links a tenth as fast ask for fewer bytes, and those ten times as fast for none to be saved.
  REQUIRE(advice.elsewhere.size() == 2);
  CHECK(advice.elsewhere[0].first == doctest::Approx(0.1 * network.typical_link()));
  CHECK(advice.elsewhere[0].second.prediction.sent < advice.elsewhere[1].second.prediction.sent);
  CHECK(advice_text(advice, false).find("with links of 250 Gbit/s: ") != std::string::npos);
  // `auto` keeps the mathematics.
  for (const PlannedChoice& choice : advice.choices)
    CHECK((choice.algorithm == "gossip" || choice.algorithm == "allreduce"));
}

TEST_CASE("planner/advice: what a busy machine cannot tell apart leaves the default in its place") {
  NetworkModel network;  // 8 ranks on 2 hosts, 1 Gbit/s
  network.ranks = 8;
  network.ranks_per_host = 4;
  network.between = {5e-5, 1.25e8};
  const StepModel step = even_step(25.6e6, 0.1);
  const auto planned = [&](double noise) {
    network.noise = noise;
    return advise(network, step, {4, 25}, nullptr);
  };
  const auto topology = [](const Advice& advice) { return advice.choices[advice.best].topology; };
  const Advice idle = planned(0.0);
  REQUIRE(topology(idle) != "base-2");
  CHECK_FALSE(disturbance_text(idle, "").starts_with("disturbed"));
  double usual = 1e9;
  for (const PlannedChoice& choice : idle.choices) {
    if (choice.topology == "base-2") usual = std::min(usual, choice.seconds());
  }
  const double apart = usual / idle.choices[idle.best].seconds() - 1.0;
  REQUIRE(apart > 0.1);
  // As far apart as the measurement may be off, and a little less.
  const Advice unclear = planned(1.02 * apart), clear = planned(0.9 * apart);
  CHECK(topology(clear) == topology(idle));
  CHECK(clear.reason == idle.reason);
  CHECK(topology(unclear) == "base-2");
  CHECK(unclear.choices[unclear.best].bucket_mb == 25);
  CHECK(unclear.reason.starts_with("no clear winner, so the default stays: " +
                                   idle.choices[idle.best].label()));
  CHECK(disturbance_text(unclear, "do so").find("may be as good; do so") != std::string::npos);
}

TEST_CASE("planner/advice: no algorithm stands on a topology where it would be refused") {
  // Exact diffusion grows over base-2 on 7 and 9 ranks, which would be the quickest there.
  const std::unique_ptr<OptimizerRule> sgd = test::make_rule("sgd", {{"momentum", 0.9}});
  for (const int ranks : {7, 9}) {
    const Advice advice = advise(hosts(ranks, 0.1), even_step(11.2e6, 0.6), {25}, nullptr, true);
    int looked_at = 0;
    for (const PlannedChoice& method : advice.methods) {
      if (method.topology.empty()) continue;
      nlohmann::json keys = method.keys;
      keys["type"] = method.algorithm;
      const AlgorithmPlan plan = algorithm_of(keys);
      CAPTURE(method.method());
      CAPTURE(method.topology);
      if (plan.growth.model)
        CHECK_FALSE(growth_per_step(plan, *sgd, *make(method.topology, ranks)).grows());
      looked_at += method.algorithm == "exact_diffusion";
    }
    CHECK(looked_at == 1);
  }
}

TEST_CASE(
    "planner/predict: bytes of means by nodes, of encoded means and of exchanges that bring two "
    "tensors") {
  NetworkModel network;
  network.ranks = 8;
  network.ranks_per_host = 4;
  network.between = {0.0, 1e9};
  network.direct = false;
  const StepModel step = even_step(1e6, 0.1);  // 4 MB
  const Prediction flat = predict_all_reduce(network, step, 1e6),
                   nodes = predict_all_reduce(network, step, 1e6, true, 4);
  // Each of 4 ranks sends its share of 8 parts to 4 others and gets as many back: 4 times what two
  // nodes exchange.
  CHECK(flat.between_hosts == doctest::Approx(4.0 * 4e6));
  CHECK(nodes.between_hosts == doctest::Approx(4e6));
  CHECK(nodes.exposed < flat.exposed);
  const Prediction encoded = predict_encoded_mean(network, step, 1e6, 0.25);
  CHECK(encoded.sent == doctest::Approx(flat.sent / 4.0));
  CHECK(encoded.between_hosts == doctest::Approx(flat.between_hosts / 4.0));
  CHECK(encoded.step > compute_alone(step, network));
  // One bucket is complete when the backward pass ends: all of it is waited for.
  CHECK(predict_encoded_mean(network, step, 1e9, 0.25).exposed ==
        doctest::Approx(0.25 * flat.between_hosts / 1e9).epsilon(0.01));
  const std::vector<RoundCost> costs = costs_of(*make("ring", 8, 4), network);
  const Prediction one = predict_gossip(costs, network, step, 1e6),
                   two = predict_gossip(costs, network, step, 1e6, true, 1, 2);
  CHECK(two.sent == doctest::Approx(2.0 * one.sent));
  // What nobody adds up on the way goes to each of the 7 others, whatever the nodes.
  for (const char* name : {"complete", "hierarchical"}) {
    const auto over_nodes = make(name, 8, 4);
    CHECK(costs_of(*over_nodes, network, true)[0].sent_per_byte == 7.0);
    CHECK(costs_of(*over_nodes, network)[0].sent_per_byte < 2.0);
  }
  CHECK(two.step > one.step);
}

}  // namespace
}  // namespace starling::tests
