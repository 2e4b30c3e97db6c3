#include <cmath>

#include "comm/algorithms/bucketwise.h"
#include "comm/algorithms/builtin.h"
#include "comm/algorithms/disagreement.h"
#include "core/error.h"
#include "core/operations/pointwise.h"
#include "kernels/optimizers/linear.h"

namespace starling {
namespace {

/// Push-sum (Assran et al. 2019, stochastic gradient push, arXiv 1811.10792), for graphs on which
/// what a rank receives need not sum to 1: a weight ω that is mixed as the parameters are says how
/// much. A rank stores z, what it would be at weight 1.
///     h = U(ωz, g at z)        ω' = [ω]_t        z' = [h]_t / ω'        ω(0) = 1
/// Every rank knows all weights, because they follow from the rounds alone; so none is sent. Each
/// saves its own, by which a resumed run sees that its rounds are those of the run before.
class PushSum final : public Bucketwise {
 public:
  explicit PushSum(const AlgorithmSite& site)
      : Bucketwise(site), weights_(static_cast<std::size_t>(ranks()), 1.0) {
    mixed_ = make_linear_rule(0, 0, [this](double) { return LinearTerms{.x = {.p = alone_}}; });
    site_.mixer.open({site_.buckets, site_.topology, site_.overlap, false, true});
  }

  void finish() override {
    if (!saved()) return;
    const double weight = own(weights_);
    on_update_stream(site_.backend, [&] { site_.backend.copy_from_host(&weight, saved()); });
  }
  void resume(std::int64_t step) override {
    weights_.assign(weights_.size(), 1.0);
    for (std::int64_t t = 0; t < step; ++t) weights_ = mixed_weights(t);
    if (!saved()) return;
    double weight = 0.0;  // of a checkpoint from before it was saved, and before the first step
    on_update_stream(site_.backend, [&] { site_.backend.copy_to_host(saved(), &weight); });
    if (weight != 0.0 && std::abs(weight - own(weights_)) > 1e-9 * weight) {
      fail(ExitCode::kUsage, "resume", {.key = "sync.omega"},
           "this rank's weight was {}, and after {} steps on this topology it is {}; give the "
           "topology that the checkpoint was made with",
           weight, step, own(weights_));
    }
  }
  double mean_weight() const override { return own(weights_); }

 protected:
  void update(int b) override {
    const double weight = own(weights_);
    if (weight != 1.0) {
      const Tensor& x = bucket(b).parameters;
      on_update_stream(site_.backend, [&] {
        site_.backend.weighted_sum({.in = {x}, .weight = {weight}, .terms = 1, .out = x});
      });
    }
    updater_.update(b, info_);
    site_.mixer.publish(b, info_.step, info_.step);
  }
  void complete() override {
    weights_ = mixed_weights(info_.step);
    for (int b = 0; b < buckets(); ++b) {
      Mix mix = site_.mixer.receive(b, info_.step, info_.step);
      mix.self_weight /= own(weights_);
      for (double& weight : mix.weights) weight /= own(weights_);
      alone_ = mix.received.empty() ? mix.self_weight : 1.0;  // a mix of nothing is no mix
      updater_.update(b, info_, mix,
                      {.rule = mixed_.get(), .gradient = bucket(b).parameters, .always = true});
      site_.mixer.publish(b, info_.step, -1);
    }
  }

 private:
  Tensor saved() const {
    return site_.buckets.empty() ? Tensor() : site_.buckets[0].sync[0].numbers;
  }
  double own(const std::vector<double>& weights) const {
    return weights[static_cast<std::size_t>(site_.transport.rank())];
  }
  std::vector<double> mixed_weights(std::int64_t round) const {
    if (ranks() == 1) return weights_;
    std::vector<double> mixed;
    const Round of = over_ranks(site_.topology->round(round));
    for (int i = 0; i < ranks(); ++i) {
      double sum = 0.0;
      for (const auto& [j, weight] : Topology::row(of, i))
        sum += weight * weights_[static_cast<std::size_t>(j)];
      mixed.push_back(sum);
    }
    return mixed;
  }

  std::unique_ptr<OptimizerRule> mixed_;
  double alone_ = 1.0;           ///< x's factor where nothing was received
  std::vector<double> weights_;  ///< ω of every rank
};

}  // namespace

AlgorithmPlan plan_push_sum(ConfigSection&) {
  return {.title = "push-sum",
          .topology = TopologyKind::kColumnStochastic,
          .states = {{.name = "omega", .dtype = DType::kFloat64, .numbers = 1}},
          .messages = {.always = true},
          // What ranks sum to stays, so the numbers ωz disagree in what they do not sum to.
          .growth = {[](const OptimizerRule& rule) {
            return model_of_mixing(rule, {.adapt_then_combine = true});
          }},
          .cost = cost_of_mixing(false),
          .make = maker_of<PushSum>()};
}

}  // namespace starling
