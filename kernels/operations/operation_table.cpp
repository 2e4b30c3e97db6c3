#include "kernels/operations/operation_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace starling::tests {

namespace {

using Tensors = std::vector<Tensor>;
using Index = std::int64_t;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }
double count(const Shape& shape) { return static_cast<double>(shape.elements()); }

struct Image {
  Index n, h, w, c;
  Shape shape() const { return {n, h, w, c}; }
  std::size_t offset(Index i, Index y, Index x, Index channel) const { return at(((i * h + y) * w + x) * c + channel); }
};

/// Calls f(output y, output x, kernel y, kernel x, input y, input x) for all that lie inside.
template <class F>
void for_taps(const Image& x, const Window2d& s, F f) {
  for (Index p = 0; p < s.output(0, x.h); ++p) {
    for (Index q = 0; q < s.output(1, x.w); ++q) {
      for (Index i = 0; i < s.kernel[0]; ++i) {
        for (Index j = 0; j < s.kernel[1]; ++j) {
          const Index y = p * s.stride[0] - s.padding[0] + i * s.dilation[0], z = q * s.stride[1] - s.padding[1] + j * s.dilation[1];
          if (y >= 0 && y < x.h && z >= 0 && z < x.w) f(p, q, i, j, y, z);
        }
      }
    }
  }
}

std::string text(const Window2d& s) {
  return fmt::format("window {}x{} stride {}x{} padding {}x{} dilation {}x{} groups {}", s.kernel[0], s.kernel[1], s.stride[0], s.stride[1],
                     s.padding[0], s.padding[1], s.dilation[0], s.dilation[1], s.groups);
}

Operation convolution(const Image& x, Index filters, const Window2d& s, bool bias) {
  const Image y{x.n, s.output(0, x.h), s.output(1, x.w), filters};
  const Index in_group = x.c / s.groups, out_group = filters / s.groups;
  Operation op;
  op.name = fmt::format("conv2d {} to {} channels, {}{}", x.shape().text(), filters, text(s), bias ? ", bias" : "");
  op.inputs = {x.shape(), {filters, s.kernel[0], s.kernel[1], in_group}};
  if (bias) op.inputs.push_back({filters});
  op.outputs = {y.shape()};
  op.input_roles = {Role::kActivation, Role::kWeight, Role::kParameter};
  op.flops = 2.0 * count(y.shape()) * static_cast<double>(s.kernel[0] * s.kernel[1] * in_group);
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

Operation matrix_product(Index m, Index n, Index k, bool ta, bool tb, bool bias, Role result = Role::kActivation) {
  Operation op;
  op.name = fmt::format("matmul {}x{}{} by {}x{}{}{}{}", m, k, ta ? " transposed" : "", k, n, tb ? " transposed" : "", bias ? ", bias" : "",
                        result == Role::kParameter ? ", as a gradient of weights" : "");
  op.inputs = {ta ? Shape{k, m} : Shape{m, k}, tb ? Shape{n, k} : Shape{k, n}};
  if (bias) op.inputs.push_back({n});
  op.outputs = {{m, n}};
  op.input_roles = {Role::kActivation, Role::kWeight, Role::kParameter};
  op.output_roles = {result};
  op.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.matmul({.a = in[0], .b = in[1], .bias = bias ? in[2] : Tensor(), .c = out[0], .transpose_a = ta, .transpose_b = tb});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index i = 0; i < m; ++i) {
      for (Index j = 0; j < n; ++j) {
        double sum = bias ? in[2][at(j)] : 0.0;
        for (Index l = 0; l < k; ++l) sum += in[0][at(ta ? l * m + i : i * k + l)] * in[1][at(tb ? j * k + l : l * n + j)];
        out[0][at(i * n + j)] = sum;
      }
    }
  };
  return op;
}

Operation sums_of_rows(Index rows, Index channels) {
  Operation op;
  op.name = fmt::format("sum_rows {}x{}", rows, channels);
  op.inputs = {{rows, channels}};
  op.outputs = {{channels}};
  op.output_roles = {Role::kParameter};
  op.forward_moved = count(op.inputs[0]);
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) { b.sum_rows({.x = in[0], .y = out[0]}); };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index i = 0; i < rows * channels; ++i) out[0][at(i % channels)] += in[0][at(i)];
  };
  return op;
}

Operation activation(Activation kind, const std::string& name, Index n) {
  Operation op;
  op.name = fmt::format("{} of {}", name, n);
  op.inputs = {{n}};
  op.outputs = {{n}};
  op.forward_moved = 2.0 * static_cast<double>(n);
  op.backward_moved = 3.0 * static_cast<double>(n);
  op.forward = [kind](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.activation_forward({.kind = kind, .x = in[0], .y = out[0]});
  };
  op.reference = [kind](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t i = 0; i < in[0].size(); ++i) {
      const double v = in[0][i];
      out[0][i] = kind == Activation::kRelu   ? std::max(v, 0.0)
                  : kind == Activation::kGelu ? v * 0.5 * std::erfc(-v / std::sqrt(2.0))
                                              : v / (1.0 + std::exp(-v));
    }
  };
  op.backward = [kind](Backend& b, const Tensors& in, const Tensors&, const Tensors&, const Tensor& dy, const Tensors& d) {
    b.activation_backward({.kind = kind, .x = in[0], .dy = dy, .dx = d[0]});
  };
  return op;
}

enum class MaskFrom { kOutput, kInput };

Operation batch_norm(Index rows, Index channels, bool relu, bool residual, bool affine, MaskFrom mask = MaskFrom::kOutput) {
  Operation op;
  op.name = fmt::format("batch norm {}x{}{}{}{}{}", rows, channels, affine ? "" : ", plain", residual ? ", residual" : "",
                        relu ? ", relu" : "", mask == MaskFrom::kInput ? ", mask from x" : "");
  op.inputs = {{rows, channels}};
  if (affine) op.inputs.insert(op.inputs.end(), {Shape{channels}, Shape{channels}});
  if (residual) op.inputs.push_back({rows, channels});
  op.outputs = {{rows, channels}, {channels}, {channels}};  // y and the running statistics
  const std::size_t r = affine ? 3 : 1;
  op.input_roles.assign(op.inputs.size(), Role::kActivation);
  if (affine) op.input_roles[1] = op.input_roles[2] = Role::kParameter;
  op.output_roles = {Role::kActivation, Role::kParameter, Role::kParameter};
  // Both passes read their inputs twice: for the sums over rows, and then with these.
  const bool reads_y = relu && mask == MaskFrom::kOutput;
  op.forward_moved = (3.0 + (residual ? 1.0 : 0.0)) * count(op.inputs[0]);
  op.backward_moved = (5.0 + (reads_y ? 2.0 : 0.0) + (residual ? 1.0 : 0.0)) * count(op.inputs[0]);
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors& saved) {
    if (saved.empty()) {
      const DType statistics = parameter_dtype(in[0].dtype());
      saved = {Tensor(b, {channels}, statistics), Tensor(b, {channels}, statistics)};
      b.fill(out[1], 0.5);
      b.fill(out[2], 2.0);
    }
    BatchNormForward args{
        .x = in[0], .y = out[0], .running_mean = out[1], .running_var = out[2], .saved_mean = saved[0], .saved_inv_std = saved[1]};
    if (affine) args.gamma = in[1];
    if (affine) args.beta = in[2];
    if (residual) args.residual = in[r];
    args.relu = relu;
    b.batch_norm_forward(args);
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index c = 0; c < channels; ++c) {
      double mean = 0, variance = 0;
      for (Index i = 0; i < rows; ++i) mean += in[0][at(i * channels + c)] / static_cast<double>(rows);
      for (Index i = 0; i < rows; ++i) variance += std::pow(in[0][at(i * channels + c)] - mean, 2) / static_cast<double>(rows);
      for (Index i = 0; i < rows; ++i) {
        double value = (in[0][at(i * channels + c)] - mean) / std::sqrt(variance + 1e-5);
        if (affine) value = value * in[1][at(c)] + in[2][at(c)];
        if (residual) value += in[r][at(i * channels + c)];
        out[0][at(i * channels + c)] = relu ? std::max(value, 0.0) : value;
      }
      const double n = static_cast<double>(rows);
      out[1][at(c)] = 0.9 * 0.5 + 0.1 * mean;
      out[2][at(c)] = 0.9 * 2.0 + 0.1 * (rows > 1 ? variance * n / (n - 1) : variance);
    }
  };
  op.backward = [=](Backend& b, const Tensors& in, const Tensors& out, const Tensors& saved, const Tensor& dy, const Tensors& d) {
    BatchNormBackward args{.x = in[0], .y = out[0], .dy = dy, .saved_mean = saved[0], .saved_inv_std = saved[1], .dx = d[0], .relu = relu};
    if (affine) args.gamma = in[1];
    if (affine) args.dgamma = d[1];
    if (affine) args.dbeta = d[2];
    if (residual) args.dresidual = d[r];
    if (mask == MaskFrom::kInput) {
      args.beta = in[2];
      args.y = Tensor();
    }
    b.batch_norm_backward(args);
  };
  op.tolerance = 3e-5;
  return op;
}

Operation layer_norm(Index rows, Index channels) {
  Operation op;
  op.name = fmt::format("layer norm {}x{}", rows, channels);
  op.inputs = {{rows, channels}, {channels}, {channels}};
  op.outputs = {{rows, channels}};
  op.forward_moved = 2.0 * count(op.inputs[0]);
  op.backward_moved = 3.0 * count(op.inputs[0]);
  op.input_roles = {Role::kActivation, Role::kParameter, Role::kParameter};
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors& saved) {
    const DType statistics = parameter_dtype(in[0].dtype());
    if (saved.empty()) saved = {Tensor(b, {rows}, statistics), Tensor(b, {rows}, statistics)};
    b.layer_norm_forward(
        {.x = in[0], .gamma = in[1], .beta = in[2], .y = out[0], .saved_mean = saved[0], .saved_inv_std = saved[1], .eps = 1e-3});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index i = 0; i < rows; ++i) {
      double mean = 0, variance = 0;
      for (Index c = 0; c < channels; ++c) mean += in[0][at(i * channels + c)] / static_cast<double>(channels);
      for (Index c = 0; c < channels; ++c) variance += std::pow(in[0][at(i * channels + c)] - mean, 2) / static_cast<double>(channels);
      for (Index c = 0; c < channels; ++c) {
        out[0][at(i * channels + c)] = (in[0][at(i * channels + c)] - mean) / std::sqrt(variance + 1e-3) * in[1][at(c)] + in[2][at(c)];
      }
    }
  };
  op.backward = [](Backend& b, const Tensors& in, const Tensors&, const Tensors& saved, const Tensor& dy, const Tensors& d) {
    b.layer_norm_backward({.x = in[0],
                           .dy = dy,
                           .gamma = in[1],
                           .saved_mean = saved[0],
                           .saved_inv_std = saved[1],
                           .dx = d[0],
                           .dgamma = d[1],
                           .dbeta = d[2]});
  };
  op.tolerance = 3e-5;
  return op;
}

Operation pooling(Pooling kind, const Image& x, const Window2d& s) {
  const Image y{x.n, s.output(0, x.h), s.output(1, x.w), x.c};
  const bool max = kind == Pooling::kMax;
  Operation op;
  op.name = fmt::format("{} pooling of {}, {}", max ? "max" : "average", x.shape().text(), text(s));
  op.inputs = {x.shape()};
  op.outputs = {y.shape()};
  op.forward_moved = op.backward_moved = count(x.shape()) + count(y.shape());
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors& saved) {
    if (max && saved.empty()) saved = {Tensor(b, y.shape(), DType::kInt32)};
    b.pool2d_forward({.kind = kind, .x = in[0], .y = out[0], .index = max ? saved[0] : Tensor(), .window = s});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    std::fill(out[0].begin(), out[0].end(), max ? -std::numeric_limits<double>::infinity() : 0.0);
    for (Index n = 0; n < x.n; ++n) {
      for_taps(x, s, [&](Index p, Index q, Index, Index, Index h, Index w) {
        for (Index c = 0; c < x.c; ++c) {
          double& to = out[0][y.offset(n, p, q, c)];
          const double value = in[0][x.offset(n, h, w, c)];
          to = max ? std::max(to, value) : to + value / static_cast<double>(s.kernel[0] * s.kernel[1]);
        }
      });
    }
  };
  op.backward = [=](Backend& b, const Tensors&, const Tensors&, const Tensors& saved, const Tensor& dy, const Tensors& d) {
    b.pool2d_backward({.kind = kind, .dy = dy, .index = max ? saved[0] : Tensor(), .dx = d[0], .window = s});
  };
  return op;
}

Operation global_pooling(const Image& x) {
  Operation op;
  op.name = fmt::format("global average pooling of {}", x.shape().text());
  op.inputs = {x.shape()};
  op.outputs = {{x.n, x.c}};
  op.forward_moved = op.backward_moved = count(x.shape());
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) { b.global_avg_pool_forward({.x = in[0], .y = out[0]}); };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index n = 0; n < x.n; ++n) {
      for (Index p = 0; p < x.h * x.w; ++p) {
        for (Index c = 0; c < x.c; ++c) {
          out[0][at(n * x.c + c)] += in[0][at((n * x.h * x.w + p) * x.c + c)] / static_cast<double>(x.h * x.w);
        }
      }
    }
  };
  op.backward = [](Backend& b, const Tensors&, const Tensors&, const Tensors&, const Tensor& dy, const Tensors& d) {
    b.global_avg_pool_backward({.dy = dy, .dx = d[0]});
  };
  return op;
}

Operation sum_of_two(Index n) {
  Operation op;
  op.name = fmt::format("add of {}", n);
  op.inputs = {{n}, {n}};
  op.outputs = {{n}};
  op.forward_moved = 3.0 * static_cast<double>(n);
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) { b.add({.a = in[0], .b = in[1], .y = out[0]}); };
  op.reference = [](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t i = 0; i < in[0].size(); ++i) out[0][i] = in[0][i] + in[1][i];
  };
  return op;
}

Operation subsample_pad(const Image& x, Index stride, Index channels, Index before) {
  const Image y{x.n, (x.h + stride - 1) / stride, (x.w + stride - 1) / stride, channels};
  Operation op;
  op.name = fmt::format("subsample_pad of {} by {} to {} channels from {}", x.shape().text(), stride, channels, before);
  op.inputs = {x.shape()};
  op.outputs = {y.shape()};
  const double taken = count(y.shape()) * static_cast<double>(x.c) / static_cast<double>(channels);
  op.forward_moved = taken + count(y.shape());
  op.backward_moved = taken + count(x.shape());
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.subsample_pad_forward({.x = in[0], .y = out[0], .stride = stride, .pad_before = before});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index n = 0; n < y.n; ++n) {
      for (Index h = 0; h < y.h; ++h) {
        for (Index w = 0; w < y.w; ++w) {
          for (Index c = 0; c < x.c; ++c) out[0][y.offset(n, h, w, before + c)] = in[0][x.offset(n, h * stride, w * stride, c)];
        }
      }
    }
  };
  op.backward = [=](Backend& b, const Tensors&, const Tensors&, const Tensors&, const Tensor& dy, const Tensors& d) {
    b.subsample_pad_backward({.dy = dy, .dx = d[0], .stride = stride, .pad_before = before});
  };
  return op;
}

Operation flatten(const Image& x) {
  Operation op;
  op.name = fmt::format("flatten of {}", x.shape().text());
  op.inputs = {x.shape()};
  op.outputs = {{x.n, x.c * x.h * x.w}};
  op.forward_moved = op.backward_moved = 2.0 * count(x.shape());
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) { b.flatten_channels_first({.x = in[0], .y = out[0]}); };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index n = 0; n < x.n; ++n) {
      for (Index c = 0; c < x.c; ++c) {
        for (Index p = 0; p < x.h * x.w; ++p) out[0][at((n * x.c + c) * x.h * x.w + p)] = in[0][at((n * x.h * x.w + p) * x.c + c)];
      }
    }
  };
  op.backward = [](Backend& b, const Tensors&, const Tensors&, const Tensors&, const Tensor& dy, const Tensors& d) {
    b.flatten_channels_first({.x = dy, .y = d[0], .inverse = true});
  };
  return op;
}

Operation cross_entropy(Index rows, Index classes, double smoothing) {
  std::vector<std::int32_t> labels(at(rows));
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::int32_t>((static_cast<Index>(i) * 7 + 3) % classes);
  Operation op;
  op.name = fmt::format("cross entropy {}x{}, smoothing {}", rows, classes, smoothing);
  op.inputs = {{rows, classes}};
  op.outputs = {{}};
  op.forward_moved = count(op.inputs[0]);
  op.backward_moved = 2.0 * count(op.inputs[0]);
  op.output_roles = {Role::kParameter};
  const double scale = 1.0 / static_cast<double>(rows);
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors& saved) {
    if (saved.empty()) {
      saved = {Tensor(b, {rows}, DType::kInt32)};
      b.copy_from_host(labels.data(), saved[0]);
    }
    b.softmax_cross_entropy({.logits = in[0], .labels = saved[0], .loss = out[0], .label_smoothing = smoothing, .scale = scale});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index r = 0; r < rows; ++r) {
      double sum = 0;
      for (Index c = 0; c < classes; ++c) sum += std::exp(in[0][at(r * classes + c)]);
      for (Index c = 0; c < classes; ++c) {
        const double target = (1 - smoothing) * (c == labels[at(r)] ? 1.0 : 0.0) + smoothing / static_cast<double>(classes);
        out[0][0] -= scale * target * std::log(std::exp(in[0][at(r * classes + c)]) / sum);
      }
    }
  };
  op.backward = [=](Backend& b, const Tensors& in, const Tensors&, const Tensors& saved, const Tensor& dy, const Tensors& d) {
    // The seed is a scalar that the loss is multiplied by.
    b.softmax_cross_entropy(
        {.logits = in[0], .labels = saved[0], .dlogits = d[0], .label_smoothing = smoothing, .scale = scale * to_numbers(dy)[0]});
  };
  return op;
}

Operation sum_with_weights(Index n) {
  Operation op;
  op.name = fmt::format("weighted_sum of {}", n);
  op.inputs = {{n}, {n}, {n}};
  op.outputs = {{n}};
  op.forward_moved = 4.0 * static_cast<double>(n);
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    WeightedSum args{.terms = 3, .out = out[0]};
    for (std::size_t i = 0; i < 3; ++i) args.in[i] = in[i];
    args.weight = {0.5, 0.25, -2.0};
    b.weighted_sum(args);
  };
  op.reference = [](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t i = 0; i < in[0].size(); ++i) out[0][i] = 0.5 * in[0][i] + 0.25 * in[1][i] - 2.0 * in[2][i];
  };
  return op;
}

Window2d window(Index k, Index stride, Index padding, Index dilation = 1, Index groups = 1) {
  return {{k, k}, {stride, stride}, {padding, padding}, {dilation, dilation}, groups};
}

}  // namespace

std::vector<Operation> operation_table() {
  std::vector<Operation> table = {
      convolution({2, 7, 6, 3}, 16, window(3, 1, 1), false),
      convolution({2, 8, 8, 1}, 5, window(5, 2, 2), true),
      convolution({2, 8, 8, 16}, 16, window(3, 1, 1), false),
      convolution({2, 5, 9, 16}, 16, window(3, 1, 1), false),
      convolution({3, 1, 13, 9}, 16, window(3, 1, 1), false),
      convolution({1, 4, 32, 32}, 16, window(3, 1, 1), false),
      convolution({1, 3, 11, 16}, 16, window(3, 1, 1), false),
      convolution({3, 8, 8, 16}, 32, window(3, 2, 1), false),
      convolution({2, 9, 7, 33}, 17, window(3, 2, 1), true),
      convolution({2, 6, 6, 64}, 64, window(3, 1, 1), false),
      convolution({2, 6, 6, 32}, 64, window(1, 2, 0), false),
      convolution({2, 5, 4, 96}, 96, window(1, 1, 0), true),
      convolution({2, 5, 4, 96}, 96, window(1, 2, 0), false),
      convolution({2, 9, 9, 8}, 12, window(3, 1, 2, 2), true),
      convolution({2, 6, 6, 32}, 32, window(3, 1, 1, 1, 4), true),
      convolution({2, 6, 6, 12}, 12, window(3, 1, 1, 1, 12), false),
      convolution({1, 6, 9, 4}, 6, Window2d{{3, 2}, {2, 1}, {1, 0}, {1, 2}, 2}, true),
      convolution({2, 16, 16, 3}, 8, window(7, 2, 3), false),
      layer_norm(5, 1),
      layer_norm(9, 33),
      layer_norm(20, 130),
      pooling(Pooling::kMax, {2, 8, 8, 16}, window(3, 2, 1)),
      pooling(Pooling::kMax, {2, 7, 5, 3}, window(2, 2, 0)),
      pooling(Pooling::kMax, {1, 9, 9, 5}, window(3, 1, 2, 2)),
      pooling(Pooling::kAverage, {2, 8, 8, 16}, window(2, 2, 0)),
      pooling(Pooling::kAverage, {2, 7, 5, 33}, window(3, 2, 1)),
      global_pooling({3, 4, 4, 64}),
      global_pooling({2, 7, 1, 5}),
      sum_of_two(1),
      sum_of_two(1003),
      subsample_pad({2, 8, 8, 16}, 2, 32, 8),
      subsample_pad({2, 7, 5, 3}, 2, 6, 1),
      flatten({3, 4, 5, 7}),
      cross_entropy(16, 10, 0.0),
      cross_entropy(17, 300, 0.1),
      cross_entropy(3, 2, 0.2),
      sum_with_weights(5),
      sum_with_weights(3000),
      sums_of_rows(1, 10),
      sums_of_rows(77, 3),
      sums_of_rows(5000, 16),
      sums_of_rows(300, 130),
  };
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      table.push_back(matrix_product(5, 7, 3, ta, tb, false));
      table.push_back(matrix_product(64, 33, 300, ta, tb, true));
      table.push_back(matrix_product(64, 33, 300, ta, tb, false, Role::kParameter));
    }
  }
  for (const Index n : {7, 4100}) {
    table.push_back(activation(Activation::kRelu, "relu", n));
    table.push_back(activation(Activation::kGelu, "gelu", n));
    table.push_back(activation(Activation::kSilu, "silu", n));
  }
  for (const Index channels : {1, 3, 5, 16, 33, 64, 130}) {
    table.push_back(batch_norm(50, channels, false, false, true));
    table.push_back(batch_norm(77, channels, true, false, true));
    table.push_back(batch_norm(77, channels, true, false, true, MaskFrom::kInput));
    table.push_back(batch_norm(600, channels, true, true, true));
  }
  table.push_back(batch_norm(40, 6, false, true, false));
  table.push_back(batch_norm(2, 4, false, false, true));
  return table;
}

std::vector<Operation> timing_table(std::int64_t batch) {
  const Index pixels = batch * 32 * 32, n = pixels * 16;
  std::vector<Operation> table = {
      convolution({batch, 32, 32, 16}, 16, window(3, 1, 1), false),
      convolution({batch, 32, 32, 16}, 32, window(3, 2, 1), false),
      convolution({batch, 16, 16, 32}, 32, window(3, 1, 1), false),
      convolution({batch, 8, 8, 64}, 64, window(3, 1, 1), false),
      convolution({batch, 8, 8, 64}, 256, window(1, 1, 0), false),
      matrix_product(batch, 512, 3072, false, true, true),
      matrix_product(512, 3072, batch, true, false, false, Role::kParameter),
      matrix_product(8 * batch, 1024, 1024, false, true, false),
  };
  for (const Index shrunk : {1, 2, 4}) {
    const Index rows = pixels / (shrunk * shrunk), channels = 16 * shrunk;
    table.push_back(batch_norm(rows, channels, false, false, true));
    table.push_back(batch_norm(rows, channels, true, false, true, MaskFrom::kInput));
    table.push_back(batch_norm(rows, channels, true, true, true));
  }
  for (Operation& op : std::vector<Operation>{
           layer_norm(64 * batch, 256),
           pooling(Pooling::kMax, {batch, 32, 32, 16}, window(3, 2, 1)),
           pooling(Pooling::kAverage, {batch, 32, 32, 16}, window(2, 2, 0)),
           global_pooling({batch, 32, 32, 16}),
           subsample_pad({batch, 32, 32, 16}, 2, 32, 8),
           flatten({batch, 32, 32, 16}),
           cross_entropy(16 * batch, 1000, 0.1),
           activation(Activation::kRelu, "relu", n),
           activation(Activation::kGelu, "gelu", n),
           activation(Activation::kSilu, "silu", n),
           sum_of_two(n),
           sum_with_weights(n),
           sums_of_rows(32 * batch, 512),
       }) {
    table.push_back(std::move(op));
  }
  return table;
}

}  // namespace starling::tests
