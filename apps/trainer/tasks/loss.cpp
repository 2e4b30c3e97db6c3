#include "apps/trainer/tasks/loss.h"

#include "core/error.h"
#include "layers/functions.h"

namespace starling {
namespace {

class CrossEntropy final : public Loss {
 public:
  explicit CrossEntropy(ConfigSection& config)
      : label_smoothing_(config.number("label_smoothing", 0.0, Range::half_open(0.0, 1.0), "share of the target spread over all classes")) {
  }
  Variable value(const Variable& outputs, const Tensor& targets, double scale, Pass& pass) const override {
    if (outputs.shape().rank() != 2 || targets.dtype() != DType::kInt32 || targets.shape() != Shape{outputs.shape()[0]}) {
      fail(ExitCode::kUsage, "loss", "cross_entropy: outputs {} and targets {} of {}; needed: a row of scores and an int32 class each",
           outputs.shape().text(), targets.shape().text(), name_of(targets.dtype()));
    }
    return functions::cross_entropy(outputs, targets, label_smoothing_, scale, pass);
  }

 private:
  double label_smoothing_;
};

class MeanSquaredError final : public Loss {
 public:
  Variable value(const Variable& outputs, const Tensor& targets, double scale, Pass& pass) const override {
    if (targets.shape() != outputs.shape() || !is_floating(targets.dtype())) {
      fail(ExitCode::kUsage, "loss", "mse: outputs {} and targets {} of {}; needed: as many floating numbers", outputs.shape().text(),
           targets.shape().text(), name_of(targets.dtype()));
    }
    return functions::mean_squared_error(outputs, targets, scale, pass);
  }
};

}  // namespace

LossRegistry& losses() {
  static LossRegistry registry("loss");
  return registry;
}

void register_builtin_losses() {
  static const bool once = [] {
    losses().add(
        "cross_entropy", [](ConfigSection& config) { return std::make_unique<CrossEntropy>(config); }, "Softmax cross entropy.");
    losses().add(
        "mse", [](ConfigSection&) { return std::make_unique<MeanSquaredError>(); }, "Mean of the squared differences.");
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace starling
