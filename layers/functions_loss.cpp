#include "core/error.h"
#include "layers/functions.h"

namespace starling::functions {

namespace {

/// Chain rule with the loss's own gradient, a number on the device: a 1×1 by 1×(N·C) product scales without a wait. Low precision goes
/// through fp32, which is what the loss's gradient is.
Tensor scaled(Backend& backend, const Tensor& factor, const Tensor& dlogits) {
  const Shape row{1, dlogits.elements()};
  Tensor operand = dlogits;
  if (dlogits.dtype() != factor.dtype()) {
    operand = Tensor(backend, dlogits.shape(), factor.dtype());
    backend.cast({.x = dlogits, .y = operand});
  }
  Tensor product(backend, dlogits.shape(), factor.dtype());
  backend.matmul({.a = factor.reshaped({1, 1}), .b = operand.reshaped(row), .c = product.reshaped(row)});
  if (dlogits.dtype() == factor.dtype()) return product;
  Tensor result(backend, dlogits.shape(), dlogits.dtype());
  backend.cast({.x = product, .y = result});
  return result;
}

}  // namespace

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
