#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "kernels/open_backend.h"
#include "plain_families.h"
#include "support.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/errors.h"
#include "tests/support/numbers_of_ranks.h"
#include "tests/support/sanitized.h"
#include "tests/support/soon.h"

// The types of algorithms.md sections 3 to 5: against a plain rewriting of their formulas, and
// the properties of section 9 that formulas alone do not show.

using namespace starling;
using nlohmann::json;
using test::exact_job;
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
const json kMuon = {{"type", "muon"}, {"weight_decay", 0.05}};
/// Which do not make much of what encoding changes in small numbers.
const json kDampedAdam = {{"type", "adam"}, {"weight_decay", 0.05}, {"eps", 1e-3}};
const json kDampedAdamW = {{"type", "adamw"}, {"betas", {0.8, 0.95}}, {"eps", 1e-3}};

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

/// What a topology must be for an algorithm.
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
    if (n == 8) result.push_back(uneven8());
    result.push_back(one_way);
  }
  result.push_back({{"type", "base-2"}});
  result.push_back(ring);
  if (n % 2 == 0) result.push_back({{"type", "ring"}});
  if ((n & (n - 1)) == 0) result.push_back({{"type", "one-peer-exp"}});
  if (kind == Kind::kDoublyStochastic) result.insert(result.end(), {one_way, complete});
  return result;
}

/// An algorithm's config and, as `exchange`, how its messages travel.
const char* const kAlgorithms = R"([
  {"type": "gossip"}, {"type": "gossip", "order": "atc"}, {"type": "gossip", "interval": 3},
  {"type": "gossip", "order": "atc", "interval": 3}, {"type": "gossip", "global_every": 3},
  {"type": "gossip", "order": "atc", "global_every": 2, "interval": 2},
  {"type": "gossip", "mixing": 0.6},
  {"type": "gossip", "order": "atc", "mixing": 0.3, "global_every": 4},
  {"type": "gossip", "mixing": {"power": 0.5, "min": 0.1}},
  {"type": "gossip", "order": "atc", "mixing": {"power": 2.0, "min": 0.05}},
  {"type": "gossip", "global_above": 0.2, "check_every": 2},
  {"type": "gossip", "global_above": 0.05, "check_every": 3, "interval": 2},
  {"type": "gossip", "order": "atc", "global_above": 0.1, "check_every": 3},
  {"type": "gossip", "order": "atc", "global_above": 0.02, "check_every": 2, "interval": 2, "global_every": 3},
  {"type": "gossip", "mix_states": 1}, {"type": "gossip", "mix_states": 2, "order": "atc", "mixing": 0.5},
  {"type": "gossip", "mix_states": 3, "global_every": 3}, {"type": "gossip", "mix_states": 2, "interval": 2},
  {"type": "qgm"}, {"type": "qgm", "order": "awc"}, {"type": "qgm", "mu": 0.0},
  {"type": "qgm", "mu": 0.9, "order": "awc"},
  {"type": "decentlam"}, {"type": "gradient_tracking"}, {"type": "momentum_tracking"},
  {"type": "exact_diffusion"}, {"type": "exact_diffusion", "lazy": false}, {"type": "push_sum"},
  {"type": "allreduce"}, {"type": "allreduce", "average": false}, {"type": "allreduce", "delay": true},
  {"type": "local_sgd", "period": 3}, {"type": "local_sgd", "period": 4, "start": 3},
  {"type": "local_sgd", "period": 3, "states": "average"},
  {"type": "local_sgd", "period": 3, "start": 2, "states": "reset"},
  {"type": "local_sgd", "period": 2, "average": "topology"},
  {"type": "local_sgd", "period": 3, "average": "topology", "start": 2},
  {"type": "local_sgd", "period": 2, "average": "topology", "states": "average"},
  {"type": "slowmo", "period": 3}, {"type": "slowmo", "period": 4, "momentum": 0.0, "slow_lr": 0.7},
  {"type": "slowmo", "period": 3, "momentum": 0.7, "states": "average"},
  {"type": "slowmo", "period": 3, "states": "reset"},
  {"type": "slowmo", "period": 3, "inner": "gossip", "slow_lr": 0.8},
  {"type": "slowmo", "period": 4, "inner": "gossip", "slow_lr": 0.8},
  {"type": "slowmo", "period": 3, "inner": "gossip", "slow_lr": 0.8, "order": "atc"},
  {"type": "slowmo", "period": 4, "inner": "gossip", "slow_lr": 0.8, "order": "atc"},
  {"type": "slowmo", "period": 3, "inner": "gossip", "slow_lr": 0.8, "interval": 2, "global_every": 3},
  {"type": "slowmo", "period": 4, "inner": "gossip", "slow_lr": 0.8, "interval": 2, "global_every": 3},
  {"type": "slowmo", "period": 3, "inner": "gossip", "slow_lr": 0.8, "mixing": 0.7},
  {"type": "slowmo", "period": 4, "inner": "gossip", "slow_lr": 0.8, "mixing": 0.7},
  {"type": "diloco", "period": 3},
  {"type": "diloco", "period": 4, "outer_nesterov": false, "outer_lr": 0.5, "outer_momentum": 0.6},
  {"type": "diloco", "period": 4, "delay": 2}, {"type": "diloco", "period": 4, "fragments": 2},
  {"type": "diloco", "period": 8, "fragments": 4, "delay": 1},
  {"type": "diloco", "period": 6, "fragments": 3, "blend": 0.4, "delay": 1},
  {"type": "diloco", "period": 3, "blend": 0.5}, {"type": "diloco", "period": 3, "states": "average"},
  {"type": "diloco", "period": 3, "states": "reset"},
  {"type": "diloco", "period": 4, "fragments": 2, "states": "average", "delay": 1},
  {"type": "gossip_diloco", "period": 3}, {"type": "gossip_diloco", "period": 2, "mix_differences": true},
  {"type": "gossip_diloco", "period": 3, "outer_nesterov": false, "outer_lr": 0.5, "outer_momentum": 0.6},
  {"type": "gossip_diloco", "period": 4, "fragments": 2}, {"type": "gossip_diloco", "period": 3, "states": "reset"},
  {"type": "gossip_diloco", "period": 4, "fragments": 4, "mix_differences": true},
  {"type": "gossip_diloco", "period": 3, "consensus_step": 0.5},
  {"type": "gossip_diloco", "period": 4, "fragments": 2, "mix_differences": true, "consensus_step": 0.7},
  {"type": "choco"}, {"type": "choco", "compressor": "minmax8", "block": 64, "consensus_step": 0.4},
  {"type": "choco", "block": 0}, {"type": "choco", "compressor": "none"},
  {"type": "low_precision"}, {"type": "low_precision", "compressor": "int8", "interval": 3},
  {"type": "low_precision", "block": 32, "interval": 2}, {"type": "low_precision", "compressor": "none"},
  {"type": "bytegrad"}, {"type": "bytegrad", "compressor": "int8", "block": 32},
  {"type": "bytegrad", "block": 0}, {"type": "bytegrad", "compressor": "none"},
  {"type": "qadam", "warmup": 3}, {"type": "qadam", "warmup": 1, "compressor": "int8", "block": 64},
  {"type": "qadam", "warmup": 2, "error_feedback": true},
  {"type": "qadam", "warmup": 4, "compressor": "none"},
  {"type": "local_sgd", "period": 4, "delay": 3}, {"type": "local_sgd", "period": 3, "start": 2, "delay": 1},
  {"type": "local_sgd", "period": 4, "delay": 1, "states": "average"},
  {"type": "local_sgd", "period": 3, "delay": 2, "states": "reset"}])";
/// As bf16, int8 and int4.
const char* const kEncoded = R"([
  {"type": "gossip"}, {"type": "gossip", "order": "atc"},
  {"type": "gossip", "interval": 2, "global_every": 3}, {"type": "gossip", "mixing": 0.6},
  {"type": "gossip", "error_feedback": true},
  {"type": "gossip", "order": "atc", "error_feedback": true, "consensus_step": 0.5},
  {"type": "gossip", "consensus_step": 0.6, "block": 0}, {"type": "gossip", "block": 32, "mix_states": 2},
  {"type": "gossip", "global_above": 0.1, "check_every": 2, "error_feedback": true},
  {"type": "gossip_diloco", "period": 3}, {"type": "gossip_diloco", "period": 2, "error_feedback": true},
  {"type": "gossip_diloco", "period": 2, "mix_differences": true, "consensus_step": 0.6, "block": 32},
  {"type": "diloco", "period": 3}, {"type": "diloco", "period": 2, "error_feedback": true, "block": 32},
  {"type": "diloco", "period": 4, "fragments": 2, "delay": 1, "error_feedback": true, "error_decay": 0.5},
  {"type": "diloco", "period": 6, "delay": 4, "blend": 0.3, "error_feedback": true},
  {"type": "qgm", "block": 64}, {"type": "qgm", "order": "awc", "error_feedback": true}])";

/// As sparse.
const char* const kSparse = R"([
  {"type": "diloco", "period": 3}, {"type": "diloco", "period": 2, "share": 0.25, "block": 32},
  {"type": "diloco", "period": 3, "aggregate": "ranks", "value_bits": 8, "error_decay": 1.0},
  {"type": "diloco", "period": 4, "fragments": 2, "value_bits": 4, "share": 0.3, "block": 8192,
   "outer_lr": 0.7, "outer_momentum": 0.9},
  {"type": "diloco", "period": 6, "delay": 4, "error_feedback": false}])";

struct FamilyCase {
  json algorithm;
  std::string exchange = "fp32";

  std::string type() const { return algorithm["type"]; }
  bool among(const std::vector<std::string>& types) const {
    return std::find(types.begin(), types.end(), type()) != types.end();
  }
  bool encoded() const {
    return exchange != "fp32" || among({"choco", "low_precision", "bytegrad", "qadam"});
  }
  Kind kind() const {
    if (among({"decentlam", "choco", "low_precision"})) return Kind::kFixed;
    if (type() == "push_sum") return Kind::kColumns;
    if (type() == "exact_diffusion")
      return algorithm.value("lazy", true) ? Kind::kSymmetric : Kind::kDamped;
    const bool gossips =
        among({"gossip", "gossip_diloco", "qgm", "gradient_tracking", "momentum_tracking"}) ||
        algorithm.value("average", json()) == "topology" ||
        algorithm.value("inner", json()) == "gossip";
    return gossips ? Kind::kDoublyStochastic : Kind::kNone;
  }
  std::vector<json> optimizers() const {
    if (type() == "qadam") return {kDampedAdam, kDampedAdamW};
    if (type() == "decentlam" || (type() == "qgm" && encoded())) return {kSgd, kDecayed};
    if (type() == "qgm") return {kSgd, kDecayed, kNesterov};
    if (type() == "momentum_tracking") return {kDecayed, kMomentum};
    if (encoded()) return {kBare, kDecayed, kDampedAdam, kDampedAdamW};
    if (algorithm.contains("mix_states")) return {kDecayed, kAdam, kAdamW};
    if (among({"local_sgd", "diloco", "gossip_diloco"}))
      return {kSgd, kDecayed, kNesterov, kAdam, kAdamW, kMuon};
    return {kSgd, kDecayed, kNesterov, kAdam, kAdamW};
  }
  /// In fp64 numbers as they are keep all their digits, and the plain rewriting rounds them to
  /// fp32. Muon's iterations enlarge a rounding 3.44^5 times.
  double tolerance(const Job& job) const {
    if (job.optimizer.value("type", "") == "muon") return 1e-9;
    return algorithm.value("compressor", "") == "none" ? 1e-5 : 1e-11;
  }
};

const std::vector<FamilyCase>& cases() {
  static const std::vector<FamilyCase> all = [] {
    std::vector<FamilyCase> result;
    for (const json& algorithm : json::parse(kAlgorithms)) result.push_back({algorithm});
    for (const char* exchange : {"bf16", "int8", "int4"}) {
      for (const json& algorithm : json::parse(kEncoded)) result.push_back({algorithm, exchange});
    }
    for (const json& algorithm : json::parse(kSparse)) result.push_back({algorithm, "sparse"});
    return test::fewer_if_sanitized(std::move(result));
  }();
  return all;
}
/// Each type's first with each exchange, and where no sanitizer looks every third of the others.
std::vector<FamilyCase> some_cases() {
  std::vector<FamilyCase> result;
  std::set<std::string> types;
  std::size_t turn = 0;
  for (const FamilyCase& c : cases()) {
    if (types.insert(c.type() + c.exchange).second || (++turn % 3 == 0 && !test::kSanitized))
      result.push_back(c);
  }
  return result;
}

/// In fp64. Ranks start apart wherever a type does not take it for granted that they do not.
Job job_of(const FamilyCase& c, const json& topology, const json& optimizer) {
  Job job = test::exact_job(c.algorithm, topology, optimizer);
  job.exchange = c.exchange;
  job.steps = 13;
  if (c.encoded()) job.lr = 0.05;
  // the mean of DiLoCo moves every rank's own anchor alike, and replicas are of one start
  job.start_apart = !c.among({"diloco", "choco", "low_precision"});
  return job;
}
Job job_of(const json& algorithm, const json& topology, const json& optimizer) {
  return job_of(FamilyCase{algorithm}, topology, optimizer);
}
/// The case's job on one of the topologies and with one of the optimizers that it may have.
Job job_of(const FamilyCase& c, int ranks, std::size_t turn, std::size_t other_turn) {
  const std::vector<json> topologies = topologies_for(c.kind(), ranks), optimizers = c.optimizers();
  return job_of(c, topologies[turn % topologies.size()],
                optimizers[other_turn % optimizers.size()]);
}

std::string text_of(const Job& job, int ranks) {
  return fmt::format("{} {} {} {} of {}, clip {}", job.algorithm.dump(), job.exchange,
                     job.topology.dump(), job.optimizer.dump(), ranks, job.clip.norm);
}

}  // namespace

TEST_CASE(
    "comm/families: every type follows its formulas, compared with a plain rewriting of them") {
  std::size_t index = 0, turn = 0;
  std::set<std::string> types;
  for (const FamilyCase& c : cases()) {
    ++index;
    // A type's first meets every number of ranks; of the others each meets two, which are others
    // from case to case, as are topologies, optimizers and ways of clipping.
    const bool first = types.insert(c.type() + c.exchange).second && !test::kSanitized;
    const std::set<int> some{index % 2 == 0 ? 3 : 4, std::array{1, 2, 5, 8}.at(index / 2 % 4)};
    for (const int n : {1, 2, 3, 4, 5, 8}) {
      if (!first && !some.contains(n)) continue;
      for (const bool falling : {false, true}) {
        // one of the two is enough
        if ((!first || n != 3) && falling == ((index + static_cast<std::size_t>(n)) % 2 == 0))
          continue;
        ++turn;
        Job job = job_of(c, n, turn, turn + index);
        if (falling && !c.encoded()) job.lr_at = falling_lr;
        if (turn % 3 == 0) job.clip.norm = 4.0;
        if (turn % 4 == 0 && !c.algorithm.contains("fragments")) job.bucket_bytes = 1e9;
        if (turn % 5 == 0) job.rank_curvature = 0.3;
        CAPTURE(text_of(job, n));
        const Numbers expected = run_plain_family(job, n);
        CHECK(largest_difference(run_fake(job, n), expected) < c.tolerance(job));
        if (n == 1 || c.exchange == "fp32") continue;
        Job whole = job;  // encoding does show
        whole.exchange = "fp32";
        for (const char* key : {"error_feedback", "consensus_step"}) whole.algorithm.erase(key);
        if (c.exchange == "sparse") continue;  // whose defaults are others
        CHECK(largest_difference(run_plain_family(whole, n), expected) > 1e-5);
      }
    }
  }
}

TEST_CASE(
    "comm/families: the numbers of PyTorch's DistributedDataParallel with its hooks, and of "
    "decent-dp") {
  std::ifstream file("golden/algorithms.json");  // by golden/make_algorithms.py
  REQUIRE_MESSAGE(file.good(), "golden/algorithms.json is read from the folder tests/");
  const json golden = json::parse(file);
  REQUIRE(golden["cases"].size() >= 10);
  for (const json& expected : golden["cases"]) {
    const std::string name = expected["name"], type = expected["optimizer"]["type"];
    CAPTURE(name);
    CAPTURE(type);
    Job job;
    job.algorithm = expected["algorithm"];
    job.optimizer = expected["optimizer"];
    job.dtype = DType::kFloat64;
    job.steps = golden["steps"];
    job.lr = golden["lr"];
    const Numbers all = run_fake(job, static_cast<int>(expected["ranks"].size()));
    Numbers kept;  // every 13th number, and a sum that notices the others
    for (const auto& x : all) {
      kept.emplace_back();
      for (std::size_t e = 0; e < x.size(); e += 13) kept.back().push_back(x[e]);
      double sum = 0.0;
      for (std::size_t e = 0; e < x.size(); ++e) sum += x[e] * std::cos(static_cast<double>(e));
      kept.back().push_back(sum);
    }
    CHECK(largest_difference(kept, expected["ranks"].get<Numbers>()) < 1e-12);
  }
}

TEST_CASE("comm/families: a run of n ranks in replicas of R has the numbers of one of n / R") {
  std::size_t turn = 0;
  for (const FamilyCase& c : cases()) {
    // What is added up in chunks of the ranks has other chunks of a part, and a code whose scale is
    // for a whole message has another
    if (c.among({"bytegrad", "qadam"}) && c.algorithm.value("compressor", "") != "none") continue;
    if (c.among({"diloco"}) && (c.exchange == "int8" || c.exchange == "int4")) continue;
    if (c.algorithm.value("block", 1) == 0) continue;
    for (const auto& [replicas, ranks] : {std::pair{1, 2}, {2, 2}, {2, 3}, {3, 2}, {4, 2}}) {
      ++turn;
      if ((turn + turn / 5) % 5 != 0) continue;  // each layout meets other jobs
      Job job = job_of(c, replicas, turn, turn / 2);
      if (turn % 3 == 0) job.clip = {4.0, turn % 2 == 0};
      if (turn % 4 == 0 && !c.algorithm.contains("fragments")) job.bucket_bytes = 1e9;
      if (turn % 5 == 0) job.in_backward = false;
      job.resume_after = turn % 7 == 0 ? 8 : 0;
      CAPTURE(text_of(job, replicas));
      CAPTURE(ranks);
      const Numbers expected = run_fake(job, replicas);
      job.replica = ranks;
      job.exchanging = turn % 2 == 0;
      if (turn % 4 == 0) job.compute = DType::kBFloat16;  // whose buckets are divided
      // Rounding that encoding would show comes with other gradients, and with thirds
      const bool exact = c.encoded() && c.algorithm.value("compressor", "") != "none";
      if (exact && ranks > 2) continue;
      job.apart_in_replica = exact ? 0.0 : 0.25;
      job.ready_shuffle = static_cast<int>(turn % 2);
      job.slow_rank = static_cast<int>(turn % 3);
      const Numbers found = run_fake(job, replicas * ranks);
      for (std::size_t rank = 0; rank < found.size(); ++rank)
        CHECK(
            largest_difference({found[rank]}, {expected[rank / static_cast<std::size_t>(ranks)]}) <
            c.tolerance(job));
    }
  }
}

TEST_CASE(
    "comm/families: a rank that overflows keeps its optimizer's state and mixes as ever; where "
    "gradients or momenta are averaged nobody steps") {
  std::size_t turn = 0;
  for (const FamilyCase& c : some_cases()) {
    ++turn;
    // refused: ranks count their updates by themselves
    if (c.algorithm.value("states", "") == "reset") continue;
    Job job = job_of(c, 4, turn, turn);
    job.in_backward = false;
    job.check_overflow = true;
    job.loss_scale = 1024;
    job.clip.norm = turn % 2 ? 0.0 : 4.0;
    job.overflows = {{0, 0}, {2, 3}, {2, 4}, {1, 7}, {3, 7}, {0, 9}};
    CAPTURE(text_of(job, 4));
    const Numbers expected = run_plain_family(job, 4);
    // minmax8 adds 1e-7 to the range of what is sent, and that holds the loss scale.
    const double tolerance =
        c.type() == "bytegrad" ? std::max(c.tolerance(job), 1e-6) : c.tolerance(job);
    CHECK(largest_difference(run_fake(job, 4), expected) < tolerance);
    Job other = job;
    other.resume_after = 8;  // behind steps that did not count
    CHECK(largest_difference(run_fake(other, 4), expected) < tolerance);
    other = job;
    other.overflows.clear();
    CHECK(largest_difference(run_plain_family(other, 4), expected) > 1e-5);
  }
}

TEST_CASE(
    "comm/ways: update mode, bucket size, overlap, delays, direct reads, evaluation, a resume, "
    "and where a global norm clips change no bit") {
  std::size_t turn = 0;
  for (const FamilyCase& c : some_cases()) {
    ++turn;
    Job job = job_of(c, 4, turn, turn + 2);
    job.dtype = DType::kFloat32;
    job.clip.norm = turn % 2 ? 3.0 : 0.0;
    job.lr_at = [](int t) { return 0.1 - 0.006 * t; };
    CAPTURE(text_of(job, 4));
    const Numbers expected = run_fake(job, 4);
    const bool by_buckets = c.algorithm.value("fragments", 1) > 1 || c.encoded();
    CHECK(test::ways_that_change_bits(job, expected, !by_buckets) == "");
    Job other = job;  // the comparisons can fail
    other.lr_at = [](int t) { return 0.1 - 0.006 * t + (t == 12 ? 1e-3 : 0.0); };
    CHECK(run_fake(other, 4) != expected);
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
      CHECK(run("gossip_diloco", {{"period", 3}}) == run("diloco", {{"period", 3}}));
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

TEST_CASE(
    "comm/families: push-sum on 8 ranks that receive unequally reaches the optimum of unequal "
    "losses, by its weights") {
  Job job = job_of(with_type("push_sum"), uneven8(), kBare);
  job.bucket_bytes = 1e9;
  job.rank_curvature = 0.25;
  job.steps = 2500;
  job.lr_at = [](int t) { return 0.05 / (1.0 + t / 60.0); };
  const std::vector<double> best = optimum(job, std::vector<double>(8, 1.0));
  CHECK(largest_difference(run_fake(job, 8), on_all(best, 8)) < 2e-2);
  // With weights that are 1 again in every step, ranks agree on another point.
  job.reset_omega = true;
  const Numbers without = run_plain_family(job, 8);
  CHECK(largest_difference(without, on_all(mean_of(without), 8)) < 2e-2);
  CHECK(largest_difference({mean_of(without)}, {best}) > 0.1);
}

TEST_CASE("comm/families: what averages gradients or momenta leaves equal bits on all ranks") {
  for (const FamilyCase& c : cases()) {
    if (!c.among({"bytegrad", "qadam"})) continue;
    for (const int n : {2, 3, 5, 8, 9}) {  // 9: more messages than one decoding takes
      Job job = job_of(c, {{"type", "complete"}}, c.optimizers().back());
      job.dtype = DType::kFloat32;
      job.start_apart = false;
      const Numbers x = run_fake(job, n);
      CAPTURE(c.algorithm.dump());
      CAPTURE(n);
      for (const auto& of_rank : x) CHECK(of_rank == x[0]);
    }
  }
}

TEST_CASE(
    "comm/families: an all-reduce by chunks or after the pass has all-reduce's bits, one by "
    "nodes its numbers") {
  for (const int n : {1, 2, 4, 6, 9}) {
    for (const bool average : {true, false}) {
      Numbers at_once;
      for (const bool delay : {false, true}) {
        Job job = job_of(with_type("allreduce", {{"average", average}, {"delay", delay}}),
                         {{"type", "complete"}}, kDecayed);
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

/// Runs 3 periods, of which rank 1 does not end the first before all others have ended the second
/// but for its last step: Error(kLost) where one of them waits for it.
void run_ahead_of_one(const json& algorithm, const json& topology, const char* exchange) {
  constexpr int kRanks = 4, kPeriod = 5;
  Job job = exact_job(algorithm, topology, kDecayed);
  job.algorithm["period"] = kPeriod;
  job.exchange = exchange;
  job.steps = 3 * kPeriod;
  std::atomic<int> ahead{0};
  std::atomic<bool> failed{false};
  FakeWorld(kRanks, {.timeout_seconds = 2.0}).run([&](Transport& transport) {
    const auto backend = open_backend(DeviceType::kCpu, 1);
    Job own = job;
    own.lr_at = [&](int step) {
      if (transport.rank() != 1 && step == 2 * kPeriod - 1) ++ahead;
      if (transport.rank() == 1 && step == kPeriod - 1)
        CHECK(test::soon([&] { return ahead == kRanks - 1 || failed; }));
      return job.lr;
    };
    try {
      test::run_job(own, transport, *backend);
    } catch (const Error&) {
      failed = true;
      throw;
    }
  });
}

TEST_CASE(
    "comm/families: gossip_diloco waits for nobody until a period after its outer step, nor has it "
    "a collective call") {
  const json plain = with_type("gossip_diloco");
  for (const char* type : {"ring", "one-peer-exp", "base-2", "static-ring"}) {
    for (const char* exchange : {"fp32", "int8"}) {
      CAPTURE(type);
      CAPTURE(exchange);
      CHECK_NOTHROW(run_ahead_of_one(plain, {{"type", type}}, exchange));
    }
  }
  const auto stands = [](const json& algorithm) {
    return test::error_of(ExitCode::kLost, [&] {
      run_ahead_of_one(algorithm, {{"type", "ring"}}, "fp32");
    });
  };
  CHECK(test::contains(stands(with_type("diloco")), "missing: rank"));
  CHECK(test::contains(stands(with_type("gossip_diloco", {{"mix_differences", true}})),
                       "missing: rank"));
}

TEST_CASE("comm/families: local SGD with the gradients of a node follows its formulas") {
  for (const int per_node : {2, 4}) {
    Job job = job_of(
        with_type(
            "local_sgd",
            {{"period", 4}, {"start", 2}, {"gradients", "node"}, {"ranks_per_node", per_node}}),
        {{"type", "complete"}}, kDecayed);
    job.start_apart = false;
    for (const bool in_backward : {true, false}) {
      CAPTURE(text_of(job, 4));
      CAPTURE(in_backward);
      job.in_backward = in_backward;
      job.clip.norm = in_backward ? 0.0 : 4.0;
      const Numbers nodes = run_fake(job, 4);
      CHECK(largest_difference(nodes, run_plain_family(job, 4)) < 1e-11);
      CHECK(nodes[0] == nodes[1]);  // a node's ranks stay equal
      CHECK((nodes[0] == nodes[3]) == (per_node == 4));
    }
  }
}
