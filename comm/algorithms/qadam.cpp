#include <utility>

#include "comm/algorithms/averages.h"
#include "comm/algorithms/bucketwise.h"
#include "comm/algorithms/builtin.h"
#include "comm/algorithms/coded_mean.h"
#include "comm/algorithms/compression.h"
#include "comm/algorithms/updater.h"
#include "core/error.h"
#include "kernels/cpu/update.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizers/adam.h"
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
    const auto* kernel =
        dynamic_cast<const RuleKernel<rules::Adam<kDecoupled>, cpu::IsaLaunch>*>(&rule);
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

/// QAdam (Bagua; Tang et al. 2021, 1-bit Adam, arXiv 2102.02888, in 8 bits): once the second moment
/// is good it stays, and ranks send each other their momenta instead of gradients.
///     m = β1 m + (1-β1) g, then its mean over the ranks
///     p -= η/(1-β1^s) · m / (sqrt(v̂) + eps)
/// In fp16 a rank knows whether the step is skipped only after an exchange with all others.
/// Therefore momentum and residuals are updated in copies, which replace the originals if no rank
/// overflowed. The flags are exchanged together with the momenta and evaluated on the device.
class QAdam final : public Bucketwise {
 public:
  QAdam(const AlgorithmSite& site, const Compressor& compressor, std::int64_t warmup, bool feedback)
      : Bucketwise(site),
        warmup_(warmup),
        adam_(rules_for(site.rule, &frozen_at_)),
        residuals_(residuals(site, feedback, 0)),
        chunk_residuals_(residuals(site, feedback, 1)),
        saved_(site.buckets.empty() ? Tensor() : site.buckets[0].sync.back().numbers) {
    site.transport.prepare({});
    const auto copies = [&](const std::vector<Tensor>& of) {
      std::vector<Tensor> result;
      for (const Tensor& numbers : of)
        result.push_back(tentative() ? Tensor(site.backend, numbers.shape(), numbers.dtype())
                                     : numbers);
      return result;
    };
    std::vector<Tensor> momenta;
    for (const Bucket& bucket : site.buckets) momenta.push_back(bucket.states[0]);
    momenta_ = copies(momenta);
    residuals_ahead_ = copies(residuals_);
    chunk_residuals_ahead_ = copies(chunk_residuals_);
    mean_ = std::make_unique<EncodedMean>(site, compressor, site.transport.size(),
                                          Residuals{residuals_ahead_, chunk_residuals_ahead_});
    if (site.check_overflow) control_ = Tensor(site.backend, Shape{2}, DType::kFloat64);
    // p is m, the state the parameters.
    const double beta1 = adam_.settings.beta1,
                 wd = adam_.decoupled ? 0.0 : adam_.settings.weight_decay;
    follow_ = make_linear_rule(1, 0, [=](double) {
      return LinearTerms{.x = {.p = beta1, .g = 1.0 - beta1}, .decay_s = {wd}};
    });
  }

  /// Whether the step is one of all-reduce, after which the second moment stays.
  bool warms_up(const StepInfo& info) {
    if (info.step == 0) {  // updates count, not steps: without one there is no second moment
      frozen_at_ = info.optimizer_step - 1 + warmup_;
      const double value = static_cast<double>(frozen_at_);
      on_update_stream(site_.backend, [&] { site_.backend.copy_from_host(&value, saved_); });
    }
    return info.optimizer_step <= frozen_at_;
  }
  void resume(std::int64_t) override {
    double value = 0.0;
    on_update_stream(site_.backend, [&] { site_.backend.copy_to_host(saved_, &value); });
    frozen_at_ = static_cast<std::int64_t>(value);
  }
  Tensor control() const override { return control_; }

 protected:
  void update(int b) override {
    if (b == 0 && site_.check_overflow) ask_all();
    follow(b);
  }
  void complete() override {
    const bool alone = ranks() == 1;
    const auto waiting = [this](Ticket ticket, int bucket) { wait(ticket, bucket); };
    for (int b = 0; !alone && b < buckets(); ++b) mean_->gather(b, info_.step, waiting);
    for (int b = 0; b < buckets(); ++b) {
      if (!alone) mean_->finish(b, waiting);
      if (b == 0 && site_.check_overflow) hear_all();
      const auto at = static_cast<std::size_t>(b);
      const Bucket& of = site_.buckets[at];
      std::vector<Tensor> states = of.states;
      states[0] = momenta_[at];  // the frozen rule goes along it
      updater_.update(b, info_, {},
                      {.rule = adam_.move.get(),
                       .states = states,
                       .gradient = momenta_[at],
                       .control = control_});
      if (!tentative()) continue;
      take(b, momenta_[at], of.states[0]);
      if (residuals_.empty()) continue;
      take(b, residuals_ahead_[at], residuals_[at]);
      take(b, chunk_residuals_ahead_[at], chunk_residuals_[at]);
    }
  }

 private:
  static std::vector<Tensor> residuals(const AlgorithmSite& site, bool feedback, std::size_t k) {
    std::vector<Tensor> result;
    for (const Bucket& bucket : site.buckets) {
      if (feedback) result.push_back(bucket.sync[k].numbers);
    }
    return result;
  }
  bool tentative() const { return site_.check_overflow; }
  void follow(int b) {
    const auto at = static_cast<std::size_t>(b);
    const Bucket& of = site_.buckets[at];
    if (tentative()) {
      on_update_stream(site_.backend, [&] {
        site_.backend.copy(of.states[0], momenta_[at]);
        if (residuals_.empty()) return;
        site_.backend.copy(residuals_[at], residuals_ahead_[at]);
        site_.backend.copy(chunk_residuals_[at], chunk_residuals_ahead_[at]);
      });
    }
    updater_.update(b, info_, {},
                    {.rule = follow_.get(), .states = {of.parameters}, .numbers = momenta_[at]});
    if (site_.transport.size() > 1) mean_->start(b, momenta_[at], {}, momenta_[at], info_.step);
  }
  /// Whether a rank overflowed: the sum of what each says. `control_` skips where that is not 0.
  void ask_all() {
    on_update_stream(site_.backend, [&] {
      if (!answer_) answer_ = Tensor(site_.backend, Shape{1}, DType::kFloat64);
      site_.backend.fill(control_, 1.0);
      site_.backend.copy(updater_.overflow_control().slice(1, Shape{1}), answer_);
      asked_ = site_.transport.start_sum(answer_, answer_, {info_.step, 0, info_.step});
    });
  }
  void hear_all() {
    on_update_stream(site_.backend, [&] {
      wait(asked_, 0);
      site_.backend.copy(answer_, control_.slice(1, Shape{1}));
    });
  }
  /// `numbers` become what they are ahead, where the step counts.
  void take(int b, const Tensor& ahead, const Tensor& numbers) {
    updater_.update(
        b, info_, {},
        {.rule = take_.get(), .numbers = numbers, .gradient = ahead, .control = control_});
  }

  std::int64_t warmup_, frozen_at_ = 0;  ///< updates after which the second moment is fixed
  AdamRules adam_;
  /// Residuals by bucket; empty without feedback
  std::vector<Tensor> residuals_, chunk_residuals_;
  /// Copies where tentative(), the same tensors otherwise
  std::vector<Tensor> momenta_, residuals_ahead_, chunk_residuals_ahead_;
  Tensor saved_;  ///< frozen_at_
  /// With an overflow check: of this rank, of all
  Tensor answer_, control_;
  Ticket asked_ = 0;
  std::unique_ptr<EncodedMean> mean_;
  std::unique_ptr<OptimizerRule> follow_;
  std::unique_ptr<OptimizerRule> take_ =
      make_linear_rule(0, 0, [](double) { return LinearTerms{.x = {.p = 0, .g = 1}}; });
};

}  // namespace

AlgorithmPlan plan_qadam(ConfigSection& config) {
  const std::int64_t warmup = config.integer(
      "warmup", 100, Range::closed(1, 1e6), "updates by allreduce, before the second moment stays");
  const Compressor compressor = read_compressor(config);
  const bool feedback = config.boolean("error_feedback", false,
                                       "what encoding leaves out goes into the next exchange");
  std::vector<KeptState> states;
  if (feedback) {
    states.push_back({"residual"});
    states.push_back({.name = "residual_mean"});
    // The state's type is that of the mean that it joins.
    if (compressor.code != Code::kNone) states.back().dtype = DType::kFloat32;
  }
  // The number of updates after which the second moment is fixed. It does not follow from the step
  // number, since skipped steps do not count.
  states.push_back({.name = "frozen_at", .dtype = DType::kFloat64, .numbers = 1});
  return {.title = "QAdam",
          .needs = {.optimizers = {"adam", "adamw"}},
          .states = states,
          .messages = {.wire = compressor.wire()},
          .steps = {.keys = {{"warmup", warmup, false}}},
          .equality = {.mean_gradients_before = AlgorithmEquality::kAlways},
          .cost = {.exchanges = {{.what = PlannedExchange::kGradientChunks}},
                   .disagreement = [](double) { return 0.0; }},
          .make = [=](const AlgorithmSite& site) {
            auto qadam = std::make_unique<QAdam>(site, compressor, warmup, feedback);
            const auto warms_up = [of = qadam.get()](const StepInfo& info) {
              return of->warms_up(info);
            };
            return after_warmup(site, warms_up, std::move(qadam));
          }};
}

}  // namespace starling
