#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/algorithms/averages.h"
#include "comm/algorithms/builtin.h"
#include "comm/algorithms/disagreement.h"
#include "comm/algorithms/outer_steps.h"
#include "comm/algorithms/quorum_diloco.h"
#include "core/error.h"
#include "core/operations/pointwise.h"

namespace starling {
namespace {

struct DiLoCoSettings : OuterSettings {
  std::int64_t delay = 0;  ///< steps that a mean has to arrive
  double blend = 0.0;
};

/// DiLoCo (Douillard et al. 2023, arXiv 2311.08105), with fragments and delay as Streaming DiLoCo
/// has them (2501.18512). Bucket b of B is in fragment f = floor(bF/B). After steps with t + 1 ≡
/// (f+1)H/F - τ (mod H) the mean Δ̄ of Δ = a - x starts; τ steps later
///     s = μs + Δ̄      a = a - ν(nesterov ? Δ̄ + μs : s)      x = (1-α)a + αx      a(0) = x(0)
class DiLoCo final : public Averages {
 public:
  DiLoCo(const AlgorithmSite& site, const DiLoCoSettings& settings)
      : Averages(site, std::make_unique<Alone>(site), settings.states, settings.delay),
        settings_(settings),
        rule_(make_outer_rule(settings, means_.share(), settings.blend)) {
    require(settings.fragments <= buckets(), "diloco", "{} fragments of {} buckets",
            settings.fragments, buckets());
    if (settings.delay == 0) deltas_ = like_parameters();
    for (int b = 0; settings.delay > 0 && b < buckets(); ++b) deltas_.push_back(state(b, 2));
    tickets_.resize(deltas_.size());
  }

 protected:
  bool meets(int b, std::int64_t t) const override { return settings_.meets(b, buckets(), t); }
  void first_step() override { copy_parameters_to(0); }
  void start(int b) override {
    const auto i = static_cast<std::size_t>(b);
    const Bucket& of = bucket(b);
    const StreamScope scope(site_.backend, StreamKind::kUpdate);
    site_.backend.weighted_sum({.in = {of.sync[0].numbers, of.parameters},
                                .weight = {1.0, -1.0},
                                .terms = 2,
                                .out = deltas_[i]});
    if (site_.transport.size() > 1) {
      tickets_[i] = site_.transport.start_sum(deltas_[i], deltas_[i], {info_.step, b, info_.step});
    }
  }
  void settle(int b) override { Algorithm::settle(tickets_[static_cast<std::size_t>(b)], b); }
  void meet(int b) override {
    settle(b);
    Bucket& of = bucket(b);
    apply(b, *rule_, {state(b, 1), state(b, 0)}, deltas_[static_cast<std::size_t>(b)],
          of.parameters);
  }

 private:
  DiLoCoSettings settings_;
  std::unique_ptr<OptimizerRule> rule_;
  std::vector<Tensor> deltas_;  ///< by bucket: Δ, then the sum of all ranks'
  std::vector<Ticket> tickets_;
};

DiLoCoQuorum read_quorum(ConfigSection& config, const DiLoCoSettings& settings) {
  DiLoCoQuorum quorum;
  quorum.ranks = config.integer("quorum", 0, Range::closed(0, 1e6),
                                "ranks whose differences an outer step needs; others are waited "
                                "for as long as they usually take after that; 0: all are needed");
  const std::int64_t grace_ms =
      config.integer("grace_ms", 1000, Range::closed(0, 1e7),
                     "most milliseconds that an outer step waits for others after the quorum");
  quorum.grace_seconds = 1e-3 * static_cast<double>(grace_ms);
  quorum.carry = config.choice("late", "drop", {"drop", "carry"},
                               "a rank's difference that came too late for an outer step: lost, or "
                               "part of its next one") == "carry";
  if (quorum.ranks == 0 && (grace_ms != 1000 || quorum.carry)) {
    config.error(quorum.carry ? "late" : "grace_ms",
                 "is for outer steps with a quorum, and quorum is 0; give a quorum too");
  }
  if (quorum.ranks > 0 && settings.delay > 0) {
    config.error("delay", "is {}, but outer steps with a quorum come when they can; allowed: 0",
                 settings.delay);
  }
  if (quorum.ranks > 0 && settings.states == StatesAt::kAverage) {
    config.error("states",
                 "is average, but not all ranks take part in an outer step with a quorum; allowed: "
                 "local, reset");
  }
  return quorum;
}

}  // namespace

AlgorithmPlan plan_diloco(ConfigSection& config) {
  DiLoCoSettings settings;
  static_cast<OuterSettings&>(settings) = read_outer_steps(config, 500);
  settings.delay = config.integer("delay", 0, Range::closed(0, 1e6),
                                  "steps that a mean has to arrive; below period / fragments");
  settings.blend = config.number("blend", 0.0, Range::closed(0.0, 1.0),
                                 "part of the rank's own parameters that stays in an outer step");
  settings.states = read_states(config);
  if (settings.blend == 1.0) {
    config.error("blend",
                 "is 1, so that ranks keep what they disagree in, 1.000 times as large after "
                 "every outer step; allowed: < 1");
  }
  if (settings.delay >= settings.period / settings.fragments) {
    config.error("delay", "is {}, but outer steps are {} steps apart; allowed: < {}",
                 settings.delay, settings.period / settings.fragments,
                 settings.period / settings.fragments);
  }
  check_outer_states(config, settings);
  const DiLoCoQuorum quorum = read_quorum(config, settings);
  std::vector<KeptState> states{{"anchor"}, {"outer_momentum"}};
  if (settings.delay > 0) states.push_back({"delta"});
  if (quorum.carry) {
    states.push_back({"carried"});
    states.push_back(
        {.name = "carried_weights", .dtype = DType::kFloat64, .numbers = settings.fragments});
  }
  AlgorithmEquality equality{.rule_states = settings.states != StatesAt::kLocal, .equal_states = 2};
  // What stays of a rank's own parameters is no other's.
  if (settings.blend == 0.0)
    equality.after = [settings](std::int64_t steps, int b, int buckets) {
      return settings.meets(b, buckets, steps - 1);
    };
  const bool waits_for_some = quorum.ranks > 0;
  return {.title = "DiLoCo",
          .needs = {.fp16_fault = fp16_fault(settings.states),
                    .least_buckets = {"fragments", settings.fragments},
                    .least_ranks = {"quorum", quorum.ranks},
                    .host_messages = waits_for_some},
          .states = states,
          .scratch = settings.delay > 0 ? 0
                     : waits_for_some   ? 2
                                        : 1,
          .messages = {.gathers = waits_for_some},
          .steps = {.keys = {{"period", settings.period}},
                    .asynchronous = waits_for_some,
                    .timing = "with a quorum takes what has come by then",
                    .undo = "\"quorum\": 0",
                    .leaves_out = waits_for_some,
                    .restarts_updates = settings.states == StatesAt::kReset},
          .equality = equality,
          .cost = {.exchanges = {{.what = waits_for_some ? PlannedExchange::kGatheredModels
                                                         : PlannedExchange::kModels,
                                  .every = settings.period,
                                  .hidden = settings.delay}},
                   .disagreement = drift_of_averages(settings.period, settings.blend > 0.0),
                   .tried = {{"period", 48}}},
          .make = waits_for_some ? maker_of_quorum_diloco(settings, settings.blend, quorum)
                                 : maker_of<DiLoCo>(settings)};
}

}  // namespace starling
