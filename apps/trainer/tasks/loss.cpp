#include "apps/trainer/tasks/loss.h"

#include "core/error.h"
#include "core/operations/losses.h"
#include "layers/functions.h"

namespace starling {
namespace {

/// A row of scores for each class, or, of the targets, a number for each class.
bool fits_classes(const Variable& outputs, const Tensor& targets) {
  if (outputs.shape().rank() != 2) return false;
  if (targets.dtype() == DType::kInt32) return targets.shape() == Shape{outputs.shape()[0]};
  return is_floating(targets.dtype()) && targets.shape() == outputs.shape();
}

[[noreturn]] void refuse(const char* name, const Variable& outputs, const Tensor& targets,
                         const char* needed) {
  fail(ExitCode::kUsage, "loss", "{}: outputs {} and targets {} of {}; needed: {}", name,
       outputs.shape().text(), targets.shape().text(), name_of(targets.dtype()), needed);
}

class CrossEntropy final : public Loss {
 public:
  explicit CrossEntropy(ConfigSection& config)
      : label_smoothing_(config.number("label_smoothing", 0.0, Range::half_open(0.0, 1.0),
                                       "share of the target spread over all classes")) {}
  Variable value(const Variable& outputs, const Tensor& targets, double scale,
                 Pass& pass) const override {
    if (!fits_classes(outputs, targets))
      refuse("cross_entropy", outputs, targets,
             "a row of scores and an int32 class each, or a probability for each score");
    return functions::cross_entropy(outputs, targets, label_smoothing_, scale, pass);
  }
  bool takes_shares() const override { return true; }

 private:
  double label_smoothing_;
};

class FocalLoss final : public Loss {
 public:
  explicit FocalLoss(ConfigSection& config)
      : gamma_(config.number(
            "gamma", 2.0, Range::closed(0.0, 100.0),
            "power of 1 - p; the larger, the less what is learnt counts; 0: cross_entropy")) {}
  Variable value(const Variable& outputs, const Tensor& targets, double scale,
                 Pass& pass) const override {
    if (!fits_classes(outputs, targets))
      refuse("focal", outputs, targets,
             "a row of scores and an int32 class each, or a probability for each score");
    return functions::target_loss(outputs, targets, {.kind = LossKind::kFocal, .parameter = gamma_},
                                  scale, pass);
  }
  bool takes_shares() const override { return true; }

 private:
  double gamma_;
};

/// The mean of a function of each output and its target.
class ElementLoss final : public Loss {
 public:
  ElementLoss(const char* name, LossKind kind, double parameter = 0.0)
      : name_(name), settings_{.kind = kind, .parameter = parameter} {}
  Variable value(const Variable& outputs, const Tensor& targets, double scale,
                 Pass& pass) const override {
    const bool as_large = targets.shape() == outputs.shape() && is_floating(targets.dtype());
    if (!as_large && !fits_classes(outputs, targets)) {
      refuse(name_, outputs, targets,
             "as many floating numbers, or an int32 class for each row of outputs");
    }
    return functions::target_loss(outputs, targets, settings_, scale, pass);
  }
  bool takes_shares() const override { return true; }

 private:
  const char* name_;
  functions::TargetLossSettings settings_;
};

}  // namespace

LossRegistry& losses() {
  static LossRegistry registry("loss");
  return registry;
}

void register_builtin_losses() {
  static const bool once = [] {
    losses().add(
        "cross_entropy",
        [](ConfigSection& config) { return std::make_unique<CrossEntropy>(config); },
        "-Σ_c t_c log p_c, p = softmax(x), mean over samples; t is smoothed by `label_smoothing`");
    losses().add(
        "focal", [](ConfigSection& config) { return std::make_unique<FocalLoss>(config); },
        "-Σ_c t_c (1 - p_c)^γ log p_c, γ = `gamma`, p = softmax(x), mean over samples (Lin et al. "
        "2017, but no sigmoids): samples that are learnt already count less");
    // A class number stands for a row of zeros with a 1.
    const auto add = [](const char* name, LossKind kind, const char* doc) {
      losses().add(
          name, [=](ConfigSection&) { return std::make_unique<ElementLoss>(name, kind); }, doc);
    };
    add("bce_with_logits", LossKind::kLogistic,
        "-t log σ(x) - (1 - t) log(1 - σ(x)), mean over all outputs");
    add("mse", LossKind::kSquared, "(x - t)², mean over all outputs");
    add("l1", LossKind::kAbsolute,
        "|x - t|, whose gradient is 0 where x = t, mean over all outputs");
    losses().add(
        "huber",
        [](ConfigSection& config) {
          const double delta =
              config.number("delta", 1.0, Range::positive(),
                            "up to this difference the loss is quadratic, beyond it linear");
          return std::make_unique<ElementLoss>("huber", LossKind::kHuber, delta);
        },
        "(x - t)²/2 up to |x - t| = δ = `delta`, then δ(|x - t| - δ/2), mean over all outputs");
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace starling
