#include <utility>

#include "comm/algorithms/averages.h"
#include "comm/algorithms/builtin.h"
#include "comm/algorithms/disagreement.h"
#include "comm/algorithms/gossip.h"
#include "kernels/optimizers/linear.h"

namespace starling {
namespace {

struct SlowSettings {
  std::int64_t period = 48;
  double momentum = 0.5, lr = 1.0;
  StatesAt states = StatesAt::kLocal;
  std::optional<GossipSettings> gossip;

  bool meets(std::int64_t t) const { return (t + 1) % period == 0; }
};

std::unique_ptr<Algorithm> inner_of(const AlgorithmSite& site, const SlowSettings& settings) {
  if (!settings.gossip) return std::make_unique<Alone>(site);
  const bool kept = settings.gossip->global_above > 0.0 && !site.buckets.empty();
  return make_gossip(
      site, *settings.gossip, [settings](std::int64_t t) { return settings.meets(t); },
      kept ? site.buckets[0].sync[2].numbers : Tensor());
}

/// Slow momentum (Wang et al. 2020, arXiv 1910.00643): after steps with τ | t + 1, x̄ being the
/// mean of all ranks' x,
///     u = βu + (a - x̄)/η      a = a - αηu      x = a      a(0) = x(0)      where η = 0, a = x̄
class SlowMomentum final : public Averages {
 public:
  SlowMomentum(const AlgorithmSite& site, const SlowSettings& settings)
      : Averages(site, inner_of(site, settings), settings.states), settings_(settings) {
    // The states are u and a, g is the sum over the ranks.
    rule_ = make_linear_rule(
        2, 2, [beta = settings.momentum, alpha = settings.lr, share = means_.share()](double lr) {
          if (lr == 0.0)
            return LinearTerms{.x = {.p = 0, .g = share}, .state = {{.s = {1, 0}}, {.g = share}}};
          const rules::LinearTerms<double> anchor{.s = {-alpha * lr * beta, 1.0 - alpha},
                                                  .g = alpha * share};
          return LinearTerms{.x = anchor,
                             .state = {{.s = {beta, 1.0 / lr}, .g = -share / lr}, anchor}};
        });
  }

 protected:
  bool meets(int, std::int64_t t) const override { return settings_.meets(t); }
  void first_step() override { copy_parameters_to(0); }
  void meet(int b) override {
    const Tensor sum = wait_mean(b);
    apply(b, *rule_, {state(b, 1), state(b, 0)}, sum, bucket(b).parameters);
  }

 private:
  SlowSettings settings_;
  std::unique_ptr<OptimizerRule> rule_;
};

}  // namespace

AlgorithmPlan plan_slowmo(ConfigSection& config) {
  SlowSettings settings;
  config.read("period", settings.period, Range::closed(1, 1e6),
              "steps from one average to the next");
  config.read("momentum", settings.momentum, Range::half_open(0.0, 1.0),
              "of the steps that averages are");
  config.read("slow_lr", settings.lr, Range::positive(),
              "how far such a step goes; 1: to the mean and the momentum");
  settings.states = read_states(config);
  const bool gossip =
      config.choice("inner", "local", {"local", "gossip"},
                    "what ranks do between averages; gossip takes gossip's keys too") == "gossip";
  std::vector<KeptState> states{{"anchor"}, {"slow_momentum"}};
  std::vector<StepKey> keys{{"period", settings.period}};
  AlgorithmGrowth growth;
  std::vector<PlannedExchange> exchanges{
      {.what = PlannedExchange::kModels, .every = settings.period}};
  if (gossip) {
    const GossipSettings inner = read_gossip(config);
    settings.gossip = inner;
    for (const KeptState& state : states_of(inner)) states.push_back(state);
    for (StepKey& key : step_keys_of(inner)) keys.push_back(std::move(key));
    growth = growth_of(inner);  // the averages bring growth down further
    exchanges.push_back({.every = inner.interval, .hidden = inner.adapt_then_combine ? 0 : 1});
  }
  return {
      .title = "slow momentum",
      .topology = gossip ? TopologyKind::kDoublyStochastic : TopologyKind::kNone,
      .needs = {.fp16_fault = fp16_fault(settings.states)},
      .states = states,
      .scratch = gossip ? 1 : 0,
      .messages = {.always = gossip && settings.gossip->adapt_then_combine,
                   .mixes_states = gossip && settings.gossip->mix_states > 0},
      .steps = {.keys = keys, .restarts_updates = settings.states == StatesAt::kReset},
      .equality = {.after = [settings](std::int64_t steps, int,
                                       int) { return settings.meets(steps - 1); },
                   .rule_states = settings.states != StatesAt::kLocal,
                   .equal_states = 2},
      .growth = growth,
      .cost = {.exchanges = exchanges, .disagreement = drift_of_averages(settings.period, gossip)},
      .make = maker_of<SlowMomentum>(settings)};
}

}  // namespace starling
