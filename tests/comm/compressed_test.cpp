#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "plain_families.h"
#include "support.h"
#include "tests/support/numbers_of_ranks.h"
#include "tests/support/sanitized.h"

// The types of algorithms.md section 5, by the in-memory transport: against a plain rewriting of
// their formulas, and against each other.

using namespace starling;
using nlohmann::json;
using test::Job;
using test::largest_difference;
using test::mean_of;
using test::run_fake;
using test::run_plain_family;

namespace {

using Numbers = test::NumbersOfRanks;

const json kDecayed = {{"type", "sgd"}, {"momentum", 0.7}, {"weight_decay", 0.05}};
const json kBare = {{"type", "sgd"}};
const json kAdam = {{"type", "adam"}, {"weight_decay", 0.05}, {"eps", 1e-3}};
const json kAdamW = {{"type", "adamw"}, {"betas", {0.8, 0.95}}, {"eps", 1e-3}};

enum class Kind { kAny, kFixed };

struct Case {
  json algorithm;
  std::string exchange = "fp32";
  Kind kind = Kind::kAny;
  std::vector<json> optimizers = {kBare, kDecayed, kAdam, kAdamW};
  double tolerance = 1e-11;
  bool apart = true;  ///< ranks may start from different numbers
};

json with_type(const char* type, json keys = json::object()) {
  keys["type"] = type;
  return keys;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::vector<json> sgds = {kBare, kDecayed}, adams = {kAdam, kAdamW};
  for (const char* exchange : {"bf16", "int8"}) {
    for (const json& keys :
         {json::object(), json{{"order", "atc"}}, json{{"interval", 2}, {"global_every", 3}},
          json{{"mixing", 0.6}}, json{{"error_feedback", true}},
          json{{"order", "atc"}, {"error_feedback", true}, {"consensus_step", 0.5}},
          json{{"consensus_step", 0.6}, {"block", 0}}, json{{"block", 32}, {"mix_states", 2}},
          json{{"global_above", 0.1}, {"check_every", 2}, {"error_feedback", true}}}) {
      all.push_back({with_type("gossip", keys), exchange});
    }
    all.push_back({with_type("qgm", {{"block", 64}}), exchange, Kind::kAny, sgds});
    all.push_back({with_type("qgm", {{"order", "awc"}, {"error_feedback", true}}), exchange,
                   Kind::kAny, sgds});
  }
  for (const json& keys :
       {json::object(), json{{"compressor", "minmax8"}, {"block", 64}, {"consensus_step", 0.4}},
        json{{"block", 0}}}) {
    all.push_back({with_type("choco", keys), "fp32", Kind::kFixed});
    all.back().apart = false;
  }
  for (const json& keys : {json::object(), json{{"compressor", "int8"}, {"interval", 3}},
                           json{{"block", 32}, {"interval", 2}}}) {
    all.push_back({with_type("low_precision", keys), "fp32", Kind::kFixed});
    all.back().apart = false;
  }
  for (const json& keys :
       {json::object(), json{{"compressor", "int8"}, {"block", 32}}, json{{"block", 0}}})
    all.push_back({with_type("bytegrad", keys)});
  for (const json& keys :
       {json{{"warmup", 3}}, json{{"warmup", 1}, {"compressor", "int8"}, {"block", 64}}}) {
    all.push_back({with_type("qadam", keys), "fp32", Kind::kAny, adams});
  }
  // In fp64 numbers as they are keep all their digits here, and the plain rewriting rounds them to
  // fp32; what joins the mean's residual too.
  for (const char* type : {"choco", "low_precision", "bytegrad"}) {
    all.push_back({with_type(type, {{"compressor", "none"}}), "fp32", Kind::kFixed});
    all.back().apart = false;
    all.back().tolerance = 1e-5;
  }
  all.push_back({with_type("qadam", {{"warmup", 2}, {"error_feedback", true}}), "fp32", Kind::kAny,
                 adams, 1e-5});
  all.push_back({with_type("qadam", {{"warmup", 4}, {"compressor", "none"}}), "fp32", Kind::kAny,
                 adams, 1e-5});
  return test::fewer_if_sanitized(std::move(all));
}

std::vector<json> topologies_for(Kind kind, int n) {
  std::vector<json> result{{{"type", "static-ring"}}, {{"type", "complete"}}};
  if (kind == Kind::kFixed) {
    result.push_back({{"type", "star"}});
    return result;
  }
  result.push_back({{"type", "base-2"}});
  if (n % 2 == 0) result.push_back({{"type", "ring"}});
  return result;
}

Job job_of(const Case& c, const json& topology, const json& optimizer) {
  Job job;
  job.algorithm = c.algorithm;
  job.exchange = c.exchange;
  job.topology = topology;
  job.optimizer = optimizer;
  job.dtype = DType::kFloat64;
  job.steps = 11;
  job.lr = 0.05;
  job.start_apart = c.apart;
  return job;
}

}  // namespace

TEST_CASE(
    "comm/compressed: every type follows its formulas, compared with a plain rewriting of them") {
  std::size_t turn = 0;
  for (const Case& c : cases()) {
    for (const int n : {1, 2, 3, 4, 5, 8}) {
      ++turn;
      const std::vector<json> topologies = topologies_for(c.kind, n);
      Job job = job_of(c, topologies[turn % topologies.size()],
                       c.optimizers[(turn / 2) % c.optimizers.size()]);
      if (turn % 3 == 0) job.clip.norm = 4.0;
      if (turn % 4 == 0) job.bucket_bytes = 1e9;
      CAPTURE(c.algorithm.dump());
      CAPTURE(c.exchange);
      CAPTURE(job.topology.dump());
      CAPTURE(job.optimizer.dump());
      CAPTURE(n);
      const Numbers expected = run_plain_family(job, n);
      CHECK(largest_difference(run_fake(job, n), expected) < c.tolerance);
      if (n == 1 || c.exchange == "fp32") continue;
      Job whole = job;  // and encoding does show
      whole.exchange = "fp32";
      for (const char* key : {"error_feedback", "consensus_step"}) whole.algorithm.erase(key);
      CHECK(largest_difference(run_plain_family(whole, n), expected) > 1e-5);
    }
  }
}

TEST_CASE("comm/compressed: update mode, overlap, delays, evaluation and a resume change no bit") {
  std::size_t turn = 0;
  for (const Case& c : cases()) {
    for (const char* topology : {"static-ring", "complete"}) {
      if (++turn % 4 > 1) continue;  // one of the two for each
      Job job = job_of(c, {{"type", topology}}, c.optimizers.back());
      job.dtype = DType::kFloat32;
      const Numbers expected = run_fake(job, 4);
      CAPTURE(c.algorithm.dump());
      CAPTURE(c.exchange);
      CAPTURE(topology);
      CHECK(test::ways_that_change_bits(job, expected, false) == "");
      Job other = job;
      other.lr += 1e-3;  // the comparisons can fail
      CHECK(run_fake(other, 4) != expected);
    }
  }
}

TEST_CASE(
    "comm/compressed: a rank that overflows mixes as ever, and where gradients or momenta are "
    "averaged nobody steps") {
  std::size_t turn = 0;
  for (const Case& c : cases()) {
    ++turn;
    const std::vector<json> topologies = topologies_for(c.kind, 4);
    Job job =
        job_of(c, topologies[turn % topologies.size()], c.optimizers[turn % c.optimizers.size()]);
    job.in_backward = false;
    job.check_overflow = true;
    job.loss_scale = 1024;
    job.clip.norm = turn % 2 ? 0.0 : 4.0;
    job.overflows = {{0, 0}, {2, 3}, {2, 4}, {1, 7}, {3, 7}, {0, 9}};
    CAPTURE(c.algorithm.dump());
    CAPTURE(c.exchange);
    CAPTURE(job.topology.dump());
    CAPTURE(job.optimizer.dump());
    const Numbers expected = run_plain_family(job, 4);
    // minmax8 adds 1e-7 to the range of what is sent, and that holds the loss scale.
    const double tolerance = c.algorithm["type"] == "bytegrad" ? 1e-6 : c.tolerance;
    CHECK(largest_difference(run_fake(job, 4), expected) < tolerance);
    Job other = job;
    other.resume_after = 8;  // behind steps that did not count
    CHECK(largest_difference(run_fake(other, 4), expected) < tolerance);
    other = job;
    other.overflows.clear();
    CHECK(largest_difference(run_plain_family(other, 4), expected) > 1e-5);
  }
}

TEST_CASE("comm/compressed: without gradients the mean stays and ranks come together") {
  for (const Case& c : cases()) {
    if (c.algorithm["type"] != "gossip" && c.algorithm["type"] != "qgm") continue;
    for (const int n : {3, 4, 8}) {
      Job job = job_of(c, {{"type", "static-ring"}}, kBare);
      job.lr = 0.0;
      job.steps = 0;
      const Numbers start = run_plain_family(job, n);
      job.steps = 60;
      const Numbers end = run_fake(job, n);
      CAPTURE(c.algorithm.dump());
      CAPTURE(c.exchange);
      CAPTURE(n);
      CHECK(largest_difference({mean_of(end)}, {mean_of(start)}) < 1e-12);
      const Numbers mean(end.size(), mean_of(end));
      CHECK(largest_difference(end, mean) < 0.1 * largest_difference(start, mean));
    }
  }
}

TEST_CASE(
    "comm/compressed: replicas that all believe in keep the mean once the learning rate is 0") {
  for (const json& algorithm :
       {with_type("choco"),
        with_type("choco", {{"consensus_step", 0.5}, {"compressor", "minmax8"}}),
        with_type("choco", {{"compressor", "none"}}),
        with_type("low_precision", {{"compressor", "none"}})}) {
    for (const int n : {3, 4, 8}) {
      Job job = job_of({algorithm, "fp32", Kind::kFixed}, {{"type", "static-ring"}}, kBare);
      job.start_apart = false;
      job.lr_at = [](int t) { return t < 6 ? 0.05 : 0.0; };
      job.steps = 6;
      const Numbers apart = run_fake(job, n);
      job.steps = 80;
      const Numbers end = run_fake(job, n);
      CAPTURE(algorithm.dump());
      CAPTURE(n);
      CHECK(largest_difference({mean_of(end)}, {mean_of(apart)}) < 1e-12);
      CHECK(largest_difference(apart, Numbers(apart.size(), mean_of(apart))) > 1e-3);
      CHECK(largest_difference(end, Numbers(end.size(), mean_of(end))) <
            0.2 * largest_difference(apart, Numbers(apart.size(), mean_of(apart))));
    }
  }
}

TEST_CASE("comm/compressed: what averages gradients or momenta leaves equal bits on all ranks") {
  for (const Case& c : cases()) {
    const std::string type = c.algorithm["type"];
    if (type != "bytegrad" && type != "qadam") continue;
    for (const int n : {2, 3, 5, 8, 9}) {  // 9: more messages than one decoding takes
      Job job = job_of(c, {{"type", "complete"}}, c.optimizers.back());
      job.dtype = DType::kFloat32;
      job.start_apart = false;
      const Numbers x = run_fake(job, n);
      CAPTURE(c.algorithm.dump());
      CAPTURE(n);
      for (const auto& of_rank : x) CHECK(of_rank == x[0]);
    }
  }
}

TEST_CASE("comm/compressed: with numbers as they are, bytegrad is all-reduce") {
  for (const int n : {2, 3, 8, 9}) {
    Case c{with_type("bytegrad", {{"compressor", "none"}})};
    Job job = job_of(c, {{"type", "complete"}}, kDecayed);
    const Numbers chunks = run_fake(job, n);
    job.algorithm = "allreduce";
    CHECK(largest_difference(chunks, run_fake(job, n)) < 1e-13);
  }
}

TEST_CASE(
    "comm/compressed: an all-reduce by chunks or after the pass has all-reduce's bits, one by "
    "nodes its numbers") {
  for (const int n : {1, 2, 4, 6, 9}) {
    for (const bool average : {true, false}) {
      Numbers at_once;
      for (const bool delay : {false, true}) {
        Case c{with_type("allreduce", {{"average", average}, {"delay", delay}})};
        Job job = job_of(c, {{"type", "complete"}}, kDecayed);
        job.dtype = DType::kFloat32;
        job.clip.norm = n % 2 ? 3.0 : 0.0;
        job.lr = 0.01;
        job.start_apart = false;
        const Numbers expected = run_fake(job, n);
        CAPTURE(n);
        CAPTURE(average);
        CAPTURE(delay);
        if (!delay) at_once = expected;
        CHECK(expected == at_once);
        for (const auto& of_rank : expected) CHECK(of_rank == expected[0]);
        job.algorithm["scatter_gather"] = true;
        CHECK(run_fake(job, n) == expected);
        job.algorithm.erase("scatter_gather");
        job.algorithm["hierarchical"] = true;
        for (const int per_node : {1, 2, 3}) {
          if (n % per_node != 0) continue;
          job.algorithm["ranks_per_node"] = per_node;
          const Numbers by_nodes = run_fake(job, n);
          CHECK(largest_difference(by_nodes, expected) < 2e-6);
          for (const auto& of_rank : by_nodes) CHECK(of_rank == by_nodes[0]);
        }
      }
    }
  }
}

TEST_CASE("comm/compressed: local SGD with the gradients of a node") {
  Case c{with_type("local_sgd", {{"period", 4}, {"gradients", "node"}, {"ranks_per_node", 4}})};
  Job job = job_of(c, {{"type", "complete"}}, kDecayed);
  job.start_apart = false;
  const Numbers one_node = run_fake(job, 4);
  job.algorithm = "allreduce";
  CHECK(largest_difference(one_node, run_fake(job, 4)) < 1e-13);
  // Two nodes of two: a node's ranks stay equal, and each node is a rank of a run of two, whose
  // gradients are the means of its own two.
  job.algorithm = c.algorithm;
  job.algorithm["ranks_per_node"] = 2;
  job.steps = 7;
  for (const bool in_backward : {true, false}) {
    job.in_backward = in_backward;
    const Numbers nodes = run_fake(job, 4);
    CHECK(nodes[0] == nodes[1]);
    CHECK(nodes[2] == nodes[3]);
    CHECK(largest_difference({nodes[0]}, {nodes[2]}) > 1e-3);
  }
  job.steps = 8;
  const Numbers met = run_fake(job, 4);
  CHECK(largest_difference({met[0]}, {met[3]}) < 1e-14);
  job.algorithm = "allreduce";
  CHECK(largest_difference(met, run_fake(job, 4)) < 0.2);
}
