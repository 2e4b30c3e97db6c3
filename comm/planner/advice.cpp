#include "comm/planner/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "topology/mixing.h"

namespace starling {
namespace {

constexpr double kTie = 1.02;          ///< step times this close are equal: predictions are no better
constexpr double kSameSize = 1.005;    ///< bucket sizes whose steps are this close are equal
constexpr double kUsualBucket = 25.0;  ///< MiB, the default
constexpr double kAgreed = 1e-12;      ///< disagreement that is rounding
constexpr std::int64_t kRounds = 128;  ///< most rounds that are followed to see how a topology mixes
constexpr double kMebibyte = 1024.0 * 1024.0;

struct Candidate {
  std::string name;
  std::unique_ptr<Topology> topology;
  std::optional<std::int64_t> rounds_to_consensus;
  double rate = 0.0;
};

/// How fast disagreement shrinks, followed from a random start.
void follow(Candidate& candidate) {
  const std::int64_t period = std::max<std::int64_t>(candidate.topology->period(), 1);
  const std::int64_t rounds = std::max(kRounds, std::min<std::int64_t>(2 * period, 4 * kRounds));
  const std::vector<double> left = disagreement_curve(*candidate.topology, rounds);
  for (std::size_t k = 0; k < left.size(); ++k) {
    if (left[k] > kAgreed) continue;
    candidate.rounds_to_consensus = static_cast<std::int64_t>(k);
    candidate.rate = k == 0 ? 0.0 : std::pow(kAgreed, 1.0 / static_cast<double>(k));
    return;
  }
  // The second half: the first rounds remove what is easily removed.
  const std::size_t half = left.size() / 2;
  candidate.rate = std::pow(left.back() / left[half], 1.0 / static_cast<double>(left.size() - 1 - half));
}

std::vector<Candidate> candidates(const NetworkModel& network) {
  register_builtin_topologies();
  std::vector<Candidate> result;
  for (const std::string& name : topologies().names()) {
    nlohmann::json config = {{"type", name}};
    ConfigSection section(config, "plan");
    section.required_text("type", "");
    Candidate candidate{name, nullptr, {}, 0.0};
    try {
      candidate.topology = topologies().make(name, "type", section, RankLayout{network.ranks, network.ranks_per_host});
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUsage) throw;
      continue;  // another number of ranks, or keys without default
    }
    follow(candidate);
    if (candidate.rate < 1.0) result.push_back(std::move(candidate));  // else it does not mix within sight
  }
  return result;
}

/// The algorithms whose steps can be predicted, with default keys, in the order of their names; see advise().
std::vector<AlgorithmPlan> predictable(const AlgorithmPlan* mixing) {
  register_builtin_algorithms();
  std::vector<AlgorithmPlan> result = known_algorithms();
  std::erase_if(result, [&](const AlgorithmPlan& plan) { return !plan.predict || (mixing && plan.topology != TopologyKind::kNone); });
  if (mixing && mixing->predict) result.push_back(*mixing);
  return result;
}

bool faster(const PlannedChoice& a, const PlannedChoice& b) { return a.prediction.step < b.prediction.step; }

std::string milliseconds(double seconds) { return fmt::format("{:.4g} ms", seconds * 1e3); }

std::string reason_for(const Advice& advice) {
  const PlannedChoice& best = advice.choices[advice.best];
  const auto exact = std::find_if(advice.choices.begin(), advice.choices.end(), [](const auto& c) { return c.topology.empty(); });
  if (best.topology.empty()) {
    return fmt::format("{} costs {} of waiting a step, and no topology is more than {:.0f} % faster; it leaves nothing to mix",
                       best.label(), milliseconds(best.prediction.exposed), (kTie - 1.0) * 100.0);
  }
  const std::string against = exact == advice.choices.end()
                                  ? ""
                                  : fmt::format("{:.2f} × as fast as {}", exact->prediction.step / best.prediction.step, exact->label());
  if (best.prediction.exposed < 0.01 * best.prediction.step) {
    return fmt::format("its exchanges fit behind the computation ({}), and of what is as fast it mixes fastest", against);
  }
  return fmt::format("the network is the limit (waiting {} a step); it moves the fewest bytes for its mixing ({})",
                     milliseconds(best.prediction.exposed), against);
}

/// Of the choices that differ from this one in the bucket size at most: the fastest, and of equals the size nearest to the default.
std::size_t best_size(const Advice& advice, const PlannedChoice& of) {
  const auto distance = [](const PlannedChoice& choice) { return std::abs(std::log(choice.bucket_mb / kUsualBucket)); };
  std::size_t best = advice.choices.size();
  double limit = 0.0;
  for (std::size_t i = 0; i < advice.choices.size(); ++i) {  // fastest first
    const PlannedChoice& choice = advice.choices[i];
    if (!choice.same_but_size(of)) continue;
    if (best == advice.choices.size()) limit = choice.prediction.step * kSameSize;
    if (best == advice.choices.size() || (choice.prediction.step <= limit && distance(choice) < distance(advice.choices[best]))) best = i;
  }
  require(best < advice.choices.size(), "planner", "no prediction for {}", of.label());
  return best;
}

}  // namespace

std::vector<double> usual_bucket_sizes() { return {1, 4, 25, 100}; }

Advice advise(const NetworkModel& network, const StepModel& step, const std::vector<double>& bucket_mb, const AlgorithmPlan* mixing) {
  require(!bucket_mb.empty(), "planner", "no bucket size to plan with");
  Advice advice;
  advice.compute = compute_alone(step, network);
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  std::vector<Candidate> mixers;
  if (network.ranks > 1) mixers = candidates(network);
  for (const AlgorithmPlan& algorithm : predictable(mixing)) {
    const auto add = [&](const Candidate& candidate, const std::vector<RoundCost>& costs) {
      for (const double mb : bucket_mb) {
        PlannedChoice choice{algorithm.name,
                             algorithm.label(),
                             candidate.name,
                             mb,
                             algorithm.predict(costs, network, step, mb * kMebibyte),
                             candidate.rounds_to_consensus,
                             candidate.rate,
                             kInfinite};
        if (candidate.rate > 0.0) choice.mixing = -std::log(candidate.rate) / choice.prediction.step;
        advice.choices.push_back(std::move(choice));
      }
    };
    if (algorithm.topology == TopologyKind::kNone) {
      add({"", nullptr, 1, 0.0}, {});
      continue;
    }
    for (const Candidate& candidate : mixers) {
      if (kind_fault(*candidate.topology, algorithm.topology).empty()) add(candidate, costs_of(*candidate.topology, network));
    }
  }
  require(!advice.choices.empty(), "planner", "no algorithm says what it takes");
  std::stable_sort(advice.choices.begin(), advice.choices.end(), faster);
  const double limit = advice.choices.front().prediction.step * kTie;
  for (std::size_t i = 0; i < advice.choices.size() && advice.choices[i].prediction.step <= limit; ++i) {
    if (advice.choices[i].mixing > advice.choices[advice.best].mixing) advice.best = i;
  }
  advice.best = best_size(advice, advice.choices[advice.best]);
  advice.reason = reason_for(advice);
  return advice;
}

Advice advise_for(const AlgorithmPlan& algorithm, const Topology* topology, const std::string& name, const NetworkModel& network,
                  const StepModel& step, const std::vector<double>& bucket_mb) {
  require(!bucket_mb.empty(), "planner", "no bucket size to plan with");
  Advice advice;
  advice.compute = compute_alone(step, network);
  const std::vector<RoundCost> costs = topology ? costs_of(*topology, network) : std::vector<RoundCost>{};
  for (const double mb : bucket_mb) {
    const Prediction prediction = algorithm.predict(costs, network, step, mb * kMebibyte);
    advice.choices.push_back({algorithm.name, algorithm.label(), topology ? name : "", mb, prediction, {}, 0.0, 0.0});
  }
  std::stable_sort(advice.choices.begin(), advice.choices.end(), faster);
  advice.best = best_size(advice, advice.choices.front());
  return advice;
}

std::string advice_text(const Advice& advice, bool all) {
  std::string text = fmt::format("a step without communication: {}\n", milliseconds(advice.compute));
  text += fmt::format("  {:<20} {:>9} {:>11} {:>11} {:>13} {:>15} {:>12} {:>10}\n", "choice", "bucket_mb", "step ms", "exposed ms",
                      "MB sent/rank", "MB out of host", "consensus", "mixing/s");
  std::set<std::pair<std::string, std::string>> shown;
  for (std::size_t i = 0; i < advice.choices.size(); ++i) {
    const PlannedChoice& c = advice.choices[i];
    // One row for each, its best size: the recommended one, else the fastest.
    const bool recommended = i == advice.best;
    if (!all && !recommended && (c.same_but_size(advice.choices[advice.best]) || !shown.insert({c.algorithm, c.topology}).second)) continue;
    const std::string rounds = c.rounds_to_consensus ? fmt::format("{} rounds", *c.rounds_to_consensus) : fmt::format("×{:.3g}", c.rate);
    text += fmt::format("{}{:<20} {:>9.4g} {:>11.4g} {:>11.4g} {:>13.4g} {:>15.4g} {:>12} {:>10}\n", recommended ? "* " : "  ", c.label(),
                        c.bucket_mb, c.prediction.step * 1e3, c.prediction.exposed * 1e3, c.prediction.sent * 1e-6,
                        c.prediction.between_hosts * 1e-6, rounds, std::isinf(c.mixing) ? "exact" : fmt::format("{:.4g}", c.mixing));
  }
  const PlannedChoice& best = advice.choices[advice.best];
  text += fmt::format("recommended: {}, bucket_mb {:.4g}: {}\n", best.label(), best.bucket_mb, advice.reason);
  return text;
}

std::string advice_json(const Advice& advice) {
  nlohmann::ordered_json result;
  result["compute_ms"] = advice.compute * 1e3;
  result["choices"] = nlohmann::ordered_json::array();
  for (const PlannedChoice& c : advice.choices) {
    nlohmann::ordered_json row;
    row["topology"] = c.topology.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(c.topology);
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
    result["choices"].push_back(std::move(row));
  }
  const PlannedChoice& best = advice.choices[advice.best];
  result["recommended"] = {{"topology", best.label()}, {"bucket_mb", best.bucket_mb}, {"reason", advice.reason}};
  return result.dump(2) + "\n";
}

}  // namespace starling
