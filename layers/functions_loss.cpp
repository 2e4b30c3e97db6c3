#include "core/error.h"
#include "layers/functions.h"

namespace starling::functions {

namespace {

/// Chain rule with the loss's own gradient, a number on the device: a 1×1 by 1×(N·C) product scales without a wait. Low precision goes
/// through fp32, which is what the loss's gradient is.
Tensor scaled(Backend& backend, const Tensor& factor, const Tensor& dlogits) {
  const Shape row{1, dlogits.elements()};
  const Tensor operand = in_format(dlogits, factor.dtype(), backend), product(backend, dlogits.shape(), factor.dtype());
  backend.matmul({.a = factor.reshaped({1, 1}), .b = operand.reshaped(row), .c = product.reshaped(row)});
  return in_format(product, dlogits.dtype(), backend);
}

}  // namespace

Tensor in_format(const Tensor& x, DType format, Backend& backend) {
  if (x.dtype() == format) return x;
  Tensor y(backend, x.shape(), format);
  backend.cast({.x = x, .y = y});
  return y;
}

Variable mean_squared_error(const Variable& x, const Tensor& target, double scale, Pass& pass) {
  require(target.shape() == x.shape() && is_floating(target.dtype()), "mse", "the outputs are {}, the targets {} of {}", x.shape().text(),
          target.shape().text(), name_of(target.dtype()));
  // No operation here knows fp16's loss scale, which a graph would freeze at its value of the capture.
  require(!pass.backend.capturing() || x.dtype() != DType::kFloat16, "mse", "its gradient cannot follow fp16's loss scale in a graph");
  Backend& backend = pass.backend;
  const DType format = is_low_precision(x.dtype()) ? DType::kFloat32 : x.dtype();
  const double weight = scale / static_cast<double>(x.shape().elements());
  const Tensor value = in_format(x.value(), format, backend), wanted = in_format(target, format, backend);
  Tensor total(backend, Shape{1}, DType::kFloat64);
  backend.fill(total, 0.0);
  backend.squared_distance({.x = value, .y = wanted, .totals = total});
  backend.weighted_sum({.in = {total}, .weight = {weight}, .terms = 1, .out = total});
  const Tensor loss = in_format(total, format, backend).reshaped(Shape{});
  Tensor gradient;
  if (pass.tape && x.requires_grad()) {
    const double factor = 2.0 * weight * pass.loss_scale;
    Tensor wide(backend, x.shape(), format);
    backend.weighted_sum({.in = {value, wanted}, .weight = {factor, -factor}, .terms = 2, .out = wide});
    gradient = in_format(wide, x.dtype(), backend);
  }
  auto backward = [gradient](Gradients& g) mutable {
    if (g.output_is_one()) return g.set(0, std::move(gradient));
    g.set(0, scaled(g.backend(), g.output(), gradient));
  };
  return pass.record("mse", loss, {x}, {}, std::move(backward));
}

Variable cross_entropy(const Variable& logits, const Tensor& labels, double label_smoothing, double scale, Pass& pass) {
  const Shape& shape = logits.shape();
  require(shape.rank() == 2 && labels.shape() == Shape{shape[0]}, "cross_entropy", "the logits are {}, the labels {}", shape.text(),
          labels.shape().text());
  SoftmaxCrossEntropy args{.logits = logits.value(), .labels = labels, .label_smoothing = label_smoothing};
  args.scale = scale / static_cast<double>(shape[0]);
  args.gradient_scale = pass.loss_scale;
  args.loss = Tensor(pass.backend, Shape{}, is_low_precision(logits.dtype()) ? DType::kFloat32 : logits.dtype());
  // The gradient comes out of the same pass over the logits, so that neither they nor the softmax need to be kept.
  if (pass.tape && logits.requires_grad()) args.dlogits = Tensor(pass.backend, shape, logits.dtype());
  pass.backend.softmax_cross_entropy(args);
  auto backward = [dlogits = args.dlogits](Gradients& g) mutable {
    if (g.output_is_one()) return g.set(0, std::move(dlogits));
    g.set(0, scaled(g.backend(), g.output(), dlogits));
  };
  return pass.record("cross_entropy", std::move(args.loss), {logits}, {}, std::move(backward));
}

}  // namespace starling::functions
