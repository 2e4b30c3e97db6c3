#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/algorithms/averages.h"
#include "comm/algorithms/builtin.h"
#include "comm/algorithms/compression.h"
#include "comm/algorithms/encoded_mean.h"
#include "comm/planner/predict.h"
#include "core/error.h"
#include "kernels/cpu/update.h"
#include "kernels/math/rules.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizers/linear.h"

namespace starling {
namespace {

struct AdamRules {
  rules::AdamSettings settings;
  bool decoupled = false;
  std::unique_ptr<OptimizerRule> move;
};
AdamRules rules_for(const OptimizerRule& rule, const std::int64_t* frozen_at) {
  AdamRules result;
  const auto take = [&](auto decoupled) {
    constexpr bool kDecoupled = decltype(decoupled)::value;
    const auto* kernel = dynamic_cast<const RuleKernel<rules::Adam<kDecoupled>, cpu::IsaLaunch>*>(&rule);
    if (!kernel) return;
    rules::Adam<kDecoupled> frozen = kernel->rule();
    frozen.frozen_at = frozen_at;
    result.settings = frozen.settings;
    result.decoupled = kDecoupled;
    result.move = std::make_unique<RuleKernel<rules::Adam<kDecoupled>, cpu::IsaLaunch>>(frozen);
  };
  take(std::false_type{});
  take(std::true_type{});
  require(static_cast<bool>(result.move), "algorithm", "the optimizer is neither adam nor adamw");
  return result;
}

/// QAdam (Bagua; Tang et al. 2021, 1-bit Adam, arXiv 2102.02888, in 8 bits): once the second moment is good it stays, and ranks send each
/// other their momenta instead of gradients.
///     m = β1 m + (1-β1) g, then its mean over the ranks        p -= η/(1-β1^s) · m / (sqrt(v̂) + eps)
class QAdam final : public Algorithm {
 public:
  QAdam(const AlgorithmSite& site, const Compressor& compressor, std::int64_t warmup, bool feedback)
      : Algorithm(site),
        warmup_(warmup),
        adam_(rules_for(site.rule, &frozen_at_)),
        updater_(site),
        mean_(site, compressor, site.transport.size(), residuals(site, feedback, 0), residuals(site, feedback, 1)) {
    require(!site.check_overflow, "algorithm", "qadam does not take back a momentum in which gradients overflowed");
    site.transport.prepare({});
    // p is m, the state the parameters.
    const double beta1 = adam_.settings.beta1, wd = adam_.decoupled ? 0.0 : adam_.settings.weight_decay;
    follow_ = make_linear_rule(1, 0, [=](double) { return Linear{.x = {.p = beta1, .g = 1.0 - beta1}, .decay_s = {wd}}; });
  }

  void begin(const StepInfo& info) override {
    info_ = info;
    frozen_at_ = info.optimizer_step - (info.step + 1 - warmup_);
  }
  void bucket_ready(int bucket) override {
    if (updater_.in_backward()) follow(bucket);
  }
  void backward_done() override {
    const int buckets = static_cast<int>(site_.buckets.size());
    if (!updater_.in_backward()) {
      if (updater_.needs_all_gradients()) updater_.measure_all(info_);
      for (int b = 0; b < buckets; ++b) follow(b);
    }
    const auto waiting = [this](Ticket ticket, int bucket) { wait(ticket, bucket); };
    const bool alone = site_.transport.size() == 1;
    for (int b = 0; !alone && b < buckets; ++b) mean_.gather(b, info_.step, waiting);
    for (int b = 0; b < buckets; ++b) {
      if (!alone) mean_.finish(b, waiting);
      const Bucket& of = site_.buckets[static_cast<std::size_t>(b)];
      updater_.update(b, info_, {}, {.rule = adam_.move.get(), .states = of.states, .gradient = of.states[0], .always = true});
    }
    updater_.join();
  }
  void finish() override {}
  void resume(std::int64_t) override {}
  std::int64_t graph_period(std::string& why) const override {
    why = "after its warm-up the second moment stays";
    return 0;
  }

 private:
  static std::vector<Tensor> residuals(const AlgorithmSite& site, bool feedback, std::size_t k) {
    std::vector<Tensor> result;
    for (const Bucket& bucket : site.buckets) {
      if (feedback) result.push_back(bucket.sync[k].numbers);
    }
    return result;
  }
  void follow(int b) {
    const Bucket& of = site_.buckets[static_cast<std::size_t>(b)];
    updater_.update(b, info_, {}, {.rule = follow_.get(), .states = {of.parameters}, .numbers = of.states[0]});
    if (site_.transport.size() > 1) mean_.start(b, of.states[0], info_.step);
  }

  std::int64_t warmup_, frozen_at_ = 1;
  AdamRules adam_;
  Updater updater_;
  EncodedMean mean_;
  std::unique_ptr<OptimizerRule> follow_;
  StepInfo info_;
};

}  // namespace

AlgorithmPlan plan_qadam(ConfigSection& config) {
  const std::int64_t warmup = config.integer("warmup", 100, Range::closed(1, 1e6), "updates by allreduce, before the second moment stays");
  const Compressor compressor = read_compressor(config, "minmax8");
  const bool feedback = config.boolean("error_feedback", false, "what encoding leaves out goes into the next exchange");
  std::vector<AlgorithmPlan::State> states;
  if (feedback) {
    states.push_back({"residual"});
    states.push_back({.name = "residual_mean"});
    if (compressor.code != Code::kNone) states.back().dtype = DType::kFloat32;  // as the mean that it joins
  }
  return {.title = "QAdam",
          .optimizers = {"adam", "adamw"},
          .states = states,
          .wire = compressor.wire(),
          .fp16_fault = "a momentum in which gradients overflowed is not taken back; allowed: another precision",
          .step_keys = {{"warmup", warmup, false}},
          .means_before = AlgorithmPlan::kAlways,
          .predict = predict_by_encoded_mean(compressor.wire()),
          .disagreement = [](double) { return 0.0; },
          .make =
              [=](const AlgorithmSite& site) {
                return after_warmup(site, warmup, make_all_reduce(site), std::make_unique<QAdam>(site, compressor, warmup, feedback));
              }};
}

}  // namespace starling
