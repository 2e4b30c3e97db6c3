#include "core/operations/convolutions.h"

#include <limits>

#include "core/operations/checker.h"
#include "core/operations/list.h"

namespace starling {

std::vector<double> blur_filter(const Window2d& window) {
  const auto [rows, columns] = window.kernel;
  require(rows >= 1 && columns >= 1 && rows <= kLongestBlur && columns <= kLongestBlur &&
              window.dilation == std::array<std::int64_t, 2>{1, 1},
          "pool2d",
          "a blur of {}×{} pixels with a dilation of {}×{}; at most {} a side without one", rows,
          columns, window.dilation[0], window.dilation[1], kLongestBlur);
  // A row of Pascal's triangle over 2^(size - 1).
  const auto line = [](std::int64_t size) {
    std::vector<double> shares{1.0};
    for (std::int64_t i = 1; i < size; ++i)
      shares.push_back(shares.back() * static_cast<double>(size - i) / static_cast<double>(i));
    for (double& share : shares) share /= static_cast<double>(std::int64_t{1} << (size - 1));
    return shares;
  };
  std::vector<double> filter;
  for (const double down : line(rows)) {
    for (const double across : line(columns)) filter.push_back(down * across);
  }
  return filter;
}

namespace {

/// `x` becomes `y` under the window, both N×H×W×C of one dtype.
void check_window(const Checker& call, const Tensor& x, const Tensor& y, const Window2d& window) {
  call.floating(x, "x"), call.there(y, "y");
  call.has(y, "y", y.elements(), x.dtype());
  const Shape &from = x.shape(), &to = y.shape();
  call.that(from.rank() == 4 && to.rank() == 4, "{} and {} must have four dimensions", from.text(),
            to.text());
  bool valid = window.groups > 0 && to[0] == from[0];
  for (int axis = 0; axis < 2 && valid; ++axis) {
    const auto i = static_cast<std::size_t>(axis);
    const std::int64_t size = from[axis + 1], kernel = window.kernel[i], stride = window.stride[i],
                       padding = window.padding[i], dilation = window.dilation[i];
    // Devices compute places within an image with 32 bits.
    constexpr std::int64_t kMost = std::int64_t{1} << 30;
    valid = kernel > 0 && stride > 0 && dilation > 0 && padding >= 0 && size < kMost &&
            kernel < kMost && stride < kMost && padding < kMost && dilation < kMost &&
            size + 2 * padding + dilation * kernel + stride < kMost &&
            to[axis + 1] == window.output(axis, size) && to[axis + 1] > 0;
  }
  call.that(valid && from[3] % window.groups == 0 && to[3] % window.groups == 0,
            "{} does not become {} under a window of {}×{}, stride {}×{}, padding {}×{}, dilation "
            "{}×{}, {} groups",
            from.text(), to.text(), window.kernel[0], window.kernel[1], window.stride[0],
            window.stride[1], window.padding[0], window.padding[1], window.dilation[0],
            window.dilation[1], window.groups);
}

/// And the weight goes between them, of this dtype.
void check_convolution(const Checker& call, const Tensor& x, const Tensor& y,
                       const Window2d& window, const Tensor& weight, const char* name,
                       DType dtype) {
  check_window(call, x, y, window);
  call.has(weight, name,
           y.shape()[3] * window.kernel[0] * window.kernel[1] * (x.shape()[3] / window.groups),
           dtype);
}

void check_pooling(const Checker& call, const Tensor& x, const Tensor& y, Pooling kind,
                   const Window2d& window) {
  check_window(call, x, y, window);
  call.that(x.shape()[3] == y.shape()[3], "{} channels in, {} out", x.shape()[3], y.shape()[3]);
  call.that(x.shape()[1] * x.shape()[2] <= std::numeric_limits<std::int32_t>::max(),
            "{} has more pixels than can be numbered", x.shape().text());
  if (kind == Pooling::kBlur) (void)blur_filter(window);
}

}  // namespace

void check(const Conv2dForward& args) {
  const Checker call("conv2d_forward");
  call.there(args.x, "x");
  check_convolution(call, args.x, args.y, args.window, args.weight, "weight", args.x.dtype());
  call.may_have(args.bias, "bias", args.y.shape()[3], wide_of(args.x.dtype()));
}

void check(const Conv2dBackwardData& args) {
  const Checker call("conv2d_backward_data");
  call.there(args.dy, "dy");
  check_convolution(call, args.dx, args.dy, args.window, args.weight, "weight", args.dy.dtype());
}

void check(const Conv2dBackwardWeights& args) {
  const Checker call("conv2d_backward_weights");
  call.there(args.x, "x");
  check_convolution(call, args.x, args.dy, args.window, args.dweight, "dweight",
                    wide_of(args.x.dtype()));
  call.may_have(args.dbias, "dbias", args.dy.shape()[3], wide_of(args.x.dtype()));
}

void check(const Pool2dForward& args) {
  const Checker call("pool2d_forward");
  check_pooling(call, args.x, args.y, args.kind, args.window);
  call.may_have(args.index, "index", args.y.elements(), DType::kInt32);
}

void check(const Pool2dBackward& args) {
  const Checker call("pool2d_backward");
  check_pooling(call, args.dx, args.dy, args.kind, args.window);
  if (args.kind == Pooling::kMax) call.has(args.index, "index", args.dy.elements(), DType::kInt32);
}

}  // namespace starling
