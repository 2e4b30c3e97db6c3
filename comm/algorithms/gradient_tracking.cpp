
#include "comm/algorithms/builtin.h"
#include "comm/algorithms/disagreement.h"
#include "comm/algorithms/momentum.h"
#include "comm/algorithms/tracking.h"
#include "kernels/optimizers/linear.h"

namespace starling {
namespace {

/// Gradient tracking (Di Lorenzo & Scutari 2016, arXiv 1602.00591): y follows the mean gradient of
/// all ranks.
///     y(0) = g(0)        y(t) = ([y(t-1)]_(t-1) - g(t-1)) + g(t)        x' = U([x]_(t-1), y(t))
class GradientTracking final : public Tracking {
 public:
  explicit GradientTracking(const AlgorithmSite& site) : Tracking(site) {
    track_ = make_linear_rule(1, 1, [](double) {
      return LinearTerms{.x = {.p = 1, .s = {-1}, .g = 1}, .state = {{.g = 1}}};
    });
  }

 protected:
  UpdateWork track(int b) override { return {.rule = track_.get(), .states = {state(b, 1)}}; }
  UpdateWork move(int b) override { return {.gradient = state(b, 0)}; }

 private:
  std::unique_ptr<OptimizerRule> track_;
};

}  // namespace

AlgorithmPlan plan_gradient_tracking(ConfigSection&) {
  return {.title = "gradient tracking",
          .topology = TopologyKind::kDoublyStochastic,
          .needs = {.rule_fault = [](const OptimizerRule& rule) -> std::string {
            return rule.facts().corrects_noise
                       ? "noise_correction is for a rank's own gradients, and this "
                         "one follows the mean of all"
                       : "";
          }},
          .states = {{"y"}, {"g"}},
          .messages = {.mixed = 2},
          .growth = {[](const OptimizerRule& rule) {  // z is {x, y, m}
            return DisagreementModel{2, [beta = momentum_of(rule)](auto& z, const auto& mix) {
                                       mix(z[1]);
                                       scale(z[2], beta);
                                       add(z[2], 1.0, z[1]);
                                       mix(z[0]);
                                       add(z[0], -1.0, z[2]);
                                     }};
          }},
          .cost = cost_of_mixing(true),
          .make = maker_of<GradientTracking>()};
}

}  // namespace starling
