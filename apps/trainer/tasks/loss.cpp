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
        "Softmax cross entropy; targets are class numbers or a probability of each class");
    losses().add(
        "focal", [](ConfigSection& config) { return std::make_unique<FocalLoss>(config); },
        "Softmax cross entropy times (1 - p)^gamma, so that samples that are learnt already count "
        "less");
    // A class number stands for a row of zeros with a 1.
    losses().add(
        "bce_with_logits",
        [](ConfigSection&) {
          return std::make_unique<ElementLoss>("bce_with_logits", LossKind::kLogistic);
        },
        "Binary cross entropy of each output through a sigmoid; class numbers become one-hot rows");
    losses().add(
        "mse",
        [](ConfigSection&) { return std::make_unique<ElementLoss>("mse", LossKind::kSquared); },
        "Mean of the squared differences; class numbers become one-hot rows");
    losses().add(
        "l1",
        [](ConfigSection&) { return std::make_unique<ElementLoss>("l1", LossKind::kAbsolute); },
        "Mean of the differences' sizes; class numbers become one-hot rows");
    losses().add(
        "huber",
        [](ConfigSection& config) {
          const double delta =
              config.number("delta", 1.0, Range::positive(),
                            "up to this difference the loss is quadratic, beyond it linear");
          return std::make_unique<ElementLoss>("huber", LossKind::kHuber, delta);
        },
        "Half the squared difference, or linear where that is large; class numbers become one-hot "
        "rows");
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace starling
