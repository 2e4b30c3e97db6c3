#include <utility>

#include "core/error.h"
#include "core/operations/losses.h"
#include "core/operations/map.h"
#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "layers/functions.h"

namespace starling::functions {

namespace {

/// Chain rule with the loss's own gradient, a number on the device.
Tensor scaled(Backend& backend, const Tensor& factor, const Tensor& dlogits) {
  Tensor result(backend, dlogits.shape(), dlogits.dtype());
  backend.map({MapFunction::kMultiply, dlogits, factor, result});
  return result;
}

}  // namespace

Tensor in_format(const Tensor& x, DType format, Backend& backend) {
  if (x.dtype() == format) return x;
  Tensor y(backend, x.shape(), format);
  backend.cast({.x = x, .y = y});
  return y;
}

Variable target_loss(const Variable& x, const Tensor& targets, const TargetLossSettings& settings,
                     double scale, Pass& pass) {
  const Shape& shape = x.shape();
  const bool by_number = targets.dtype() == DType::kInt32, softmax = is_softmax(settings.kind);
  if (by_number ? shape.rank() != 2 || targets.shape() != Shape{shape[0]}
                : targets.shape() != shape || !is_floating(targets.dtype()) ||
                      (softmax && shape.rank() != 2)) {
    fail(ExitCode::kUsage, "loss",
         "the outputs are {}, the targets {} of {}; needed: as many floating numbers{}",
         shape.text(), targets.shape().text(), name_of(targets.dtype()),
         shape.rank() == 2 ? ", or an int32 class for each row" : "");
  }
  const DType format = is_low_precision(x.dtype()) ? DType::kFloat32 : x.dtype();
  const Shape rows = shape.rank() < 2 ? Shape{shape.elements(), 1} : shape;
  const std::int64_t terms = softmax ? shape[0] : shape.elements();
  TargetLoss args{.kind = settings.kind,
                  .x = x.value().reshaped(rows),
                  .targets = by_number ? targets : in_format(targets, format, pass.backend),
                  .loss = Tensor(pass.backend, Shape{}, format),
                  .parameter = settings.parameter,
                  .label_smoothing = settings.label_smoothing,
                  .scale = scale / static_cast<double>(terms),
                  .gradient_scale = pass.loss_scale,
                  .class_weights = settings.class_weights};
  Tensor gradient;
  if (pass.tape && x.requires_grad()) {
    gradient = Tensor(pass.backend, shape, x.dtype());
    args.dx = gradient.reshaped(rows);
  }
  pass.backend.target_loss(args);
  args.dx = Tensor();  // so that whoever takes the gradient is its only holder
  auto backward = [gradient = std::move(gradient)](Gradients& g) mutable {
    if (g.output_is_one()) return g.set(0, std::move(gradient));
    g.set(0, scaled(g.backend(), g.output(), gradient));
  };
  return pass.record("loss", std::move(args.loss), {x}, {}, std::move(backward));
}

Variable cross_entropy(const Variable& logits, const Tensor& labels, double label_smoothing,
                       double scale, Pass& pass) {
  return target_loss(logits, labels,
                     {.kind = LossKind::kCrossEntropy, .label_smoothing = label_smoothing}, scale,
                     pass);
}

}  // namespace starling::functions
