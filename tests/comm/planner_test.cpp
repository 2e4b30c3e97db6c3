#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/growth.h"
#include "comm/planner/advice.h"
#include "comm/planner/measure_network.h"
#include "comm/planner/network_model.h"
#include "comm/planner/predict.h"
#include "comm/transports/forwarding.h"
#include "core/error.h"
#include "kernels/open_backend.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/errors.h"
#include "topology/mixing.h"

namespace starling::tests {
namespace {

std::unique_ptr<Topology> make(const std::string& type, int ranks, int per_host = 1) {
  register_builtin_topologies();
  const nlohmann::json config = {{"type", type}};
  ConfigSection section(config, "test");
  return make_topology(section, {ranks, per_host});
}

/// n hosts of one rank, `gigabits` links without latency, an update that costs nothing.
NetworkModel hosts(int n, double gigabits) {
  NetworkModel network;
  network.ranks = n;
  network.between = {0.0, gigabits * 1.25e8};
  network.memory_bandwidth = 1e18;
  return network;
}

/// All gradients ready at the very end: nothing to overlap an all-reduce with.
StepModel late_step(double bytes, double seconds) {
  StepModel step;
  step.forward = seconds / 2;
  step.backward = seconds / 2;
  for (int i = 0; i < 8; ++i) step.tensors.push_back({bytes / 8, 1.0});
  return step;
}

TEST_CASE(
    "planner/predict: products of whole matrices make every step longer, and what is averaged "
    "meanwhile has that time too") {
  const NetworkModel network = hosts(4, 1.0);
  StepModel step = late_step(1.25e8 / 2, 2.0);
  step.tensors[3].matrix_flops = 3e9;
  step.tensors[5].matrix_flops = 1e9;
  const auto gossip = [&] {
    return predict_gossip(costs_of(*make("one-peer-exp", 4), network), network, step, 1e6).step;
  };
  const auto all_reduce = [&] { return predict_all_reduce(network, step, 1e6).step; };
  const double before = gossip(), reduced = all_reduce();
  CHECK(compute_alone(step, network) == doctest::Approx(2.0));
  step.matrix_flops_per_second = 8e9;
  CHECK(step.matrix_flops() == 4e9);
  CHECK(compute_alone(step, network) == doctest::Approx(2.5));
  CHECK(gossip() == doctest::Approx(before + 0.5));
  CHECK(all_reduce() > reduced);
  CHECK(all_reduce() <= reduced + 0.5 + 1e-9);
  double flops = 0.0;
  for (const PlannedBucket& bucket : planned_buckets(step, 1.0e7)) flops += bucket.matrix_flops;
  CHECK(flops == 4e9);
}

TEST_CASE(
    "planner/predict: gossip between hosts hides behind a step that is long enough, all-reduce "
    "only behind the backward pass") {
  const NetworkModel network = hosts(4, 1.0);
  const double bytes = 1.25e8 / 2;  // half a second a direction
  const StepModel step = late_step(bytes, 2.0);
  const Prediction gossip =
      predict_gossip(costs_of(*make("one-peer-exp", 4), network), network, step, bytes / 4);
  CHECK(gossip.step == doctest::Approx(2.0));
  CHECK(gossip.exposed == doctest::Approx(0.0));
  CHECK(gossip.sent == doctest::Approx(bytes));
  CHECK(gossip.between_hosts == doctest::Approx(bytes));
  const Prediction all_reduce = predict_all_reduce(network, step, bytes / 4);
  CHECK(all_reduce.step == doctest::Approx(2.0 + 0.5 * 2 * 3 / 4));
  CHECK(all_reduce.sent == doctest::Approx(bytes * 2 * 3 / 4));
}

TEST_CASE("planner/predict: gossip with bf16 on the wire sends half, and recodes what it mixes") {
  const NetworkModel network = hosts(4, 1.0);
  StepModel step = late_step(1.25e8, 0.1);
  const auto costs = costs_of(*make("one-peer-exp", 4), network);
  const Prediction full = predict_gossip(costs, network, step, 1e9),
                   all_reduce = predict_all_reduce(network, step, 1e9);
  step.gossip_wire = 0.5;
  const Prediction half = predict_gossip(costs, network, step, 1e9);
  CHECK(half.sent == doctest::Approx(0.5 * full.sent));
  CHECK(half.between_hosts == doctest::Approx(0.5 * full.between_hosts));
  CHECK(half.step < 0.6 * full.step);
  // it sums in full precision
  CHECK(predict_all_reduce(network, step, 1e9).step == doctest::Approx(all_reduce.step));
  NetworkModel slow_memory = network;
  slow_memory.memory_bandwidth = 1e9;
  const double recoding = predict_gossip(costs, slow_memory, step, 1e9).step;
  step.gossip_wire = 1.0;
  CHECK(recoding > predict_gossip(costs, slow_memory, step, 1e9).step);
}

TEST_CASE("planner/predict: without overlap every exchange is waited for") {
  const NetworkModel network = hosts(2, 1.0);
  const StepModel step = late_step(1.25e8, 3.0);
  const Prediction gossip =
      predict_gossip(costs_of(*make("ring", 2), network), network, step, 1e9, false);
  CHECK(gossip.exposed == doctest::Approx(1.0));
  CHECK(gossip.step == doctest::Approx(4.0));
}

TEST_CASE(
    "planner/predict: with an interval an exchange is sent and waited for every so many steps") {
  const NetworkModel network = hosts(4, 1.0);
  const StepModel step = late_step(1.25e8, 0.25);  // an exchange takes a second
  const auto costs = costs_of(*make("one-peer-exp", 4), network);
  const Prediction each = predict_gossip(costs, network, step, 1e9);
  CHECK(each.step == doctest::Approx(1.0));
  for (const std::int64_t interval : {2, 5, 16, 40}) {  // 40 is beyond what is laid out
    CAPTURE(interval);
    const Prediction some = predict_gossip(costs, network, step, 1e9, true, interval);
    const auto h = static_cast<double>(interval);
    CHECK(some.sent == doctest::Approx(each.sent / h));
    CHECK(some.between_hosts == doctest::Approx(each.between_hosts / h));
    // started after one step, it is used at the end of the next
    CHECK(some.step == doctest::Approx((0.25 * h + 0.75) / h));
    CHECK(some.exposed == doctest::Approx(0.75 / h));
    CHECK(predict_gossip(costs, network, step, 1e9, false, interval).step ==
          doctest::Approx((0.25 * h + 1.0) / h));
  }
}

TEST_CASE(
    "planner/predict: averages now and then cost their part of an all-reduce, and what hides "
    "behind steps costs nothing") {
  const NetworkModel network = hosts(4, 1.0);
  const StepModel step = late_step(1.25e8, 0.5);
  const double sum = 1.5;  // seconds: 2 (n - 1) / n of the bytes
  CHECK(predict_averages(network, step, 1e9, 1).step == doctest::Approx(0.5 + sum));
  const Prediction rare = predict_averages(network, step, 1e9, 10);
  CHECK(rare.step == doctest::Approx(0.5 + sum / 10));
  CHECK(rare.exposed == doctest::Approx(sum / 10));
  CHECK(rare.sent == doctest::Approx(predict_all_reduce(network, step, 1e9).sent / 10));
  CHECK(predict_averages(network, step, 1e9, 10, 2).step ==
        doctest::Approx(0.5 + (sum - 1.0) / 10));
  CHECK(predict_averages(network, step, 1e9, 10, 3).step == doctest::Approx(0.5));
}

TEST_CASE(
    "planner/predict: averages by the clock are waited for by no step, and begin and end between "
    "two") {
  NetworkModel network = hosts(4, 1.0);
  const StepModel step = late_step(1.25e8, 0.5);  // an average takes 1.5 s
  const double sent = predict_all_reduce(network, step, 1e9).sent;
  for (const auto& [interval, steps] :
       {std::pair(0.0, 3.0), {0.4, 4.0}, {0.6, 5.0}, {10.0, 23.0}}) {
    CAPTURE(interval);
    const Prediction prediction = predict_asynchronous(network, step, 1e9, interval);
    CHECK(prediction.step == doctest::Approx(0.5));
    CHECK(prediction.exposed == 0.0);
    CHECK(prediction.sent == doctest::Approx(sent / steps));
    CHECK(prediction.between_hosts == doctest::Approx(sent / steps));
  }
  // each pass over the parameters takes 10 ms, of which a step has 7 and an average 6
  network.memory_bandwidth = 1.25e10;
  const Prediction slow = predict_asynchronous(network, step, 1e9, 0.4);
  CHECK(slow.step == doctest::Approx(0.5 + 0.07 + 0.06 / 4));
}

TEST_CASE("planner/predict: ranks of one host read each other's parameters, and nothing is sent") {
  NetworkModel network = hosts(4, 1.0);
  network.ranks_per_host = 4;
  network.memory_bandwidth = 1e10;
  const StepModel step = late_step(1e8, 1.0);
  const Prediction gossip =
      predict_gossip(costs_of(*make("one-peer-exp", 4), network), network, step, 1e7);
  CHECK(gossip.sent == 0.0);
  CHECK(gossip.exposed == 0.0);
  // one more buffer is read
  CHECK(gossip.step - compute_alone(step, network) == doctest::Approx(1e8 / 1e10));
  network.direct = false;
  CHECK(predict_gossip(costs_of(*make("one-peer-exp", 4), network), network, step, 1e7).sent ==
        doctest::Approx(1e8));
}

TEST_CASE(
    "planner/predict: messages inside a host take the cores that compute, unless they have some of "
    "their own") {
  NetworkModel network;
  network.ranks = network.ranks_per_host = 2;
  network.inside = {0.0, 1e9};
  network.memory_bandwidth = 1e15;
  network.spare_cores = true;
  const StepModel step = late_step(1e8, 1.0);
  // ready at the end of the backward pass
  CHECK(predict_all_reduce(network, step, 1e6).step == doctest::Approx(1.1));
  StepModel early = step;
  for (PlannedTensor& tensor : early.tensors) tensor.ready = 0.0;
  CHECK(predict_all_reduce(network, early, 1e6).step == doctest::Approx(1.0));
  network.spare_cores = false;
  CHECK(predict_all_reduce(network, early, 1e6).step == doctest::Approx(1.1));
}

TEST_CASE("planner/predict: a hierarchical round sends each byte between hosts once a direction") {
  NetworkModel network = hosts(4, 1.0);
  network.ranks_per_host = 2;
  const StepModel step = late_step(1e8, 0.1);
  const Prediction nodes =
      predict_gossip(costs_of(*make("hierarchical", 4, 2), network), network, step, 1e7);
  CHECK(nodes.between_hosts == doctest::Approx(1e8));
  const Prediction flat =
      predict_gossip(costs_of(*make("complete", 4, 2), network), network, step, 1e7);
  CHECK(flat.between_hosts == doctest::Approx(2e8));
}

TEST_CASE("planner/predict: one slow link sets the pace") {
  NetworkModel network = hosts(4, 1.0);
  const StepModel step = late_step(1.25e8, 0.1);
  const double even =
      predict_gossip(costs_of(*make("one-peer-exp", 4), network), network, step, 1e7).step;
  network.host_bandwidth = {1.25e8, 1.25e8, 1.25e8, 1.25e7};
  CHECK(predict_gossip(costs_of(*make("one-peer-exp", 4), network), network, step, 1e7).step ==
        doctest::Approx(10 * even).epsilon(0.02));
}

TEST_CASE(
    "planner/predict: a pair that cannot fill the link limits one peer, not several at once") {
  NetworkModel network = hosts(4, 1.0);
  network.host_bandwidth.assign(4, 5.0 * 1.25e8);
  const StepModel step = late_step(1.25e8, 0.1);  // a second over one pair
  const auto gossip = [&](const char* type) {
    return predict_gossip(costs_of(*make(type, 4), network), network, step, 1e9).step;
  };
  CHECK(gossip("one-peer-exp") == doctest::Approx(1.0));
  CHECK(gossip("static-ring") == doctest::Approx(1.0));  // two peers
  CHECK(gossip("complete") == doctest::Approx(1.5 / 5));
  CHECK(predict_all_reduce(network, step, 1e9).step == doctest::Approx(0.1 + 1.5 / 5));
  network.sum_bandwidth = 2.0 * 1.25e8;  // what sums reach of the link
  CHECK(gossip("complete") == doctest::Approx(1.5 / 2));
  CHECK(gossip("one-peer-exp") == doctest::Approx(1.0));
}

TEST_CASE(
    "planner/predict: where hosts sit out every other round, the next exchange goes on meanwhile") {
  const StepModel step = late_step(1.25e8, 0.1);  // a second over the link
  const auto seconds = [&](const char* type, int ranks) {
    const NetworkModel network = hosts(ranks, 1.0);
    return predict_gossip(costs_of(*make(type, ranks), network), network, step, 1e9).step;
  };
  for (const int ranks : {2, 4, 8})
    CHECK(seconds("alternating-exp-ring", ranks) == doctest::Approx(0.55));
  for (const char* type : {"base-2", "ring", "one-peer-exp", "random-matching", "complete"})
    CHECK(seconds(type, 8) >= 0.999);
}

TEST_CASE(
    "planner/predict: over long links a connection that was idle for rounds begins again with a "
    "small window") {
  const StepModel step = late_step(4e6, 0.002);
  const auto seconds = [&](int ranks) {
    NetworkModel network = hosts(ranks, 1.0);
    network.host_bandwidth.assign(static_cast<std::size_t>(ranks), 1.25e8);
    network.between.latency = 0.05;
    network.derive_pair();  // 42 MB/s: 0.247 s an exchange, handshake included
    return predict_gossip(costs_of(*make("alternating-exp-ring", ranks), network), network, step,
                          1e9)
        .step;
  };
  // of two hosts there is one connection
  CHECK(seconds(2) == doctest::Approx(0.247 / 2).epsilon(0.02));
  // Ten segments to 4 MiB: 8.17 doublings of a round trip, of which three steps of idleness cost a
  // ninth for each 0.3 s.
  CHECK(seconds(4) == doctest::Approx(0.247 / (2 - 8.17 * 0.1 * 3 / 0.3 / 9)).epsilon(0.02));
}

TEST_CASE(
    "planner/predict: a sum waits six latencies for each window of a bucket; buckets under way at "
    "once wait together") {
  NetworkModel network = hosts(4, 1e9);
  network.between.latency = 0.01;
  const double mebibyte = 1 << 20;
  const StepModel step = late_step(32 * mebibyte, 0.1);  // eight tensors of a window each
  CHECK(predict_all_reduce(network, step, 32 * mebibyte).step == doctest::Approx(0.1 + 8 * 0.06));
  CHECK(predict_all_reduce(network, step, 4 * mebibyte).step == doctest::Approx(0.1 + 0.06));
  CHECK(predict_averages(network, step, 4 * mebibyte, 1).step == doctest::Approx(0.1 + 0.06));
  const auto costs = costs_of(*make("one-peer-exp", 4), network);
  // Waits after each; and the connection that rested for a step begins with a smaller window.
  const double resting = 0.02 * 8.17 / 9 / 0.22;
  CHECK(predict_gossip(costs, network, step, 4 * mebibyte, false).step ==
        doctest::Approx((0.1 + 8 * 0.03) / (1 - resting)).epsilon(0.005));
}

TEST_CASE(
    "planner/network: one pair fills a given link as far as 16 pieces of 256 KiB for each answer "
    "do") {
  NetworkModel network = hosts(4, 1.0);
  network.between.latency = 0.05;
  network.host_bandwidth = {1e6, 1.25e8, 1.25e8, 1.25e8};
  CHECK(network.typical_link() == 1.25e8);
  network.derive_pair();
  CHECK(network.between.bandwidth == doctest::Approx(4194304 / 0.1));
}

TEST_CASE("planner/predict: buckets close as training's do") {
  StepModel step;
  for (const double bytes : {10.0, 10.0, 25.0, 5.0})
    step.tensors.push_back({bytes, step.tensors.size() * 0.25 + 0.25});
  const auto buckets = planned_buckets(step, 20.0);
  REQUIRE(buckets.size() == 3);
  CHECK(buckets[0].bytes == 20.0);
  CHECK(buckets[0].ready == 0.5);
  CHECK(buckets[1].bytes == 25.0);
  CHECK(buckets[2].bytes == 5.0);
}

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
  for (const char* name : {"all-reduce", "gossip", "gossip, int8", "gossip, interval 4, bf16",
                           "local SGD, period 32"}) {
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
  // `auto` keeps the mathematics.
  for (const PlannedChoice& choice : advice.choices)
    CHECK((choice.algorithm == "gossip" || choice.algorithm == "allreduce"));
}

TEST_CASE("planner/advice: no algorithm stands on a topology where it would be refused") {
  // Exact diffusion grows over base-2 on 7 and 9 ranks, which would be the quickest there.
  const nlohmann::json momentum{{"momentum", 0.9}};
  ConfigSection section(momentum, "test");
  const std::unique_ptr<OptimizerRule> sgd = optimizers().make("sgd", "optimizer.type", section);
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
  register_builtin_topologies();
  const nlohmann::json ring{{"type", "ring"}};
  ConfigSection section(ring, "test");
  section.required_text("type", "");
  const auto topology = topologies().make("ring", "type", section, {8, 4});
  const std::vector<RoundCost> costs = costs_of(*topology, network);
  const Prediction one = predict_gossip(costs, network, step, 1e6),
                   two = predict_gossip(costs, network, step, 1e6, true, 1, 2);
  CHECK(two.sent == doctest::Approx(2.0 * one.sent));
  // What nobody adds up on the way goes to each of the 7 others, whatever the nodes.
  for (const char* name : {"complete", "hierarchical"}) {
    const nlohmann::json config{{"type", name}};
    ConfigSection of(config, "test");
    of.required_text("type", "");
    const auto nodes_of = topologies().make(name, "type", of, {8, 4});
    CHECK(costs_of(*nodes_of, network, true)[0].sent_per_byte == 7.0);
    CHECK(costs_of(*nodes_of, network)[0].sent_per_byte < 2.0);
  }
  CHECK(two.step > one.step);
}

TEST_CASE("planner/predict: what an algorithm exchanges follows from its keys") {
  register_builtin_algorithms();
  NetworkModel network = hosts(8, 0.1);
  network.ranks_per_host = 4;
  const StepModel step = even_step(1e6, 0.01);
  const std::vector<RoundCost> costs = costs_of(*make("ring", 8), network);
  const auto same = [&](const nlohmann::json& keys, const Prediction& other) {
    CAPTURE(keys.dump());
    const Prediction of = predict(algorithm_of(keys), costs, network, step, 1e6);
    CHECK(of.step == other.step);
    CHECK(of.exposed == other.exposed);
    CHECK(of.sent == other.sent);
    CHECK(of.between_hosts == other.between_hosts);
  };
  const auto gossip = [&](bool overlap, std::int64_t interval, int tensors = 1) {
    return predict_gossip(costs, network, step, 1e6, overlap, interval, tensors);
  };
  const auto sum = [&](bool overlap, int per_node) {
    return predict_all_reduce(network, step, 1e6, overlap, per_node);
  };
  same({{"type", "gossip"}, {"interval", 3}}, gossip(true, 3));
  same({{"type", "gossip"}, {"order", "atc"}}, gossip(false, 1));
  same("gradient_tracking", gossip(true, 1, 2));
  same("allreduce", sum(true, 1));
  same({{"type", "allreduce"}, {"delay", true}}, sum(false, 1));
  same({{"type", "allreduce"}, {"hierarchical", true}}, sum(true, 4));
  same({{"type", "allreduce"}, {"hierarchical", true}, {"ranks_per_node", 2}}, sum(true, 2));
  const double wire = algorithm_of("bytegrad").messages.wire;
  CHECK(wire < 0.3);
  same("bytegrad", predict_encoded_mean(network, step, 1e6, wire));
  same({{"type", "local_sgd"}, {"period", 5}}, predict_averages(network, step, 1e6, 5));
  same({{"type", "local_sgd"}, {"period", 5}, {"average", "topology"}}, gossip(false, 5));
  same({{"type", "diloco"}, {"period", 6}, {"delay", 2}},
       predict_averages(network, step, 1e6, 6, 2));
  same({{"type", "async"}, {"interval_ms", 30}}, predict_asynchronous(network, step, 1e6, 0.03));
  Prediction both = predict_averages(network, step, 1e6, 48);
  const Prediction inner = gossip(true, 2);
  both.step += inner.step - compute_alone(step, network);
  both.exposed += inner.exposed;
  both.sent += inner.sent;
  both.between_hosts += inner.between_hosts;
  same({{"type", "slowmo"}, {"inner", "gossip"}, {"interval", 2}}, both);
  AlgorithmPlan silent;
  CHECK_THROWS_AS(predict(silent, costs, network, step, 1e6), Error);
}

TEST_CASE("planner/network: a file comes back as it was, and a bad one names its key") {
  NetworkModel network = hosts(4, 1.0);
  network.ranks_per_host = 2;
  network.host_bandwidth = {1e8, 2e8};
  network.between.latency = 1e-4;
  network.spare_cores = false;
  network.sum_bandwidth = 5e7;
  const NetworkModel again = network_from_json(to_json(network), "net.json");
  CHECK(again.ranks == 4);
  CHECK(again.ranks_per_host == 2);
  CHECK(again.host_bandwidth.size() == 2);
  CHECK(again.host_bandwidth[1] == doctest::Approx(2e8));
  CHECK(again.between.latency == doctest::Approx(1e-4));
  CHECK(!again.spare_cores);
  CHECK(again.sum_bandwidth == doctest::Approx(5e7));
  const auto message = [](const std::string& text) {
    return test::error_of(ExitCode::kUsage, [&] { network_from_json(text, "net.json"); });
  };
  CHECK(message("{").find("net.json") != std::string::npos);
  CHECK(message("[]").find("an object") != std::string::npos);
  nlohmann::json json = nlohmann::json::parse(to_json(network));
  json["sum_bandwidth_gbs"] = -1;
  CHECK(message(json.dump()).find("sum_bandwidth_gbs") != std::string::npos);
  json.erase("sum_bandwidth_gbs");  // as older files are
  CHECK(network_from_json(json.dump(), "net.json").sum_bandwidth == 0.0);
  json["between"]["bandwidth_gbs"] = 0;
  CHECK(message(json.dump()).find("between.bandwidth_gbs") != std::string::npos);
  json = nlohmann::json::parse(to_json(network));
  json["hosts_bandwidth_gbs"] = {1.0};
  CHECK(message(json.dump()).find("hosts_bandwidth_gbs") != std::string::npos);
  json.erase("ranks");
  CHECK(message(json.dump()).find("'ranks'") != std::string::npos);
}

constexpr double kSlowLink = 5e6;  ///< bytes a second
/// Connections of that, as many at once as there are peers, but one sum at a
/// time. `half`: one direction at a time, so that an exchange of both takes twice as long as one of
/// them. It takes no time but that of its own clock, which besides goes on while this thread
/// computes: a busy machine changes nothing.
class SlowLink final : public ForwardingTransport {
 public:
  SlowLink(Transport& inner, bool half) : ForwardingTransport(inner), half_(half) {}
  Ticket start_exchange(const Exchange& exchange, const Tensor& send,
                        const std::vector<Tensor>& receive, const ExchangeLabel& label,
                        std::shared_ptr<Flow> flow) override {
    carry(send, half_ ? static_cast<double>(exchange.send_to.size() + exchange.receive_from.size())
                      : 1.0);
    return ForwardingTransport::start_exchange(exchange, send, receive, label, std::move(flow));
  }
  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label,
                   std::shared_ptr<Flow> flow) override {
    carry(in, 1.0);
    return ForwardingTransport::start_sum(in, out, label, std::move(flow));
  }
  double now() const {
    timespec computed{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &computed);
    return carried_ + static_cast<double>(computed.tv_sec) +
           1e-9 * static_cast<double>(computed.tv_nsec);
  }

 private:
  void carry(const Tensor& send, double ways) {
    carried_ += static_cast<double>(send.bytes()) * ways / kSlowLink;
  }

  bool half_;
  double carried_ = 0.0;  ///< seconds
};

/// Looks at the network that each of some ranks finds, all on hosts of their own, over slow links.
void measure_slow_links(int ranks, bool half,
                        const std::function<void(const NetworkModel&)>& look) {
  FakeWorldOptions options;
  options.ranks_per_host = 1;
  FakeWorld world(ranks, options);
  world.run([&](Transport& transport) {
    SlowLink link(transport, half);
    MeasureSettings settings;
    settings.seconds = 0.8;
    settings.now = [&link] { return link.now(); };
    look(measure_network(link, *open_backend(DeviceType::kCpu, 1), settings));
  });
}

TEST_CASE("planner/measure: a half-duplex link is noticed, a full-duplex one is not called so") {
  for (const bool half : {false, true}) {
    CAPTURE(half);
    measure_slow_links(2, half, [half](const NetworkModel& model) {
      const std::string warning = half_duplex_warning(model);
      CHECK(warning.empty() == !half);
      CHECK(network_from_json(to_json(model), "net.json").both_directions ==
            doctest::Approx(model.both_directions));
      if (half) CHECK(warning.find("btl_tcp_flags") != std::string::npos);
    });
  }
}

TEST_CASE(
    "planner/measure: a host's link is what several peers reach, sums have a rate of their own") {
  measure_slow_links(3, false, [](const NetworkModel& model) {
    CHECK(model.between.bandwidth <= 1.1 * kSlowLink);
    CHECK(model.typical_link() > 1.4 * model.between.bandwidth);
    CHECK(model.sum_bandwidth > 0.0);
    CHECK(model.sum_bandwidth <= 1.1 * kSlowLink * 4 / 3);  // 2 (n - 1) / n of the bytes
    CHECK(model.sum_bandwidth < model.typical_link());
  });
}

TEST_CASE("planner/measure: every rank gets one model, and a slow message shows") {
  FakeWorldOptions options;
  options.ranks_per_host = 2;
  options.most_delay_seconds = 0.004;
  FakeWorld world(4, options);
  std::mutex mutex;
  std::vector<NetworkModel> models;
  world.run([&](Transport& transport) {
    const auto backend = open_backend(DeviceType::kCpu, 1);
    const NetworkModel model = measure_network(transport, *backend, {.seconds = 0.5});
    const std::scoped_lock lock(mutex);
    models.push_back(model);
  });
  REQUIRE(models.size() == 4);
  for (const NetworkModel& model : models) {
    CHECK(model.ranks_per_host == 2);
    CHECK(model.hosts() == 2);
    CHECK(model.between.latency == models[0].between.latency);
    CHECK(model.inside.bandwidth == models[0].inside.bandwidth);
    CHECK(model.memory_bandwidth > 1e8);
    REQUIRE(model.host_bandwidth.size() == 2);
    for (const double bandwidth : model.host_bandwidth) CHECK(bandwidth > 1e6);
    CHECK(model.between.latency > 2e-4);  // half of the messages take 2 ms and more
    CHECK(model.between.latency < 0.1);
  }
}

}  // namespace
}  // namespace starling::tests
