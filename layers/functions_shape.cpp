#include "core/error.h"
#include "core/operations/convolutions.h"
#include "core/operations/pointwise.h"
#include "layers/functions.h"

namespace starling::functions {

Variable pool2d(const Variable& x, Pooling kind, const Window2d& window, Pass& pass) {
  const Shape& in = x.shape();
  require(in.rank() == 4, "pool2d", "the input is {}, not N×H×W×C", in.text());
  const Shape out{in[0], window.output(0, in[1]), window.output(1, in[2]), in[3]};
  Pool2dForward args{
      .kind = kind, .x = x.value(), .y = Tensor(pass.backend, out, x.dtype()), .window = window};
  if (kind == Pooling::kMax && pass.tape && x.requires_grad())
    args.index = Tensor(pass.backend, out, DType::kInt32);
  pass.backend.pool2d_forward(args);
  auto backward = [kind, in, window, index = args.index](Gradients& g) {
    Tensor dx(g.backend(), in, g.output().dtype());
    g.backend().pool2d_backward(
        {.kind = kind, .dy = g.output(), .index = index, .dx = dx, .window = window});
    g.set(0, std::move(dx));
  };
  return pass.record("pool2d", std::move(args.y), {x}, {}, std::move(backward));
}

Variable global_avg_pool(const Variable& x, Pass& pass) {
  const Shape& in = x.shape();
  require(in.rank() == 4, "global_avg_pool", "the input is {}, not N×H×W×C", in.text());
  Tensor y(pass.backend, {in[0], in[3]}, x.dtype());
  pass.backend.global_avg_pool_forward({.x = x.value(), .y = y});
  auto backward = [in](Gradients& g) {
    Tensor dx(g.backend(), in, g.output().dtype());
    g.backend().global_avg_pool_backward({.dy = g.output(), .dx = dx});
    g.set(0, std::move(dx));
  };
  return pass.record("global_avg_pool", std::move(y), {x}, {}, std::move(backward));
}

Variable subsample_pad(const Variable& x, std::int64_t stride, std::int64_t channels, Pass& pass) {
  const Shape& in = x.shape();
  require(in.rank() == 4 && channels >= in[3], "subsample_pad",
          "the input is {}, it cannot get {} channels", in.text(), channels);
  const std::int64_t before = (channels - in[3]) / 2;
  Tensor y(pass.backend,
           {in[0], (in[1] + stride - 1) / stride, (in[2] + stride - 1) / stride, channels},
           x.dtype());
  pass.backend.subsample_pad_forward(
      {.x = x.value(), .y = y, .stride = stride, .pad_before = before});
  auto backward = [in, stride, before](Gradients& g) {
    Tensor dx(g.backend(), in, g.output().dtype());
    g.backend().subsample_pad_backward(
        {.dy = g.output(), .dx = dx, .stride = stride, .pad_before = before});
    g.set(0, std::move(dx));
  };
  return pass.record("subsample_pad", std::move(y), {x}, {}, std::move(backward));
}

Variable reshape(const Variable& x, const Shape& shape, Pass& pass) {
  return pass.record("reshape", x.value().reshaped(shape), {x}, {}, [in = x.shape()](Gradients& g) {
    g.set(0, std::move(g.take_terms().front()).reshaped(in));
  });
}

Variable flatten(const Variable& x, Pass& pass) {
  const Shape& in = x.shape();
  require(in.rank() >= 2, "flatten", "the input is {}, it has no dimensions to flatten", in.text());
  const Shape out{in[0], in.elements() / in[0]};
  // Both orders are the same with one channel or one pixel: no copy.
  const bool reorder = in.rank() == 4 && in[3] > 1 && in[1] * in[2] > 1;
  if (!reorder) return reshape(x, out, pass);
  Tensor y(pass.backend, out, x.dtype());
  pass.backend.flatten_channels_first({.x = x.value(), .y = y});
  return pass.record("flatten", std::move(y), {x}, {}, [in](Gradients& g) {
    Tensor dx(g.backend(), in, g.output().dtype());
    // Backwards, `x` is the flat tensor and `y` the image.
    g.backend().flatten_channels_first({.x = g.output(), .y = dx, .inverse = true});
    g.set(0, std::move(dx));
  });
}

}  // namespace starling::functions
