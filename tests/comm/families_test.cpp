#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "plain_families.h"
#include "support.h"
#include "tests/support/numbers_of_ranks.h"
#include "tests/support/sanitized.h"

// The types of algorithms.md sections 3 and 4: against a plain rewriting of their formulas, and
// against each other (section 9).

using namespace starling;
using nlohmann::json;
using test::Job;
using test::largest_difference;
using test::mean_of;
using test::run_fake;
using test::run_plain_family;

namespace {

using Numbers = test::NumbersOfRanks;

const json kSgd = {{"type", "sgd"}, {"weight_decay", 0.05}};
const json kBare = {{"type", "sgd"}};
const json kMomentum = {{"type", "sgd"}, {"momentum", 0.8}};
const json kDecayed = {{"type", "sgd"}, {"momentum", 0.7}, {"weight_decay", 0.05}};
const json kNesterov = {
    {"type", "sgd"}, {"momentum", 0.8}, {"nesterov", true}, {"weight_decay", 0.05}};
const json kAdam = {{"type", "adam"}, {"weight_decay", 0.05}};
const json kAdamW = {{"type", "adamw"}, {"betas", {0.8, 0.95}}};

/// The same numbers on every rank.
Numbers on_all(const std::vector<double>& x, std::size_t ranks) { return Numbers(ranks, x); }

/// Where Σ of the ranks' losses, each times its share, has its minimum.
std::vector<double> optimum(const Job& job, const std::vector<double>& shares) {
  std::vector<double> result;
  for (std::size_t p = 0; p < test::job_shapes().size(); ++p) {
    for (std::int64_t k = 0; k < test::job_shapes()[p].elements(); ++k) {
      double above = 0.0, below = 0.0;
      for (std::size_t i = 0; i < shares.size(); ++i) {
        const double steepness = shares[i] * (1.0 + job.rank_curvature * static_cast<double>(i));
        above +=
            steepness * test::target(static_cast<int>(i), static_cast<std::int64_t>(result.size()));
        below += steepness;
      }
      result.push_back(above / below);
    }
  }
  return result;
}

/// Falls to 0, stays there for some steps, and begins anew.
double falling_lr(int t) { return t < 6 ? 0.1 * (1.0 - t / 6.0) : t < 8 ? 0.0 : 0.04; }

json with_type(const char* type, json keys = json::object()) {
  keys["type"] = type;
  return keys;
}

/// Column-stochastic, and its rows do not sum to 1: rank j gives away column j. The ranks' limit
/// weights are 6 : 3 : 4 : 6.
const json kUneven4 = json::parse(R"({"type": "custom", "rounds": [
    {"rows": [[[0, 0.5], [3, 0.5]], [[0, 0.25], [1, 0.5]], [[0, 0.25], [1, 0.5], [2, 0.25]], [[2, 0.75], [3, 0.5]]]}]})");
/// The same in two rounds that differ, for three ranks.
const json kUneven3 = json::parse(R"({"type": "custom", "rounds": [
    {"rows": [[[0, 0.5], [2, 0.5]], [[0, 0.5], [1, 0.25]], [[1, 0.75], [2, 0.5]]]}, [{"ranks": [0, 1], "weight": 0.25}]]})");

/// The same for eight: on a ring each rank keeps and gives on by shares of its own.
json uneven8() {
  json rows = json::array();
  const std::vector<double> kept = {0.25, 0.5, 0.75, 0.25, 0.5, 0.75, 0.375, 0.625};
  for (int i = 0; i < 8; ++i) {
    // a rank gives 3/4 of what it does not keep to the next, the rest to one far away
    const int before = (i + 7) % 8, far = (i + 3) % 8;
    const double next = 0.75 * (1.0 - kept[static_cast<std::size_t>(before)]),
                 jump = 0.25 * (1.0 - kept[static_cast<std::size_t>(far)]);
    std::vector<std::pair<int, double>> row{
        {i, kept[static_cast<std::size_t>(i)]}, {before, next}, {far, jump}};
    std::sort(row.begin(), row.end());
    rows.push_back(row);
  }
  return {{"type", "custom"}, {"rounds", {{{"rows", rows}}}}};
}

enum class Kind { kNone, kDoublyStochastic, kSymmetric, kFixed, kDamped, kColumns };

/// The topologies of this kind that n ranks can have.
std::vector<json> topologies_for(Kind kind, int n) {
  if (kind == Kind::kNone) return {json{{"type", "complete"}}};
  const json complete = {{"type", "complete"}}, ring = {{"type", "static-ring"}},
             star = {{"type", "star"}};
  if (kind == Kind::kFixed) return {ring, complete, star};
  // D² needs every eigenvalue above -1/3.
  if (kind == Kind::kDamped)
    return {json{{"type", "static-ring"}, {"weights", {0.5, 0.25, 0.25}}}, complete, star};
  std::vector<json> result;
  const json one_way = {{"type", "directed-exp"}};
  if (kind == Kind::kColumns) {
    if (n == 3) result.push_back(kUneven3);
    if (n == 4) result.push_back(kUneven4);
    result.push_back(one_way);
  }
  result.push_back({{"type", "base-2"}});
  result.push_back(ring);
  if (n % 2 == 0) result.push_back({{"type", "ring"}});
  if ((n & (n - 1)) == 0) result.push_back({{"type", "one-peer-exp"}});
  if (kind == Kind::kDoublyStochastic) result.push_back(one_way);
  return result;
}

struct Case {
  json algorithm;
  Kind kind = Kind::kNone;
  std::vector<json> optimizers = {kSgd, kDecayed, kNesterov, kAdam, kAdamW};
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::vector<json> gossips = {
      json::object(),
      {{"order", "atc"}},
      {{"interval", 3}},
      {{"order", "atc"}, {"interval", 3}},
      {{"global_every", 3}},
      {{"order", "atc"}, {"global_every", 2}, {"interval", 2}},
      {{"mixing", 0.6}},
      {{"order", "atc"}, {"mixing", 0.3}, {"global_every", 4}},
      {{"mixing", {{"power", 0.5}, {"min", 0.1}}}},
      {{"order", "atc"}, {"mixing", {{"power", 2.0}, {"min", 0.05}}}},
      {{"global_above", 0.2}, {"check_every", 2}},
      {{"global_above", 0.05}, {"check_every", 3}, {"interval", 2}},
      {{"order", "atc"}, {"global_above", 0.1}, {"check_every", 3}},
      {{"order", "atc"},
       {"global_above", 0.02},
       {"check_every", 2},
       {"interval", 2},
       {"global_every", 3}},
  };
  for (const json& keys : gossips)
    all.push_back({with_type("gossip", keys), Kind::kDoublyStochastic});
  const std::vector<json> with_states = {kDecayed, kAdam, kAdamW};
  for (const json& keys :
       {json{{"mix_states", 1}}, json{{"mix_states", 2}, {"order", "atc"}, {"mixing", 0.5}},
        json{{"mix_states", 3}, {"global_every", 3}}, json{{"mix_states", 2}, {"interval", 2}}}) {
    all.push_back({with_type("gossip", keys), Kind::kDoublyStochastic, with_states});
  }
  const std::vector<json> sgds = {kSgd, kDecayed, kNesterov}, plain_sgds = {kSgd, kDecayed};
  for (const json& keys : {json::object(), json{{"order", "awc"}}, json{{"mu", 0.0}},
                           json{{"mu", 0.9}, {"order", "awc"}}}) {
    all.push_back({with_type("qgm", keys), Kind::kDoublyStochastic, sgds});
  }
  all.push_back({with_type("decentlam"), Kind::kFixed, plain_sgds});
  all.push_back({with_type("gradient_tracking"), Kind::kDoublyStochastic});
  all.push_back({with_type("momentum_tracking"), Kind::kDoublyStochastic, {kDecayed, kMomentum}});
  all.push_back({with_type("exact_diffusion"), Kind::kSymmetric});
  all.push_back({with_type("exact_diffusion", {{"lazy", false}}), Kind::kDamped});
  all.push_back({with_type("push_sum"), Kind::kColumns});
  for (const json& keys : {json::object(), json{{"average", false}}, json{{"delay", true}}})
    all.push_back({with_type("allreduce", keys)});
  for (const json& keys : {json{{"period", 3}}, json{{"period", 4}, {"start", 3}},
                           json{{"period", 3}, {"states", "average"}},
                           json{{"period", 3}, {"start", 2}, {"states", "reset"}}}) {
    all.push_back({with_type("local_sgd", keys)});
  }
  for (const json& keys : {json{{"period", 2}, {"average", "topology"}},
                           json{{"period", 3}, {"average", "topology"}, {"start", 2}},
                           json{{"period", 2}, {"average", "topology"}, {"states", "average"}}}) {
    all.push_back({with_type("local_sgd", keys), Kind::kDoublyStochastic});
  }
  for (const json& keys :
       {json{{"period", 3}}, json{{"period", 4}, {"momentum", 0.0}, {"slow_lr", 0.7}},
        json{{"period", 3}, {"momentum", 0.7}, {"states", "average"}},
        json{{"period", 3}, {"states", "reset"}}}) {
    all.push_back({with_type("slowmo", keys)});
  }
  for (json keys : {json::object(), json{{"order", "atc"}},
                    json{{"interval", 2}, {"global_every", 3}}, json{{"mixing", 0.7}}}) {
    for (const int period : {3, 4}) {
      keys.update({{"period", period}, {"inner", "gossip"}, {"slow_lr", 0.8}});
      all.push_back({with_type("slowmo", keys), Kind::kDoublyStochastic});
    }
  }
  for (const json& keys :
       {json{{"period", 3}},
        json{{"period", 4}, {"outer_nesterov", false}, {"outer_lr", 0.5}, {"outer_momentum", 0.6}},
        json{{"period", 4}, {"delay", 2}}, json{{"period", 4}, {"fragments", 2}},
        json{{"period", 8}, {"fragments", 4}, {"delay", 1}},
        json{{"period", 6}, {"fragments", 3}, {"blend", 0.4}, {"delay", 1}},
        json{{"period", 3}, {"blend", 0.5}}, json{{"period", 3}, {"states", "average"}},
        json{{"period", 3}, {"states", "reset"}},
        json{{"period", 4}, {"fragments", 2}, {"states", "average"}, {"delay", 1}}}) {
    all.push_back({with_type("diloco", keys)});
  }
  return test::fewer_if_sanitized(std::move(all));
}

/// In fp64. Ranks start apart wherever a type does not take it for granted that they do not.
Job job_of(const json& algorithm, const json& topology, const json& optimizer) {
  Job job = test::exact_job(algorithm, topology, optimizer);
  job.steps = 13;
  job.start_apart = algorithm["type"] != "diloco";  // its mean moves every rank's own anchor alike
  return job;
}

/// The same without decay, all ranks starting equal: what section 9's equalities are about.
Numbers run_equal(const json& algorithm, const char* topology, const json& optimizer, int ranks) {
  Job job = job_of(algorithm, {{"type", topology}}, optimizer);
  job.start_apart = false;
  job.steps = 14;
  return run_fake(job, ranks);
}

/// What ranks start from.
Numbers start_of(Job job, int ranks) {
  job.steps = 0;
  return run_plain_family(job, ranks);
}

}  // namespace

TEST_CASE(
    "comm/families: every type follows its formulas, compared with a plain rewriting of them") {
  std::size_t index = 0, turn = 0;
  for (const Case& c : cases()) {
    ++index;
    // a case's runs are 8: so every number of ranks meets every topology, optimizer and way of
    // clipping
    turn += index % 2;
    for (const int n : {1, 2, 3, 4, 5, 8}) {
      for (const bool falling : {false, true}) {
        // one of the two is enough
        if (n != 3 && n != 4 && falling == ((index + static_cast<std::size_t>(n)) % 2 == 0))
          continue;
        ++turn;
        const std::vector<json> topologies = topologies_for(c.kind, n);
        Job job = job_of(c.algorithm, topologies[turn % topologies.size()],
                         c.optimizers[(turn + index) % c.optimizers.size()]);
        if (falling) job.lr_at = falling_lr;
        if (turn % 3 == 0) job.clip.norm = 4.0;
        if (turn % 5 == 0) job.rank_curvature = 0.3;
        CAPTURE(c.algorithm.dump());
        CAPTURE(job.topology.dump());
        CAPTURE(job.optimizer.dump());
        CAPTURE(n);
        CAPTURE(falling);
        CAPTURE(job.clip.norm);
        CHECK(largest_difference(run_fake(job, n), run_plain_family(job, n)) < 1e-11);
      }
    }
  }
}

TEST_CASE(
    "comm/families: a rank that overflows keeps its optimizer's state and mixes as ever; the "
    "others go on") {
  const auto compare = [](const Case& c, const json& topology, const json& optimizer, double clip) {
    Job job = job_of(c.algorithm, topology, optimizer);
    job.in_backward = false;
    job.check_overflow = true;
    job.loss_scale = 1024;
    job.clip.norm = clip;
    job.overflows = {{0, 0}, {2, 3}, {2, 4}, {1, 7}, {3, 9}};
    CAPTURE(c.algorithm.dump());
    CAPTURE(topology.dump());
    CAPTURE(optimizer.dump());
    CAPTURE(clip);
    const Numbers expected = run_plain_family(job, 4);
    CHECK(largest_difference(run_fake(job, 4), expected) < 1e-11);
    Job without = job;
    without.overflows.clear();
    CHECK(largest_difference(run_plain_family(without, 4), expected) > 1e-4);
    CHECK(largest_difference(run_fake(without, 4), run_plain_family(without, 4)) < 1e-11);
  };
  std::size_t turn = 0;
  for (const Case& c : cases()) {
    ++turn;
    // refused: ranks count their updates by themselves
    if (c.algorithm.value("states", "") == "reset") continue;
    const std::vector<json> topologies = topologies_for(c.kind, 4);
    compare(c, topologies[turn % topologies.size()], c.optimizers[turn % c.optimizers.size()],
            turn % 2 ? 0.0 : 4.0);
  }
}

TEST_CASE(
    "comm/families: update mode, bucket size, overlap, delays, direct reads, evaluation and a "
    "resume change no bit") {
  struct Kept {
    json algorithm;
    const char* topology = "complete";
    json optimizer = kAdamW;
  };
  const std::vector<Kept> all = {
      {with_type("gossip", {{"interval", 2}, {"global_every", 3}}), "one-peer-exp"},
      {with_type("gossip"), "complete"},
      {with_type("gossip"), "random-matching"},
      {with_type("gossip", {{"order", "atc"}}), "static-ring"},
      {with_type("gossip", {{"order", "atc"}, {"interval", 3}, {"global_every", 2}}),
       "one-peer-exp"},
      {with_type("gossip", {{"global_above", 0.05}, {"check_every", 3}}), "one-peer-exp"},
      {with_type("gossip", {{"order", "atc"}, {"global_above", 0.02}, {"check_every", 2}}),
       "one-peer-exp"},
      {with_type("gossip", {{"mixing", {{"power", 0.5}, {"min", 0.1}}}}), "one-peer-exp"},
      {with_type("gossip", {{"mix_states", 2}}), "one-peer-exp"},
      {with_type("gossip", {{"order", "atc"}, {"mix_states", 1}}), "static-ring"},
      {with_type("qgm"), "one-peer-exp", kNesterov},
      {with_type("qgm", {{"order", "awc"}}), "static-ring", kDecayed},
      {with_type("decentlam"), "static-ring", kDecayed},
      {with_type("gradient_tracking"), "one-peer-exp"},
      {with_type("gradient_tracking"), "static-ring", kNesterov},
      {with_type("momentum_tracking"), "one-peer-exp", kDecayed},
      {with_type("exact_diffusion"), "one-peer-exp"},
      {with_type("exact_diffusion", {{"lazy", false}}), "complete", kDecayed},
      {with_type("push_sum"), "directed-exp"},
      {with_type("push_sum"), "uneven", kDecayed},
      {with_type("allreduce")},
      {with_type("allreduce", {{"average", false}})},
      {with_type("allreduce", {{"delay", true}})},
      {with_type("local_sgd", {{"period", 3}, {"start", 4}, {"states", "average"}})},
      {with_type("local_sgd", {{"period", 2}, {"average", "topology"}, {"states", "reset"}}),
       "one-peer-exp"},
      {with_type("slowmo", {{"period", 3}})},
      {with_type("slowmo", {{"period", 4}, {"inner", "gossip"}}), "one-peer-exp"},
      {with_type("diloco", {{"period", 4}, {"delay", 2}})},
      {with_type("diloco", {{"period", 8}, {"fragments", 4}, {"delay", 1}, {"blend", 0.3}}),
       "complete", kDecayed},
  };
  for (const Kept& kept : test::fewer_if_sanitized(all)) {
    Job job =
        job_of(kept.algorithm,
               std::string(kept.topology) == "uneven" ? kUneven4 : json{{"type", kept.topology}},
               kept.optimizer);
    job.dtype = DType::kFloat32;
    job.lr_at = [](int t) { return 0.1 - 0.006 * t; };
    const Numbers expected = run_fake(job, 4);
    CAPTURE(kept.algorithm.dump());
    CAPTURE(kept.topology);
    const bool cut = kept.algorithm.value("fragments", 1) > 1;  // of buckets
    CHECK(test::ways_that_change_bits(job, expected, !cut) == "");
    Job other = job;  // the comparisons can fail
    other.lr_at = [](int t) { return 0.1 - 0.006 * t + (t == 12 ? 1e-3 : 0.0); };
    CHECK(run_fake(other, 4) != expected);
  }
}

TEST_CASE(
    "comm/families: a global norm's clipping is the same for every update mode and bucket size") {
  for (const char* type :
       {"gossip", "gradient_tracking", "momentum_tracking", "exact_diffusion", "push_sum", "qgm"}) {
    Job job = job_of(with_type(type), {{"type", "one-peer-exp"}}, kDecayed);
    job.dtype = DType::kFloat32;
    job.clip.norm = 3.0;
    const Numbers expected = run_fake(job, 4);
    CAPTURE(type);
    for (const double bytes : {1.0, 1e9}) {
      job.bucket_bytes = bytes;
      CHECK(run_fake(job, 4) == expected);
      job.in_backward = !job.in_backward;
    }
    job.clip.norm = 0.0;
    CHECK(run_fake(job, 4) != expected);
  }
}

TEST_CASE("comm/families: types are each other's special cases") {
  using Run = std::pair<json, json>;  // algorithm and optimizer
  struct Equal {
    std::vector<Run> same;
    Run other;  // with another setting numbers differ, by `least` and more
    double least = 1e-3;
    std::vector<const char*> topologies = {"complete"};
  };
  const json sums = with_type("allreduce"), awc = with_type("gossip"),
             atc = with_type("gossip", {{"order", "atc"}});
  std::vector<Equal> all;
  for (const json& optimizer : {kBare, kMomentum})
    all.push_back({{Run(sums, optimizer), Run(atc, optimizer)}, Run(awc, optimizer)});
  for (const json& optimizer : {kBare, kNesterov, kAdamW}) {
    const auto local = [&](int period) {
      return Run(with_type("local_sgd", {{"period", period}}), optimizer);
    };
    all.push_back({{Run(atc, optimizer), local(1)}, local(5)});
    // slow steps, and outer ones, of length 1 without momentum
    for (const int period : {1, 3, 4}) {
      const auto slow = [&](double momentum) {
        return Run(
            with_type("slowmo", {{"period", period}, {"slow_lr", 1.0}, {"momentum", momentum}}),
            optimizer);
      };
      const json outer = {{"period", period},
                          {"outer_lr", 1.0},
                          {"outer_momentum", 0.0},
                          {"outer_nesterov", false}};
      all.push_back({{local(period), slow(0.0), Run(with_type("diloco", outer), optimizer)},
                     slow(0.2),
                     1e-4});
    }
  }
  const auto outer = [](bool nesterov) {
    return Run(with_type("diloco", {{"period", 3},
                                    {"outer_lr", 0.8},
                                    {"outer_momentum", 0.6},
                                    {"outer_nesterov", nesterov}}),
               kDecayed);
  };
  const Run slow(with_type("slowmo", {{"period", 3}, {"slow_lr", 0.8}, {"momentum", 0.6}}),
                 kDecayed);
  all.push_back({{slow, outer(false)}, outer(true), 1e-4});  // at a constant learning rate
  const json qgm = with_type("qgm"), no_mu = with_type("qgm", {{"mu", 0.0}}),
             decentlam = with_type("decentlam");
  all.push_back({{Run(atc, kBare), Run(qgm, kBare)},
                 Run(qgm, kMomentum),
                 1e-3,
                 {"static-ring", "complete", "base-2"}});
  all.push_back({{Run(atc, kBare), Run(decentlam, kBare)},
                 Run(decentlam, kMomentum),
                 1e-3,
                 {"static-ring", "complete"}});
  all.push_back({{Run(sums, kMomentum), Run(decentlam, kMomentum), Run(no_mu, kMomentum)},
                 Run(qgm, kMomentum)});
  const json lazy = with_type("exact_diffusion"),
             eager = with_type("exact_diffusion", {{"lazy", false}});
  all.push_back({{Run(sums, kBare), Run(eager, kBare)}, Run(lazy, kBare), 1e-5});
  for (const Equal& equal : all) {
    for (const char* topology : equal.topologies) {
      for (const int n : {2, 5, 8}) {
        CAPTURE(topology);
        CAPTURE(n);
        CAPTURE(equal.same[0].first.dump());
        CAPTURE(equal.same[0].second.dump());
        const auto run = [&](const Run& of) { return run_equal(of.first, topology, of.second, n); };
        const Numbers expected = run(equal.same[0]);
        for (std::size_t i = 1; i < equal.same.size(); ++i) {
          CAPTURE(equal.same[i].first.dump());
          CHECK(largest_difference(run(equal.same[i]), expected) < 1e-11);
        }
        CHECK(largest_difference(run(equal.other), expected) > equal.least);
      }
    }
  }
}

TEST_CASE(
    "comm/families: on a single rank trackings and exact diffusion are the optimizer alone, to the "
    "bit") {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
    for (const json& optimizer : {kBare, kSgd, kDecayed, kNesterov, kAdam, kAdamW}) {
      const auto run = [&](const char* type, const json& keys = json::object()) {
        Job job = job_of(with_type(type, keys), {{"type", "complete"}}, optimizer);
        job.dtype = dtype;
        return run_fake(job, 1);
      };
      const Numbers alone = run("allreduce");
      CAPTURE(optimizer.dump());
      CHECK(run("gossip") == alone);
      CHECK(run("gradient_tracking") == alone);
      CHECK(run("exact_diffusion") == alone);
      if (optimizer.value("momentum", 0.0) > 0.0 && !optimizer.value("nesterov", false))
        CHECK(run("momentum_tracking") == alone);
      CHECK(run("slowmo", {{"period", 2}}) != alone);
    }
  }
}

TEST_CASE(
    "comm/families: trackings and exact diffusion find the optimum of losses with unequal "
    "curvatures, gossip does not") {
  const int n = 4;
  const auto found = [&](const json& algorithm, const json& optimizer, double lr, int steps,
                         Job* of = nullptr) {
    Job job = job_of(algorithm, {{"type", "static-ring"}}, optimizer);
    job.rank_curvature = 0.25;
    job.bucket_bytes = 1e9;
    job.lr = lr;
    job.steps = steps;
    if (of) *of = job;
    return run_fake(job, n);
  };
  Job job;
  const Numbers tracked = found(with_type("gradient_tracking"), kBare, 0.05, 500, &job);
  const std::vector<double> best = optimum(job, std::vector<double>(n, 1.0));
  CHECK(largest_difference(tracked, on_all(best, n)) < 1e-9);
  CHECK(largest_difference(found(with_type("exact_diffusion"), kBare, 0.1, 400), on_all(best, n)) <
        1e-9);
  const json heavy = {{"type", "sgd"}, {"momentum", 0.9}};
  CHECK(largest_difference(found(with_type("momentum_tracking"), heavy, 0.01, 600),
                           on_all(best, n)) < 1e-9);
  for (const char* order : {"awc", "atc"}) {
    const Numbers gossip = found(with_type("gossip", {{"order", order}}), kBare, 0.1, 300);
    CHECK(largest_difference({mean_of(gossip)}, {best}) > 1e-3);
    CHECK(largest_difference({mean_of(gossip)}, {best}) < 1.0);  // it does go there
  }
}

TEST_CASE("comm/families: with learning rate 0 the mean stays and ranks come closer") {
  std::size_t turn = 0;
  for (const Case& c : cases()) {
    const std::string type = c.algorithm["type"];
    if (type == "allreduce" || type == "diloco") continue;  // nothing mixes; anchors do not
    for (const int n : {3, 4, 8}) {
      const std::vector<json> topologies =
          topologies_for(c.kind == Kind::kColumns ? Kind::kDoublyStochastic : c.kind, n);
      const json& topology = topologies[++turn % topologies.size()];
      Job job = job_of(c.algorithm, topology, c.optimizers[turn % c.optimizers.size()]);
      job.lr = 0.0;
      job.bucket_bytes = 1e9;
      const Numbers before = start_of(job, n), after = run_fake(job, n);
      const Numbers mean = on_all(mean_of(before), before.size());
      CAPTURE(c.algorithm.dump());
      CAPTURE(topology.dump());
      CAPTURE(n);
      CHECK(largest_difference({mean_of(after)}, {mean[0]}) < 1e-13);
      CHECK(largest_difference(after, mean) < 0.95 * largest_difference(before, mean));
    }
  }
}

TEST_CASE("comm/families: push-sum on a doubly stochastic topology is adapt-then-combine") {
  for (const int n : {2, 5, 8}) {
    for (const json& topology : topologies_for(Kind::kDoublyStochastic, n)) {
      Job job = job_of(with_type("push_sum"), topology, kDecayed);
      const Numbers pushed = run_fake(job, n);
      job.algorithm = with_type("gossip", {{"order", "atc"}});
      CAPTURE(topology.dump());
      CHECK(largest_difference(pushed, run_fake(job, n)) < 1e-12);
      job.algorithm = with_type("gossip");
      CHECK(largest_difference(pushed, run_fake(job, n)) > 1e-3);
    }
  }
}

TEST_CASE(
    "comm/families: push-sum on an uneven topology keeps the weighted mean and reaches the "
    "optimum") {
  Job job = job_of(with_type("push_sum"), kUneven4, kBare);
  job.bucket_bytes = 1e9;
  job.lr = 0.0;
  job.steps = 80;
  const Numbers before = start_of(job, 4);
  CHECK(largest_difference(run_fake(job, 4), on_all(mean_of(before), 4)) < 1e-12);

  job.lr_at = [](int t) { return 0.1 / (1.0 + t / 40.0); };
  job.steps = 1000;
  const std::vector<double> best = optimum(job, {1.0, 1.0, 1.0, 1.0});
  CHECK(largest_difference(run_fake(job, 4), on_all(best, 4)) < 2e-2);
}

TEST_CASE(
    "comm/families: push-sum on 8 ranks that receive unequally reaches the optimum of unequal "
    "losses, by its weights") {
  Job job = job_of(with_type("push_sum"), uneven8(), kBare);
  job.bucket_bytes = 1e9;
  job.rank_curvature = 0.25;
  job.steps = 2500;
  job.lr_at = [](int t) { return 0.05 / (1.0 + t / 60.0); };
  const std::vector<double> best = optimum(job, std::vector<double>(8, 1.0));
  const Numbers found = run_fake(job, 8);
  CHECK(largest_difference(found, on_all(best, 8)) < 2e-2);
  CHECK(largest_difference(found, run_plain_family(job, 8)) < 1e-11);
  // With weights that are 1 again in every step, ranks agree on another point.
  job.reset_omega = true;
  const Numbers without = run_plain_family(job, 8);
  CHECK(largest_difference(without, on_all(mean_of(without), 8)) < 2e-2);
  CHECK(largest_difference({mean_of(without)}, {best}) > 0.1);
}
