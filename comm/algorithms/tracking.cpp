#include "comm/algorithms/bucketwise.h"
#include "comm/algorithms/builtin.h"
#include "comm/algorithms/disagreement.h"
#include "kernels/optimizers/linear.h"

namespace starling {
namespace {

/// Base class of gradient tracking: a second tensor is mixed like the parameters, in the same
/// rounds.
class Tracking : public Bucketwise {
 public:
  explicit Tracking(const AlgorithmSite& site)
      : Bucketwise(site),
        beside_(make_mixer_for([](const Bucket& of) { return of.sync[0].numbers; }, site.overlap)) {
    site_.mixer.open({site_.buckets, site_.topology, site_.overlap, false});
  }

  void finish() override {
    site_.mixer.settle();
    beside_.settle();
    updater_.join();
  }
  void resume(std::int64_t step) override {
    finish();
    site_.mixer.resume(step, step - 1);
    beside_.resume(step, step - 1);
  }

 protected:
  /// The tracked tensor of bucket b from what it was, mixed.
  virtual UpdateWork track(int b) = 0;
  /// The update of the mixed parameters with the tracked tensor.
  virtual UpdateWork move(int b) = 0;

  void update(int b) final {
    const std::int64_t step = info_.step;
    UpdateWork tracked = track(b);
    tracked.numbers = state(b, 0);
    updater_.update(b, info_, beside_.receive(b, step, step - 1), tracked);
    beside_.publish(b, step, step);
    updater_.update(b, info_, site_.mixer.receive(b, step, step - 1), move(b));
    site_.mixer.publish(b, step, step);
  }

 private:
  Mixer& beside_;
};

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
