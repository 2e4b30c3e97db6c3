#include <doctest/doctest.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <vector>

#include "comm/algorithm.h"
#include "comm/planner/network_model.h"
#include "comm/planner/predict.h"
#include "core/error.h"
#include "tests/comm/planner_networks.h"

namespace starling::tests {
namespace {

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

TEST_CASE(
    "planner/predict: replicas of two send in parts: a host's link has one model's bytes, each "
    "rank half of them, and what limits a connection or a rank limits two") {
  NetworkModel network = hosts(8, 1.0);
  network.ranks_per_host = 2;
  network.host_bandwidth.assign(4, 4.0 * 1.25e8);
  network.memory_bandwidth = 1e9;
  network.form_replicas(2);
  CHECK(network.ranks == 4);
  CHECK(network.hosts() == 4);
  CHECK(!network.direct);
  const double bytes = 1.25e8;  // a second over one connection
  StepModel step = late_step(bytes, 0.1);
  const auto costs = costs_of(*make("one-peer-exp", 4), network);
  const Prediction gossip = predict_gossip(costs, network, step, 1e9);
  CHECK(gossip.sent == doctest::Approx(bytes / 2));
  CHECK(gossip.between_hosts == doctest::Approx(bytes));
  CHECK(costs[0].per_byte * bytes == doctest::Approx(0.5));
  // Of its half a rank reads both ranks' gradients and writes their mean, then comes the update
  CHECK(compute_alone(step, network) == doctest::Approx(0.1 + 1.25e8 / 2 * (3 + 7) / 1e9));
  step.tensors[0].matrix_flops = 1e9;
  step.matrix_flops_per_second = 1e9;
  CHECK(compute_alone(step, network) == doctest::Approx(0.6 + 1.25e8 / 2 * (3 + 7) / 1e9));

  // Over a long link a sum waits for each window of a part, and so does an idle connection
  const double mebibyte = 1 << 20;
  network = hosts(8, 1e9);
  network.ranks_per_host = 2;
  network.between.latency = 0.01;
  network.form_replicas(2);
  const StepModel sums = late_step(32 * mebibyte, 0.1);
  CHECK(predict_all_reduce(network, sums, 32 * mebibyte).step == doctest::Approx(0.1 + 4 * 0.06));
  NetworkModel plain = hosts(4, 1.0);
  plain.between.latency = 0.05;
  plain.derive_pair();
  NetworkModel replicas = hosts(8, 1.0);
  replicas.ranks_per_host = 2;
  replicas.between.latency = 0.05;
  replicas.form_replicas(2);
  replicas.derive_pair();
  CHECK(replicas.between.bandwidth == doctest::Approx(2 * plain.between.bandwidth));
  const auto seconds = [](const NetworkModel& of, double model) {
    const auto rounds = costs_of(*make("alternating-exp-ring", 4), of);
    return predict_gossip(rounds, of, late_step(model, 0.002), 1e9).step;
  };
  plain.memory_bandwidth = replicas.memory_bandwidth = 1e18;
  CHECK(seconds(replicas, 8e6) == doctest::Approx(seconds(plain, 4e6)).epsilon(0.001));
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
  same({{"type", "local_sgd"}, {"period", 5}, {"delay", 2}},
       predict_averages(network, step, 1e6, 5, 2));
  same({{"type", "diloco"}, {"period", 6}, {"delay", 2}},
       predict_averages(network, step, 1e6, 6, 2));
  // Each of the 8 ranks sends its P to 7 others, once in 6 steps.
  const nlohmann::json quorum = {{"type", "diloco"}, {"period", 6}, {"quorum", 5}};
  same(quorum, predict_averages(network, step, 1e6, 6, 0, 1.0, true));
  double bytes = 0.0;
  for (const PlannedTensor& tensor : step.tensors) bytes += tensor.bytes;
  CHECK(predict(algorithm_of(quorum), costs, network, step, 1e6).sent ==
        doctest::Approx(7.0 * bytes / 6.0));
  same({{"type", "async"}, {"interval_ms", 30}}, predict_asynchronous(network, step, 1e6, 0.03));
  // A round has all the steps up to the next outer step; differences are waited for.
  const auto outer = [&](std::int64_t hidden) {
    return predict_outer_rounds(costs, network, step, 1e6, 6, hidden);
  };
  same({{"type", "gossip_diloco"}, {"period", 6}}, outer(6));
  CHECK(outer(6).sent == doctest::Approx(gossip(true, 6).sent));
  CHECK(outer(6).exposed <= outer(1).exposed);
  Prediction mixed = outer(6);
  const Prediction differences = gossip(false, 6);
  mixed.step += differences.step - compute_alone(step, network);
  mixed.exposed += differences.exposed;
  mixed.sent += differences.sent;
  mixed.between_hosts += differences.between_hosts;
  same({{"type", "gossip_diloco"}, {"period", 6}, {"mix_differences", true}}, mixed);
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

}  // namespace
}  // namespace starling::tests
