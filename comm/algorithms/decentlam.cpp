#include <cstddef>
#include <memory>
#include <vector>

#include "comm/algorithms/bucketwise.h"
#include "comm/algorithms/builtin.h"
#include "comm/algorithms/disagreement.h"
#include "comm/algorithms/momentum.h"
#include "kernels/optimizers/linear.h"

namespace starling {
namespace {

/// DecentLaM (Yuan et al. 2021, arXiv 2104.11981), which mixes the step along the gradient but not
/// the one along the momentum, so that the momentum does not enlarge the bias of ranks with other
/// data:
///     x' = [x - ηg]_t - ηβm        m' = (x - x')/η        where η = 0, m stays
class DecentLaM final : public Bucketwise {
 public:
  explicit DecentLaM(const AlgorithmSite& site) : Bucketwise(site), before_(like_parameters()) {
    const rules::Sgd sgd = sgd_of(site.rule);
    const double beta = sgd.momentum, wd = sgd.weight_decay;
    descend_ = make_linear_rule(
        0, 0, [=](double lr) { return LinearTerms{.x = {.p = 1, .g = -lr}, .decay_p = wd}; });
    // p is the mix, the state m.
    glide_ = make_linear_rule(1, 0, [=](double lr) {
      return LinearTerms{.x = {.p = 1, .s = {-lr * beta, 0}}};
    });
    // p is m, the states are x' and what x was before.
    follow_ = make_linear_rule(2, 0, [](double lr) {
      if (lr == 0.0) return LinearTerms{};
      return LinearTerms{.x = {.p = 0, .s = {-1.0 / lr, 1.0 / lr}}};
    });
    site_.mixer.open({site_.buckets, site_.topology, site_.overlap, false, true});
  }

 protected:
  void update(int b) override {
    on_update_stream(site_.backend, [&] { site_.backend.copy(bucket(b).parameters, before(b)); });
    updater_.update(b, info_, {}, {.rule = descend_.get()});
    site_.mixer.publish(b, info_.step, info_.step);
  }
  void complete() override {
    for (int b = 0; b < buckets(); ++b) {
      const Mix& mix = site_.mixer.receive(b, info_.step, info_.step);
      const Tensor& x = bucket(b).parameters;
      const std::vector<Tensor>& m = bucket(b).states;  // empty without momentum
      if (m.empty()) {
        updater_.mix(b, info_, mix);
      } else {
        updater_.update(b, info_, mix,
                        {.rule = glide_.get(), .states = m, .gradient = x, .always = true});
      }
      site_.mixer.publish(b, info_.step, -1);
      if (m.empty()) continue;
      updater_.update(
          b, info_, {},
          {.rule = follow_.get(), .states = {x, before(b)}, .numbers = m[0], .gradient = x});
    }
  }

 private:
  Tensor& before(int b) { return before_[static_cast<std::size_t>(b)]; }

  std::unique_ptr<OptimizerRule> descend_, glide_, follow_;
  std::vector<Tensor> before_;  ///< by bucket: x before the step
};

}  // namespace

AlgorithmPlan plan_decentlam(ConfigSection&) {
  return {.title = "DecentLaM",
          .topology = TopologyKind::kSymmetricFixed,
          .needs = {.optimizers = {"sgd"}, .rule_fault = nesterov_fault},
          .scratch = 1,
          .messages = {.always = true},
          .steps = {.period = 1},
          .growth = {[](const OptimizerRule& rule) {
            return DisagreementModel{
                1, [beta = sgd_of(rule).momentum](DisagreementModel::Numbers& z,
                                                  const DisagreementModel::MixOne& mix) {
                  const std::vector<double> before = z[0];
                  mix(z[0]);
                  add(z[0], -beta, z[1]);
                  z[1] = before;
                  add(z[1], -1.0, z[0]);
                }};
          }},
          .cost = cost_of_mixing(false),
          .make = [](const AlgorithmSite& site) { return std::make_unique<DecentLaM>(site); }};
}

}  // namespace starling
