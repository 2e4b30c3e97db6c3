#include "core/error.h"
#include "layers/functions.h"

namespace starling::functions {

Variable cross_entropy(const Variable& logits, const Tensor& labels, double label_smoothing, double scale, Pass& pass) {
  const Shape& shape = logits.shape();
  require(shape.rank() == 2 && labels.shape() == Shape{shape[0]}, "cross_entropy", "the logits are {}, the labels {}", shape.text(),
          labels.shape().text());
  SoftmaxCrossEntropy args{.logits = logits.value(), .labels = labels, .label_smoothing = label_smoothing};
  args.scale = scale / static_cast<double>(shape[0]);
  args.loss = Tensor(pass.backend, Shape{}, logits.dtype());
  // The gradient comes out of the same pass over the logits, so that neither they nor the softmax need to be kept.
  if (pass.tape && logits.requires_grad()) args.dlogits = Tensor(pass.backend, shape, logits.dtype());
  pass.backend.softmax_cross_entropy(args);
  auto backward = [dlogits = args.dlogits, shape](Gradients& g) {
    // Chain rule with the loss's own gradient, a number on the device: a 1×1 by 1×(N·C) product scales without a wait.
    Tensor result(g.backend(), shape, dlogits.dtype());
    const Shape row{1, shape.elements()};
    g.backend().matmul({.a = g.output().reshaped({1, 1}), .b = dlogits.reshaped(row), .c = result.reshaped(row)});
    g.set(0, std::move(result));
  };
  return pass.record("cross_entropy", std::move(args.loss), {logits}, {}, std::move(backward));
}

}  // namespace starling::functions
