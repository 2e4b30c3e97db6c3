
#include "comm/algorithms/builtin.h"
#include "comm/algorithms/disagreement.h"
#include "comm/algorithms/momentum.h"
#include "comm/algorithms/tracking.h"
#include "kernels/optimizers/linear.h"

namespace starling {
namespace {

/// Momentum tracking (Takezawa et al. 2022, arXiv 2209.15505): momentum that is corrected by how
/// the ranks' differ.
///     m(t) = βm(t-1) + g      c(t) = [z(t-1)]_(t-1) + m(t-1)      c(0) = 0
///     x' = [x]_(t-1) - η(m(t) - c(t))
///     z(t) = c(t) - m(t)
class MomentumTracking final : public Tracking {
 public:
  explicit MomentumTracking(const AlgorithmSite& site) : Tracking(site) {
    const rules::Sgd sgd = sgd_of(site.rule);
    // p is the mixed z, the states are m and x.
    track_ = make_linear_rule(2, 1, [beta = sgd.momentum, wd = sgd.weight_decay](double) {
      return LinearTerms{.x = {.p = 1, .s = {1, 0}, .made = {-1}},
                         .state = {{.s = {beta, 0}, .g = 1}},
                         .decay_s = {0, wd}};
    });
    move_ = make_linear_rule(0, 0, [](double lr) { return LinearTerms{.x = {.p = 1, .g = lr}}; });
  }

 protected:
  UpdateWork track(int b) override {
    return {.rule = track_.get(), .states = {bucket(b).states[0], bucket(b).parameters}};
  }
  UpdateWork move(int b) override {
    return {.rule = move_.get(), .gradient = state(b, 0), .always = true};
  }

 private:
  std::unique_ptr<OptimizerRule> track_, move_;
};

}  // namespace

AlgorithmPlan plan_momentum_tracking(ConfigSection&) {
  return {
      .title = "momentum tracking",
      .topology = TopologyKind::kDoublyStochastic,
      .needs = {.optimizers = {"sgd"},
                .rule_fault = [](const OptimizerRule& rule) -> std::string {
                  if (sgd_of(rule).momentum == 0.0)
                    return "it needs a momentum above 0; without, gradient_tracking does the same";
                  return nesterov_fault(rule);
                }},
      .states = {{"z"}},
      .messages = {.mixed = 2},
      .growth = {[](const OptimizerRule& rule) {  // z is {x, z, m}
        return DisagreementModel{2, [beta = sgd_of(rule).momentum](auto& z, const auto& mix) {
                                   mix(z[1]);
                                   add(z[1], 1.0, z[2]);
                                   scale(z[2], beta);
                                   add(z[1], -1.0, z[2]);
                                   mix(z[0]);
                                   add(z[0], 1.0, z[1]);
                                 }};
      }},
      .cost = cost_of_mixing(true),
      .make = maker_of<MomentumTracking>()};
}

}  // namespace starling
