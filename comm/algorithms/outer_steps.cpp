#include "comm/algorithms/outer_steps.h"

#include "kernels/optimizers/linear.h"

namespace starling {

OuterSettings read_outer_steps(ConfigSection& config, std::int64_t usual_period) {
  OuterSettings settings;
  settings.period = config.integer("period", usual_period, Range::closed(1, 1e6),
                                   "steps from one outer step of a parameter to the next");
  config.read("outer_lr", settings.lr, Range::positive(), "learning rate of the outer steps");
  config.read("outer_momentum", settings.momentum, Range::half_open(0.0, 1.0),
              "of the outer steps");
  config.read("outer_nesterov", settings.nesterov, "look ahead along it");
  config.read("fragments", settings.fragments, Range::closed(1, 1e6),
              "parts of the buckets that take turns; divides period");
  if (settings.period % settings.fragments != 0) {
    config.error("fragments", "is {}, which does not divide the period of {}; take a divisor of it",
                 settings.fragments, settings.period);
  }
  return settings;
}

void check_outer_states(const ConfigSection& config, const OuterSettings& settings) {
  if (settings.states == StatesAt::kReset && settings.fragments > 1) {
    config.error("states",
                 "is reset, but fragments take turns and the optimizer counts its steps once; "
                 "leave one of them out");
  }
}

std::optional<AlgorithmCost::Learning> measured_learning(OuterMix mix, const MixerKind& exchange,
                                                         double share) {
  // The rows of docs/algorithms.md, "Which one": letters. bf16 lies between fp32 and int8.
  constexpr double kSparse = 1.0 / 16.0, kSparser = 1.0 / 64.0;
  if (mix == OuterMix::kAll && !exchange.sparse) return {{.loss = 0.0, .steps = 1.0}};
  if (mix == OuterMix::kAll && share == kSparse) return {{.loss = -0.005, .steps = 1.0}};
  if (mix == OuterMix::kAll && share == kSparser) return {{.loss = 0.046, .steps = 1.45}};
  if (mix == OuterMix::kGossip && share == 0.5) return {{.loss = 0.026, .steps = 1.25}};
  if (mix == OuterMix::kGossip && share == 1.0)
    return {{.loss = exchange.encodes ? 0.112 : 0.105, .steps = 1.6}};
  if (mix == OuterMix::kGossipOfDifferences && share == 1.0)
    return {{.loss = 0.010, .steps = 1.06}};
  return std::nullopt;
}

void set_learning(AlgorithmCost& cost, std::optional<AlgorithmCost::Learning> learning) {
  cost.learning = learning;
  if (!learning) cost.disagreement = {};
}

std::unique_ptr<OptimizerRule> make_outer_rule(const OuterSettings& settings, double share,
                                               double blend) {
  const double mu = settings.momentum, nu = settings.lr;
  const double of_s = -nu * (settings.nesterov ? mu * mu : mu),
               of_delta = -nu * share * (settings.nesterov ? 1.0 + mu : 1.0);
  return make_linear_rule(2, 2, [=](double) {
    return LinearTerms{.x = {.p = blend, .made = {0, 1.0 - blend}},
                       .state = {{.s = {mu, 0}, .g = share}, {.s = {of_s, 1}, .g = of_delta}}};
  });
}

}  // namespace starling
