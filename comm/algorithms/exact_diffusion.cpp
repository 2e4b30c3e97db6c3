#include "comm/algorithms/bucketwise.h"
#include "comm/algorithms/builtin.h"
#include "comm/algorithms/disagreement.h"
#include "core/operations/pointwise.h"
#include "kernels/optimizers/linear.h"

namespace starling {
namespace {

/// Exact diffusion (Yuan et al. 2019, arXiv 1702.05122), and D² (Tang et al. 2018, arXiv
/// 1803.07068) where it is not lazy:
///     ψ = U(x, g)      x' = V(ψ + (x - ψ_prev))      ψ_prev(0) = x(0)      V = (I + W)/2, or W
class ExactDiffusion final : public Bucketwise {
 public:
  ExactDiffusion(const AlgorithmSite& site, bool lazy) : Bucketwise(site), lazy_(lazy) {
    // p is ψ, the state x - ψ_prev.
    correct_ = make_linear_rule(
        1, 1, [](double) { return LinearTerms{.x = {.p = 1, .s = {1}}, .state = {{.p = 1}}}; });
    site_.mixer.open({site_.buckets, site_.topology, site_.overlap, false, true});
  }

 protected:
  void start_step() override {
    if (info_.step == 0) copy_parameters_to(0);
  }
  void update(int b) override {
    const Tensor &x = bucket(b).parameters, &previous = state(b, 0);
    on_update_stream(site_.backend, [&] {
      site_.backend.weighted_sum(
          {.in = {x, previous}, .weight = {1.0, -1.0}, .terms = 2, .out = previous});
    });
    updater_.update(b, info_);
    updater_.update(b, info_, {},
                    {.rule = correct_.get(), .states = {previous}, .gradient = x, .always = true});
    site_.mixer.publish(b, info_.step, info_.step);
  }
  void complete() override {
    for (int b = 0; b < buckets(); ++b) {
      Mix mix = site_.mixer.receive(b, info_.step, info_.step);
      if (lazy_ && !mix.received.empty()) mix.take_part(0.5);
      updater_.mix(b, info_, mix);
      site_.mixer.publish(b, info_.step, -1);
    }
  }

 private:
  bool lazy_;
  std::unique_ptr<OptimizerRule> correct_;
};

/// z is {x, ψ_prev, m}.
DisagreementModel model(double beta, bool lazy) {
  return {2, [=](auto& z, const auto& mix) {
            std::vector<double> psi = z[0];
            scale(z[2], beta);
            add(psi, -1.0, z[2]);
            add(z[0], 1.0, psi);
            add(z[0], -1.0, z[1]);
            z[1] = psi;
            std::vector<double> own = z[0];
            mix(z[0]);
            if (!lazy) return;
            scale(z[0], 0.5);
            add(z[0], 0.5, own);
          }};
}

}  // namespace

AlgorithmPlan plan_exact_diffusion(ConfigSection& config) {
  const bool lazy = config.boolean(
      "lazy", true, "mix with (I + W)/2, which is stable; false: with W, as D2 does");
  return {.title = lazy ? "exact diffusion" : "D2",
          .topology = TopologyKind::kSymmetric,
          .states = {{"psi"}},
          .messages = {.always = true},
          .steps = {.period = 1},
          .growth = {[lazy](const OptimizerRule& rule) { return model(momentum_of(rule), lazy); }},
          .cost = cost_of_mixing(false),
          .make = maker_of<ExactDiffusion>(lazy)};
}

}  // namespace starling
