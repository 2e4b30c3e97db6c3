#include "core/error.h"
#include "core/operations/convolutions.h"
#include "core/operations/copying.h"
#include "core/operations/resampling.h"
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

namespace {

Variable resampled(std::string_view name, const Variable& x, Resampling kind, std::int64_t height,
                   std::int64_t width, double scale, Pass& pass) {
  const Shape& in = x.shape();
  if (in.rank() != 4 || height < 1 || width < 1)
    fail(ExitCode::kUsage, name, "{} would become images of {}×{}; needed: N×H×W×C, and a pixel",
         in.text(), height, width);
  const Tensor y(pass.backend, {in[0], height, width, in[3]}, x.dtype());
  const std::array<double, 2> scales{scale, scale};
  pass.backend.resample({.kind = kind, .x = x.value(), .y = y, .scale = scales});
  return pass.record(name, y, {x}, {}, [in, kind, scales](Gradients& g) {
    const Tensor dx(g.backend(), in, g.output().dtype());
    g.backend().resample(
        {.kind = kind, .x = g.output(), .y = dx, .scale = scales, .transposed = true});
    g.set(0, dx);
  });
}

}  // namespace

Variable upsample(const Variable& x, double scale_factor, Resampling mode, Pass& pass) {
  const auto size = [&](int d) {
    return d < x.shape().rank()
               ? static_cast<std::int64_t>(static_cast<double>(x.shape()[d]) * scale_factor)
               : 0;
  };
  return resampled("upsample", x, mode, size(1), size(2), scale_factor, pass);
}

Variable adaptive_avg_pool2d(const Variable& x, const std::array<std::int64_t, 2>& size,
                             Pass& pass) {
  return resampled("adaptive_avg_pool2d", x, Resampling::kAverage, size[0], size[1], 1.0, pass);
}

namespace {

using Dimension = StridedCopy::Dimension;

/// Copies a large image to a smaller one with more channels, of which `before` precede the existing
/// ones (option A).
StridedCopy option_a(const Tensor& x, const Tensor& y, std::int64_t stride, std::int64_t before) {
  const Shape &large = x.shape(), &small = y.shape();
  const std::int64_t pixel = large[3], row = large[2] * pixel, image = large[1] * row;
  return {
      .x = x,
      .y = y,
      .dimensions = {Dimension::whole(small[0], image), Dimension::whole(small[1], stride * row),
                     Dimension::whole(small[2], stride * pixel),
                     Dimension{.size = small[3], .begin = before, .count = pixel, .stride = 1}},
      .rank = 4};
}
/// The reverse, where x is the small image.
StridedCopy option_a_back(const Tensor& x, const Tensor& y, std::int64_t stride,
                          std::int64_t before) {
  const Shape &small = x.shape(), &large = y.shape();
  const std::int64_t pixel = small[3], row = small[2] * pixel, image = small[1] * row;
  return {
      .x = x,
      .y = y,
      .dimensions = {Dimension::whole(large[0], image),
                     Dimension{.size = large[1], .count = small[1], .step = stride, .stride = row},
                     Dimension{
                         .size = large[2], .count = small[2], .step = stride, .stride = pixel},
                     Dimension::whole(large[3], 1)},
      .rank = 4,
      .first = before};
}

}  // namespace

Variable subsample_pad(const Variable& x, std::int64_t stride, std::int64_t channels, Pass& pass) {
  const Shape& in = x.shape();
  require(in.rank() == 4 && channels >= in[3], "subsample_pad",
          "the input is {}, it cannot get {} channels", in.text(), channels);
  const std::int64_t before = (channels - in[3]) / 2;
  Tensor y(pass.backend,
           {in[0], (in[1] + stride - 1) / stride, (in[2] + stride - 1) / stride, channels},
           x.dtype());
  pass.backend.strided_copy(option_a(x.value(), y, stride, before));
  auto backward = [in, stride, before](Gradients& g) {
    Tensor dx(g.backend(), in, g.output().dtype());
    g.backend().strided_copy(option_a_back(g.output(), dx, stride, before));
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
  return reshape(reorder ? permute(x, {0, 3, 1, 2}, pass) : x, out, pass);
}

}  // namespace starling::functions
