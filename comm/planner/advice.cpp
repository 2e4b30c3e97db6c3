#include "comm/planner/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>

#include "comm/growth.h"
#include "comm/mixer.h"
#include "core/core_wait.h"
#include "core/error.h"
#include "core/quantity.h"
#include "core/text.h"
#include "topology/mixing.h"

namespace starling {
namespace {

/// Times within this factor are considered equal, as predictions are no more accurate
constexpr double kTie = 1.02;
/// Additional steps per squared disagreement of an update, with many ranks: see expected_steps()
constexpr double kStepsPerDrift = 0.03;
/// Bucket sizes whose step times are within this factor are considered equal
constexpr double kSameSize = 1.005;
constexpr double kAgreed = 1e-12;  ///< disagreement below it is rounding error
/// Growth is computed for up to this many ranks; for more it takes too long
constexpr int kMostGrowth = 64;
/// Most rounds simulated to measure how a topology mixes
constexpr std::int64_t kFollowedRounds = 128;
constexpr double kMebibyte = 1024.0 * 1024.0;

struct Candidate {
  std::string name;
  std::unique_ptr<Topology> topology;
  std::optional<std::int64_t> rounds_to_consensus;
  double rate = 0.0;
  double left = 1.0;  ///< argument of AlgorithmCost::disagreement
};

/// Measures how fast disagreement decays, from a random start.
void follow(Candidate& candidate) {
  const std::int64_t period = std::max<std::int64_t>(candidate.topology->period(), 1);
  const std::int64_t rounds =
      std::max(kFollowedRounds, std::min<std::int64_t>(2 * period, 4 * kFollowedRounds));
  const std::vector<double> left = disagreement_curve(*candidate.topology, rounds);
  candidate.left = 0.0;
  for (std::size_t k = 0; k < left.size(); ++k) {
    if (left[k] > kAgreed) {
      candidate.left += left[k] * left[k];
      continue;
    }
    candidate.rounds_to_consensus = static_cast<std::int64_t>(k);
    candidate.rate = k == 0 ? 0.0 : std::pow(kAgreed, 1.0 / static_cast<double>(k));
    return;
  }
  // Uses the second half only, since the first rounds remove components that decay quickly.
  const std::size_t half = left.size() / 2;
  candidate.rate =
      std::pow(left.back() / left[half], 1.0 / static_cast<double>(left.size() - 1 - half));
  if (const double kept = candidate.rate * candidate.rate; kept < 1.0)
    candidate.left += left.back() * left.back() * kept / (1.0 - kept);
}

std::vector<Candidate> candidates(const NetworkModel& network) {
  register_builtin_topologies();
  std::vector<Candidate> result;
  for (auto& [name, topology] : topologies_for({network.ranks, network.ranks_per_host})) {
    Candidate candidate{.name = name, .topology = std::move(topology)};
    follow(candidate);
    // Otherwise the topology does not mix within kFollowedRounds rounds.
    if (candidate.rate < 1.0) result.push_back(std::move(candidate));
  }
  return result;
}

/// The algorithms that advise() considers: with a topology only `mixing`, without one those whose
/// ranks stay equal.
std::vector<AlgorithmPlan> predictable(const AlgorithmPlan& mixing) {
  std::vector<AlgorithmPlan> result = known_algorithms();
  std::erase_if(result, [&](const AlgorithmPlan& plan) {
    return plan.cost.exchanges.empty() || plan.topology != TopologyKind::kNone ||
           !plan.cost.disagreement || plan.cost.disagreement(1.0) > 0.0 || plan.messages.wire < 1.0;
  });
  if (!mixing.cost.exchanges.empty()) result.push_back(mixing);
  return result;
}

/// Predicts algorithms on one network.
class Planner {
 public:
  Planner(const NetworkModel& network, const std::vector<double>& bucket_mb)
      : networks_{network, network}, bucket_mb_(bucket_mb) {
    require(!bucket_mb.empty(), "planner", "no bucket size to plan with");
    if (network.ranks > 1) candidates_ = candidates(network);
    networks_[1].direct = false;  // encoded parameters are sent as messages even within a host
    register_builtin_optimizers();
    const nlohmann::json momentum{{"momentum", 0.9}};
    ConfigSection section(momentum, "plan");
    sgd_ = optimizers().make("sgd", "optimizer.type", section);
  }

  /// The choices for an algorithm: each topology that it supports with each bucket size. Empty if
  /// it needs a topology and there is a single rank.
  std::vector<PlannedChoice> choices(const AlgorithmPlan& algorithm, StepModel step) {
    std::vector<PlannedChoice> result;
    const AlgorithmMessages& messages = algorithm.messages;
    step.gossip_wire *= messages.wire;
    const bool sent = step.gossip_wire < 1.0 || messages.always;
    const Way way = step.gossip_whole || messages.wire < 1.0 ? kWhole : sent ? kSent : kRead;
    if (algorithm.topology == TopologyKind::kNone)
      add(result, algorithm, {.rounds_to_consensus = 1}, {}, networks_[sent], step);
    for (const Candidate& candidate : candidates_) {
      if (algorithm.topology == TopologyKind::kNone ||
          !kind_fault(*candidate.topology, algorithm.topology).empty())
        continue;
      add(result, algorithm, candidate, costs_on(candidate, way), networks_[sent], step);
    }
    return result;
  }
  /// False for ranks that keep no step, where those of a replica have to.
  bool allows(const AlgorithmPlan& algorithm) const {
    return networks_[0].replica == 1 || !algorithm.steps.asynchronous;
  }
  /// Whether it would be rejected on that topology, since with the usual momentum it amplifies
  /// disagreement.
  bool grows(const AlgorithmPlan& algorithm, const std::string& topology) const {
    if (!algorithm.growth.model || topology.empty() || networks_[0].ranks > kMostGrowth)
      return false;
    const auto at = std::find_if(candidates_.begin(), candidates_.end(),
                                 [&](const Candidate& c) { return c.name == topology; });
    return growth_per_step(algorithm, *sgd_, *at->topology).grows();
  }

 private:
  /// How neighbours' parameters arrive: shared memory, messages, whole messages to each
  enum Way : std::uint8_t { kRead, kSent, kWhole };
  const std::vector<RoundCost>& costs_on(const Candidate& candidate, Way way) {
    const auto [at, fresh] = costs_[way].try_emplace(candidate.name);
    if (fresh) at->second = costs_of(*candidate.topology, networks_[way != kRead], way == kWhole);
    return at->second;
  }
  void add(std::vector<PlannedChoice>& to, const AlgorithmPlan& algorithm,
           const Candidate& candidate, const std::vector<RoundCost>& costs,
           const NetworkModel& network, const StepModel& step) const;

  NetworkModel networks_[2];  ///< as given, and without shared memory
  const std::vector<double>& bucket_mb_;
  std::unique_ptr<OptimizerRule> sgd_;
  std::vector<Candidate> candidates_;
  std::map<std::string, std::vector<RoundCost>> costs_[3];
};

void Planner::add(std::vector<PlannedChoice>& to, const AlgorithmPlan& algorithm,
                  const Candidate& candidate, const std::vector<RoundCost>& costs,
                  const NetworkModel& network, const StepModel& step) const {
  for (const double mb : bucket_mb_) {
    PlannedChoice choice{.algorithm = algorithm.name,
                         .title = algorithm.label(),
                         .topology = candidate.name,
                         .bucket_mb = mb,
                         .prediction = predict(algorithm, costs, network, step, mb * kMebibyte),
                         .rounds_to_consensus = candidate.rounds_to_consensus,
                         .rate = candidate.rate,
                         .mixing = std::numeric_limits<double>::infinity()};
    if (candidate.rate > 0.0) choice.mixing = -std::log(candidate.rate) / choice.prediction.step;
    // Outer steps by gossip were measured where all ranks agree after a few rounds.
    const std::optional<AlgorithmCost::Learning>& learning = algorithm.cost.learning;
    const bool agree =
        candidate.rounds_to_consensus &&
        static_cast<double>(*candidate.rounds_to_consensus) <= 1.0 + 2.0 * std::log2(network.ranks);
    const bool known = algorithm.cost.disagreement && (!learning || agree);
    choice.steps =
        known ? expected_steps(algorithm.cost.disagreement(candidate.left), network.ranks) *
                    (learning ? learning->steps : 1.0)
              : std::numeric_limits<double>::infinity();
    to.push_back(std::move(choice));
  }
}

/// Orders choices by time; those of unknown time are last.
bool is_faster(const PlannedChoice& a, const PlannedChoice& b) {
  return std::pair(a.seconds(), a.prediction.step) < std::pair(b.seconds(), b.prediction.step);
}

/// Every algorithm with default keys and with AlgorithmCost::tried, in each number format that it
/// supports. For each the choice with the shortest time to a loss, or the fastest if its cost in
/// learning is unknown.
std::vector<PlannedChoice> other_methods(Planner& planner, StepModel step) {
  std::vector<PlannedChoice> result;
  for (const AlgorithmPlan& known : known_algorithms()) {
    if (known.cost.exchanges.empty()) continue;
    std::vector<AlgorithmCost::Keys> tried{{}};
    tried.insert(tried.end(), known.cost.tried.begin(), known.cost.tried.end());
    for (const AlgorithmCost::Keys& keys : tried) {
      nlohmann::json config(keys);
      config["type"] = known.name;
      const AlgorithmPlan plain = algorithm_of(config);
      if (!planner.allows(plain)) continue;
      for (const std::string& exchange : mixers().names()) {
        const MixerKind kind = mixers().make(exchange, "exchange");
        if (!plain.takes(kind)) continue;
        AlgorithmPlan algorithm;
        try {
          algorithm = exchanged_by(plain, kind);
        } catch (const Error&) {
          continue;  // keys that do not go with this exchange
        }
        step.exchange_by(kind);
        const bool encoded = kind.encodes;
        std::vector<PlannedChoice> choices = planner.choices(algorithm, step);
        std::stable_sort(choices.begin(), choices.end(), is_faster);
        const auto best = std::find_if(choices.begin(), choices.end(), [&](const auto& c) {
          return !planner.grows(algorithm, c.topology);
        });
        if (best == choices.end()) continue;
        result.push_back(*best);
        result.back().keys = keys;
        if (encoded) result.back().exchange = exchange;
      }
    }
  }
  std::stable_sort(result.begin(), result.end(), is_faster);
  return result;
}

bool faster(const PlannedChoice& a, const PlannedChoice& b) {
  return a.prediction.step < b.prediction.step;
}

std::string reason_for(const Advice& advice) {
  const PlannedChoice& best = advice.choices[advice.best];
  const auto exact = std::find_if(advice.choices.begin(), advice.choices.end(),
                                  [](const auto& c) { return c.topology.empty(); });
  if (best.topology.empty()) {
    return fmt::format(
        "{} costs {} of waiting a step, and no topology comes to a loss more than {:.0f} % sooner; "
        "it leaves nothing to mix",
        best.label(), quantity(best.prediction.exposed, "s"), (kTie - 1.0) * 100.0);
  }
  const std::string against = exact == advice.choices.end()
                                  ? ""
                                  : fmt::format(
                                        "; its steps are {:.2f} × as fast as {}'s, and some {:.1f} "
                                        "% more of them come to the same loss",
                                        exact->prediction.step / best.prediction.step,
                                        exact->label(), (best.steps - 1.0) * 100.0);
  if (best.prediction.exposed < 0.01 * best.prediction.step) {
    return fmt::format(
        "its exchanges fit behind the computation, and of what is as good it mixes fastest{}",
        against);
  }
  return fmt::format(
      "the network is the limit (waiting {} a step), and it moves few bytes for its mixing{}",
      quantity(best.prediction.exposed, "s"), against);
}

/// The best of the choices that equal this one except for the bucket size: of those whose steps
/// take at most `equal` times the shortest, the size nearest to the default.
std::size_t best_size(const Advice& advice, const PlannedChoice& of, double equal = kSameSize) {
  const auto distance = [](const PlannedChoice& choice) {
    return std::abs(std::log(choice.bucket_mb / kUsualBucket));
  };
  std::size_t best = advice.choices.size();
  double limit = 0.0;
  for (std::size_t i = 0; i < advice.choices.size(); ++i) {  // fastest first
    const PlannedChoice& choice = advice.choices[i];
    if (!choice.same_but_size(of)) continue;
    if (best == advice.choices.size()) limit = choice.prediction.step * equal;
    if (best == advice.choices.size() ||
        (choice.prediction.step <= limit && distance(choice) < distance(advice.choices[best])))
      best = i;
  }
  require(best < advice.choices.size(), "planner", "no prediction for {}", of.label());
  return best;
}

/// An Advice without choices: properties of the step and of the measurement.
Advice advice_on(const NetworkModel& network, const StepModel& step) {
  const double flops = step.matrix_flops() / network.replica;
  return {.compute = compute_alone(step, network),
          .product_flops = flops,
          .product_seconds = step.matrix_seconds(flops),
          .noise = std::max(step.noise, network.noise)};
}

/// Selects the default if the measurement, on a busy machine, cannot distinguish it from the best.
void prefer_default(Advice& advice) {
  if (advice.noise < kBusy) return;
  const auto usual = std::find_if(advice.choices.begin(), advice.choices.end(),
                                  [](const auto& c) { return c.topology == kUsualTopology; });
  const PlannedChoice& best = advice.choices[advice.best];
  if (best.topology == kUsualTopology || usual == advice.choices.end() ||
      usual->seconds() > best.seconds() * (1.0 + advice.noise))
    return;
  advice.reason = fmt::format(
      "no clear winner, so the default stays: {}, bucket_mb {} would be {:.0f} % sooner, which is "
      "less than the measurement may be off by",
      best.label(), plain_number(best.bucket_mb),
      100.0 * std::max(0.0, usual->seconds() / best.seconds() - 1.0));
  advice.best = best_size(advice, *usual, 1.0 + advice.noise);
}

}  // namespace

std::string PlannedChoice::method() const {
  std::string text = title;
  for (const auto& [key, value] : keys.items()) text += fmt::format(", {} {}", key, value.dump());
  if (!exchange.empty()) text += ", " + exchange;
  return text;
}

double expected_steps(double disagreement, int ranks) {
  return 1.0 + kStepsPerDrift * disagreement * static_cast<double>(ranks - 1) /
                   static_cast<double>(ranks);
}

std::vector<double> usual_bucket_sizes() { return {1, 4, 25, 100}; }

namespace {

/// The choice that reaches a loss soonest.
const PlannedChoice& soonest(const Advice& advice) {
  const PlannedChoice& best = advice.choices[advice.best];
  return advice.methods.front().seconds() * kTie < best.seconds() ? advice.methods.front() : best;
}

NetworkModel with_links(NetworkModel network, double factor) {
  network.between.bandwidth *= factor;
  network.sum_bandwidth *= factor;
  for (double& link : network.host_bandwidth) link *= factor;
  network.derive_pair();
  return network;
}

}  // namespace

Advice advise(const NetworkModel& network, const StepModel& step,
              const std::vector<double>& bucket_mb, const AlgorithmPlan* mixing, bool methods) {
  register_builtin_algorithms();
  Planner planner(network, bucket_mb);
  Advice advice = advice_on(network, step);
  for (const AlgorithmPlan& algorithm : predictable(mixing ? *mixing : algorithm_of(nullptr))) {
    // By topology, since choices repeat it for each bucket size
    std::map<std::string, bool> grows;
    for (PlannedChoice& choice : planner.choices(algorithm, step)) {
      const auto [at, fresh] = grows.try_emplace(choice.topology, false);
      if (fresh) at->second = planner.grows(algorithm, choice.topology);
      if (!at->second) advice.choices.push_back(std::move(choice));
    }
  }
  require(!advice.choices.empty(), "planner", "no algorithm says what it takes");
  std::stable_sort(advice.choices.begin(), advice.choices.end(), faster);
  const double limit =
      std::min_element(advice.choices.begin(), advice.choices.end(), is_faster)->seconds() * kTie;
  advice.best = advice.choices.size();
  for (std::size_t i = 0; i < advice.choices.size(); ++i) {
    if (advice.choices[i].seconds() > limit) continue;
    if (advice.best == advice.choices.size() ||
        advice.choices[i].mixing > advice.choices[advice.best].mixing)
      advice.best = i;
  }
  advice.best = best_size(advice, advice.choices[advice.best]);
  advice.reason = reason_for(advice);
  prefer_default(advice);
  if (!methods) return advice;
  advice.methods = other_methods(planner, step);
  for (const double factor : {0.1, 10.0}) {
    if (network.hosts() == 1) break;
    const NetworkModel other = with_links(network, factor);
    Advice there = advise(other, step, bucket_mb, mixing);
    Planner of_there(other, bucket_mb);
    there.methods = other_methods(of_there, step);
    advice.elsewhere.emplace_back(other.typical_link(), soonest(there));
  }
  return advice;
}

Advice advise_for(const AlgorithmPlan& algorithm, const Topology* topology, const std::string& name,
                  const NetworkModel& network, const StepModel& step,
                  const std::vector<double>& bucket_mb) {
  require(!bucket_mb.empty(), "planner", "no bucket size to plan with");
  Advice advice = advice_on(network, step);
  StepModel of = step;
  of.gossip_wire *= algorithm.messages.wire;
  const bool whole = of.gossip_whole || algorithm.messages.wire < 1.0;
  const std::vector<RoundCost> costs =
      topology ? costs_of(*topology, network, whole) : std::vector<RoundCost>{};
  for (const double mb : bucket_mb) {
    const Prediction prediction = predict(algorithm, costs, network, of, mb * kMebibyte);
    advice.choices.push_back({.algorithm = algorithm.name,
                              .title = algorithm.label(),
                              .topology = topology ? name : "",
                              .bucket_mb = mb,
                              .prediction = prediction});
  }
  std::stable_sort(advice.choices.begin(), advice.choices.end(), faster);
  advice.best = best_size(advice, advice.choices.front());
  return advice;
}

std::string disturbance_text(const Advice& advice, std::string_view remedy) {
  if (advice.noise < kBusy) return {};
  const PlannedChoice& best = advice.choices[advice.best];
  std::set<std::string> equals;
  for (const PlannedChoice& c : advice.choices) {
    if (c.label() != best.label() && c.seconds() <= best.seconds() * (1.0 + advice.noise))
      equals.insert(c.label());
  }
  constexpr std::size_t kNamed = 4;
  const std::string others = equals.size() > kNamed ? fmt::format("{} others", equals.size())
                                                    : fmt::format("{}", fmt::join(equals, ", "));
  return fmt::format(
      "disturbed: the machine was busy, and what was measured may be off by {:.0f} %{}; {}\n",
      100.0 * advice.noise, equals.empty() ? "" : ", so " + others + " may be as good", remedy);
}

std::string advice_text(const Advice& advice, bool all) {
  std::string text =
      fmt::format("a step without communication: {}\n", quantity(advice.compute, "s"));
  text += fmt::format("  {:<20} {:>9} {:>10} {:>10} {:>11} {:>11} {:>12} {:>10} {:>8}\n", "choice",
                      "bucket_mb", "step", "exposed", "sent/rank", "out of host", "consensus",
                      "mixing/s", "steps ×");
  std::set<std::pair<std::string, std::string>> shown;
  for (std::size_t i = 0; i < advice.choices.size(); ++i) {
    const PlannedChoice& c = advice.choices[i];
    // One row per topology, with its best size: the recommended one, else the fastest.
    const bool recommended = i == advice.best;
    if (!all && !recommended &&
        (c.same_but_size(advice.choices[advice.best]) ||
         !shown.insert({c.algorithm, c.topology}).second))
      continue;
    const std::string rounds = c.rounds_to_consensus ? counted(*c.rounds_to_consensus, "round")
                                                     : fmt::format("×{:.3g}", c.rate);
    text += fmt::format("{}{:<20} {:>9} {:>10} {:>10} {:>11} {:>11} {:>12} {:>10} {:>8.3f}\n",
                        recommended ? "* " : "  ", c.label(), plain_number(c.bucket_mb),
                        quantity(c.prediction.step, "s"), quantity(c.prediction.exposed, "s"),
                        quantity(c.prediction.sent, "B"), quantity(c.prediction.between_hosts, "B"),
                        rounds, std::isinf(c.mixing) ? "exact" : plain_number(c.mixing), c.steps);
  }
  const PlannedChoice& best = advice.choices[advice.best];
  text += fmt::format("recommended: {}, bucket_mb {}: {}\n", best.label(),
                      plain_number(best.bucket_mb), advice.reason);
  text += disturbance_text(advice, "measure again when it is idle, or give --step-ms");
  if (advice.methods.empty()) return text;
  text += fmt::format(
      "\nother ways, which change what is computed; to the loss that all-reduce has after a "
      "step:\n  {:<42} {:<20} {:>9} {:>10} {:>11} {:>8} {:>12}\n",
      "method", "topology", "bucket_mb", "step", "sent/rank", "steps ×", "time to loss");
  std::set<std::pair<std::string, std::string>> ways;
  for (const PlannedChoice& c : advice.methods) {
    if (!ways.insert({c.title, c.exchange}).second && !all) continue;  // with its best keys
    text += fmt::format("  {:<42} {:<20} {:>9} {:>10} {:>11} {:>8} {:>12}\n", c.method(),
                        c.topology.empty() ? "-" : c.topology, plain_number(c.bucket_mb),
                        quantity(c.prediction.step, "s"), quantity(c.prediction.sent, "B"),
                        c.known() ? fmt::format("{:.3f}", c.steps) : "?",
                        c.known() ? quantity(c.seconds(), "s") : "?");
  }
  if (!advice.methods.back().known())
    text += "?: what it costs in learning has not been measured\n";
  const PlannedChoice& first = soonest(advice);
  if (&first != &best) {
    text += fmt::format("soonest: {}{}, {:.2f} × as soon as {}\n", first.method(),
                        first.topology.empty() ? "" : " over " + first.topology,
                        best.seconds() / first.seconds(), best.label());
  } else {
    text += fmt::format("none of them is expected to be sooner than {} by more than {:.0f} %\n",
                        best.label(), (kTie - 1.0) * 100.0);
  }
  const auto next =
      std::find_if(advice.methods.begin(), advice.methods.end(), [&](const PlannedChoice& c) {
        return c.known() && c.seconds() >= first.seconds() && c.title != first.title;
      });
  if (next != advice.methods.end())
    text += fmt::format(
        "of other algorithms next: {}{}, which would be sooner if {}'s steps × were above {:.2f}\n",
        next->method(), next->topology.empty() ? "" : " over " + next->topology, first.method(),
        next->seconds() / first.prediction.step);
  for (const auto& [link, choice] : advice.elsewhere)
    text += fmt::format("with links of {}: {}{}\n", quantity(8.0 * link, "bit/s"), choice.method(),
                        choice.topology.empty() ? "" : " over " + choice.topology);
  return text;
}

namespace {

nlohmann::ordered_json row_of(const PlannedChoice& c) {
  nlohmann::ordered_json row;
  row["topology"] =
      c.topology.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(c.topology);
  row["algorithm"] = c.algorithm;
  row["bucket_mb"] = c.bucket_mb;
  row["step_ms"] = c.prediction.step * 1e3;
  row["exposed_ms"] = c.prediction.exposed * 1e3;
  row["bytes_sent"] = c.prediction.sent;
  row["bytes_between_hosts"] = c.prediction.between_hosts;
  row["rounds_to_consensus"] = nullptr;
  if (c.rounds_to_consensus) row["rounds_to_consensus"] = *c.rounds_to_consensus;
  row["rate"] = c.rate;
  row["mixing_per_second"] = nullptr;
  if (!std::isinf(c.mixing)) row["mixing_per_second"] = c.mixing;
  row["expected_steps"] =
      c.known() ? nlohmann::ordered_json(c.steps) : nlohmann::ordered_json(nullptr);
  return row;
}

}  // namespace

std::string advice_json(const Advice& advice) {
  nlohmann::ordered_json result;
  result["compute_ms"] = advice.compute * 1e3;
  result["noise"] = advice.noise;
  result["update_products"] = {{"gflop", advice.product_flops * 1e-9},
                               {"ms", advice.product_seconds * 1e3}};
  result["choices"] = nlohmann::ordered_json::array();
  for (const PlannedChoice& c : advice.choices) result["choices"].push_back(row_of(c));
  const PlannedChoice& best = advice.choices[advice.best];
  result["recommended"] = {
      {"topology", best.label()}, {"bucket_mb", best.bucket_mb}, {"reason", advice.reason}};
  result["methods"] = nlohmann::ordered_json::array();
  for (const PlannedChoice& c : advice.methods) {
    result["methods"].push_back(row_of(c));
    result["methods"].back()["keys"] = c.keys;
    result["methods"].back()["exchange"] =
        c.exchange.empty() ? nlohmann::json() : nlohmann::json(c.exchange);
  }
  result["elsewhere"] = nlohmann::ordered_json::array();
  for (const auto& [link, choice] : advice.elsewhere)
    result["elsewhere"].push_back({{"hosts_bandwidth_gbs", link * 1e-9},
                                   {"method", choice.method()},
                                   {"topology", choice.topology}});
  return result.dump(2) + "\n";
}

}  // namespace starling
