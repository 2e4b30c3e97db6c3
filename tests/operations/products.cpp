#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tests/operations/rows.h"

// Convolutions and matrix products.
namespace starling::tests {

Operation convolution(const Image& x, Index filters, const Window2d& s, bool bias) {
  const Image y{x.n, s.output(0, x.h), s.output(1, x.w), filters};
  const Index in_group = x.c / s.groups, out_group = filters / s.groups;
  Operation op;
  op.name = fmt::format("conv2d {} to {} channels, {}{}", x.shape().text(), filters, text(s), bias ? ", bias" : "");
  op.inputs = {x.shape(), {filters, s.kernel[0], s.kernel[1], in_group}};
  if (bias) op.inputs.push_back({filters});
  op.outputs = {y.shape()};
  op.input_roles = {Role::kActivation, Role::kWeight, Role::kParameter};
  op.forward = [s, bias](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.conv2d_forward({.x = in[0], .weight = in[1], .bias = bias ? in[2] : Tensor(), .y = out[0], .window = s});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index n = 0; n < x.n; ++n) {
      for (Index o = 0; o < filters; ++o) {
        for (Index p = 0; p < y.h * y.w; ++p) out[0][at((n * y.h * y.w + p) * filters + o)] = bias ? in[2][at(o)] : 0.0;
        for_taps(x, s, [&](Index p, Index q, Index i, Index j, Index h, Index w) {
          for (Index c = 0; c < in_group; ++c) {
            out[0][y.offset(n, p, q, o)] += in[0][x.offset(n, h, w, o / out_group * in_group + c)] *
                                            in[1][at(((o * s.kernel[0] + i) * s.kernel[1] + j) * in_group + c)];
          }
        });
      }
    }
  };
  op.backward = [s, bias](Backend& b, const Tensors& in, const Tensors&, const Tensors&, const Tensor& dy, const Tensors& d) {
    b.conv2d_backward_data({.dy = dy, .weight = in[1], .dx = d[0], .window = s});
    b.conv2d_backward_weights({.x = in[0], .dy = dy, .dweight = d[1], .dbias = bias ? d[2] : Tensor(), .window = s});
  };
  return op;
}

namespace {

/// y += x * weight, without groups.
void add_convolution(const Numbers& x, const Image& from, const Numbers& weight, const Window2d& s, const Image& to, Numbers& y) {
  for (Index n = 0; n < from.n; ++n) {
    for (Index o = 0; o < to.c; ++o) {
      for_taps(from, s, [&](Index p, Index q, Index i, Index j, Index h, Index w) {
        for (Index c = 0; c < from.c; ++c) {
          y[to.offset(n, p, q, o)] += x[from.offset(n, h, w, c)] * weight[at(((o * s.kernel[0] + i) * s.kernel[1] + j) * from.c + c)];
        }
      });
    }
  }
}

constexpr double kAffineEps = 1e-5;

/// What a training step saves between the passes, one tensor per channel each.
enum Saved : std::size_t { kSum, kSquareSum, kMean, kInvStd, kScale, kShift, kSumDy, kSumDyXhat, kSavedTensors };

}  // namespace

Operation fused_convolution(const Image& x, Index filters, const Window2d& s, Fused fused) {
  const Image y{x.n, s.output(0, x.h), s.output(1, x.w), filters};
  const bool norm = fused != Fused::kSums, sums = fused != Fused::kNorm;
  Operation op;
  op.name = fmt::format("conv2d {} to {} channels, {}{}{}", x.shape().text(), filters, text(s), norm ? ", batch norm and relu on load" : "",
                        sums ? ", sums of y" : "");
  op.inputs = {x.shape(), {filters, s.kernel[0], s.kernel[1], x.c}};
  op.input_roles = {Role::kActivation, Role::kWeight};
  if (norm) {
    op.inputs.insert(op.inputs.end(), {Shape{x.c}, Shape{x.c}});  // gamma and beta
    op.input_roles.insert(op.input_roles.end(), {Role::kParameter, Role::kParameter});
  }
  op.outputs = {y.shape()};
  if (sums) {
    op.outputs.insert(op.outputs.end(), {Shape{filters}, Shape{filters}});
    op.output_roles = {Role::kActivation, Role::kParameter, Role::kParameter};
  }
  op.tolerance = 3e-5;
  op.carried = 4;  // x as loaded, y where sums are of its rounded numbers, and the masked gradient
  const Index values = x.n * x.h * x.w;
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors& saved) {
    Conv2dForward args{.x = in[0], .weight = in[1], .y = out[0], .window = s};
    if (norm) {
      while (saved.size() < kSavedTensors) saved.emplace_back(b, Shape{x.c}, parameter_dtype(in[0].dtype()));
      b.channel_sums({.x = in[0], .sum = saved[kSum], .square_sum = saved[kSquareSum]});
      b.batch_norm_finish({.sum = saved[kSum],
                           .square_sum = saved[kSquareSum],
                           .gamma = in[2],
                           .beta = in[3],
                           .saved_mean = saved[kMean],
                           .saved_inv_std = saved[kInvStd],
                           .scale = saved[kScale],
                           .shift = saved[kShift],
                           .count = values,
                           .eps = kAffineEps});
      args.norm = {saved[kScale], saved[kShift]};
    }
    if (sums) args.sum = out[1];
    if (sums) args.square_sum = out[2];
    b.conv2d_forward(args);
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    Numbers read = in[0];
    const auto n = static_cast<double>(values);
    for (Index c = 0; norm && c < x.c; ++c) {
      double mean = 0, variance = 0;
      for (Index i = 0; i < values; ++i) mean += in[0][at(i * x.c + c)] / n;
      for (Index i = 0; i < values; ++i) variance += std::pow(in[0][at(i * x.c + c)] - mean, 2) / n;
      for (Index i = 0; i < values; ++i) {
        double& v = read[at(i * x.c + c)];
        v = std::max((v - mean) / std::sqrt(variance + kAffineEps) * in[2][at(c)] + in[3][at(c)], 0.0);
      }
    }
    add_convolution(read, x, in[1], s, y, out[0]);
    for (std::size_t i = 0; sums && i < out[0].size(); ++i) {
      out[1][i % at(filters)] += out[0][i];
      out[2][i % at(filters)] += out[0][i] * out[0][i];
    }
  };
  op.backward = [=](Backend& b, const Tensors& in, const Tensors&, const Tensors& saved, const Tensor& dy, const Tensors& d) {
    Conv2dBackwardData data{.dy = dy, .weight = in[1], .dx = d[0], .window = s};
    Conv2dBackwardWeights weights{.x = in[0], .dy = dy, .dweight = d[1], .window = s};
    if (norm) {
      data.norm = {in[0], saved[kMean], saved[kInvStd], in[2], in[3], saved[kSumDy], saved[kSumDyXhat]};
      weights.norm = {saved[kScale], saved[kShift]};
    }
    b.conv2d_backward_data(data);
    b.conv2d_backward_weights(weights);
    if (!norm) return;
    b.batch_norm_backward_apply({.x = in[0],
                                 .dy = d[0],
                                 .gamma = in[2],
                                 .saved_mean = saved[kMean],
                                 .saved_inv_std = saved[kInvStd],
                                 .sum_dy = saved[kSumDy],
                                 .sum_dy_xhat = saved[kSumDyXhat],
                                 .dx = d[0],
                                 .dgamma = d[2],
                                 .dbeta = d[3]});
  };
  return op;
}

Operation matrix_product(Index m, Index n, Index k, bool ta, bool tb, bool bias, Role result, bool relu) {
  Operation op;
  op.name = fmt::format("matmul {}x{}{} by {}x{}{}{}{}{}", m, k, ta ? " transposed" : "", k, n, tb ? " transposed" : "",
                        bias ? ", bias" : "", relu ? ", relu" : "", result == Role::kParameter ? ", as a gradient of weights" : "");
  op.inputs = {ta ? Shape{k, m} : Shape{m, k}, tb ? Shape{n, k} : Shape{k, n}};
  if (bias) op.inputs.push_back({n});
  op.outputs = {{m, n}};
  op.input_roles = {Role::kActivation, Role::kWeight, Role::kParameter};
  op.output_roles = {result};
  if (result == Role::kParameter) op.loose = {2};  // of low precision it may be, too
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.matmul({.a = in[0], .b = in[1], .bias = bias ? in[2] : Tensor(), .c = out[0], .transpose_a = ta, .transpose_b = tb, .relu = relu});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index i = 0; i < m; ++i) {
      for (Index j = 0; j < n; ++j) {
        double sum = bias ? in[2][at(j)] : 0.0;
        for (Index l = 0; l < k; ++l) sum += in[0][at(ta ? l * m + i : i * k + l)] * in[1][at(tb ? j * k + l : l * n + j)];
        out[0][at(i * n + j)] = relu ? std::max(sum, 0.0) : sum;
      }
    }
  };
  return op;
}

}  // namespace starling::tests
