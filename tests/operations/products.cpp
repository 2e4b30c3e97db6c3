#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/operations/convolutions.h"
#include "core/operations/products.h"
#include "tests/operations/rows.h"

// Convolutions and matrix products.
namespace starling::tests {

Operation convolution(const Image& x, Index filters, const Window2d& s, bool bias) {
  const Image y{x.n, s.output(0, x.h), s.output(1, x.w), filters};
  const Index in_group = x.c / s.groups, out_group = filters / s.groups;
  Operation op;
  op.name = fmt::format("conv2d {} to {} channels, {}{}", x.shape().text(), filters, text(s),
                        bias ? ", bias" : "");
  op.inputs = {x.shape(), {filters, s.kernel[0], s.kernel[1], in_group}};
  if (bias) op.inputs.push_back({filters});
  op.outputs = {y.shape()};
  op.input_roles = {Role::kActivation, Role::kWeight, Role::kParameter};
  // a library may round the product before the bias is added, as PyTorch does
  if (bias) op.carried = 1;
  op.forward = [s, bias](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.conv2d_forward(
        {.x = in[0], .weight = in[1], .bias = bias ? in[2] : Tensor(), .y = out[0], .window = s});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index n = 0; n < x.n; ++n) {
      for (Index o = 0; o < filters; ++o) {
        for (Index p = 0; p < y.h * y.w; ++p)
          out[0][at((n * y.h * y.w + p) * filters + o)] = bias ? in[2][at(o)] : 0.0;
        for_taps(x, s, [&](Index p, Index q, Index i, Index j, Index h, Index w) {
          for (Index c = 0; c < in_group; ++c) {
            out[0][y.offset(n, p, q, o)] +=
                in[0][x.offset(n, h, w, o / out_group * in_group + c)] *
                in[1][at(((o * s.kernel[0] + i) * s.kernel[1] + j) * in_group + c)];
          }
        });
      }
    }
  };
  op.backward = [s, bias](Backend& b, const Tensors& in, const Tensors&, const Tensors&,
                          const Tensor& dy, const Tensors& d) {
    b.conv2d_backward_data({.dy = dy, .weight = in[1], .dx = d[0], .window = s});
    b.conv2d_backward_weights(
        {.x = in[0], .dy = dy, .dweight = d[1], .dbias = bias ? d[2] : Tensor(), .window = s});
  };
  return op;
}

Operation matrix_product(Index m, Index n, Index k, bool ta, bool tb, bool bias, Role result,
                         bool relu) {
  Operation op = batched_product(ta ? Shape{k, m} : Shape{m, k}, tb ? Shape{n, k} : Shape{k, n},
                                 {m, n}, ta, tb, bias, relu);
  op.input_roles[1] = Role::kWeight;
  op.output_roles = {result};
  if (result != Role::kParameter) return op;
  op.name += ", as a gradient of weights";
  op.loose = {2};  // of low precision it may be, too
  return op;
}

Operation weight_gradient(Index m, Index n, Index k) {
  Operation op = matrix_product(m, n, k, true, false, false, Role::kParameter);
  op.name += " and a bias";
  op.outputs.push_back({m});
  op.output_roles.push_back(Role::kParameter);
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.matmul({.a = transposed(in[0]), .b = in[1], .c = out[0], .row_sums = out[1]});
  };
  op.reference = [=, product = op.reference](const std::vector<Numbers>& in,
                                             std::vector<Numbers>& out) {
    product(in, out);
    for (Index i = 0; i < m; ++i)
      for (Index l = 0; l < k; ++l) out[1][at(i)] += in[0][at(l * m + i)];
  };
  return op;
}

namespace {
/// x·Φ(x) by its approximation, and that one's derivative.
double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double gelu_tanh_derivative(double x) {
  const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}
}  // namespace

Operation gelu_product(Index m, Index n, Index k, bool bias) {
  Operation op = matrix_product(m, n, k, false, true, bias);
  op.name += ", gelu";
  op.input_roles = {Role::kActivation, Role::kWeight, Role::kWeight};
  op.outputs = {{m, n}, {m, n}};
  op.carried = 2;  // its argument, and what of that is rounded twice
  op.tolerance = 3e-5;
  op.forward = [bias](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.matmul({.a = in[0],
              .b = transposed(in[1]),
              .bias = bias ? in[2] : Tensor(),
              .c = out[0],
              .before_gelu = out[1]});
  };
  op.reference = [product = op.reference](const std::vector<Numbers>& in,
                                          std::vector<Numbers>& out) {
    product(in, out);
    out[1] = out[0];
    for (double& x : out[0]) x = gelu_tanh(x);
  };
  return op;
}

Operation gelu_gradient_product(Index m, Index n, Index k) {
  Operation op = matrix_product(m, n, k, false, false, false);
  op.name += ", through gelu";
  op.inputs.push_back({m, n});
  op.input_roles = {Role::kActivation, Role::kWeight, Role::kActivation};
  op.carried = 1;
  op.tolerance = 3e-5;
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.matmul({.a = in[0], .b = in[1], .c = out[0], .gelu_input = in[2]});
  };
  op.reference = [product = op.reference](const std::vector<Numbers>& in,
                                          std::vector<Numbers>& out) {
    product(in, out);
    for (std::size_t i = 0; i < out[0].size(); ++i) out[0][i] *= gelu_tanh_derivative(in[2][i]);
  };
  return op;
}

Operation batched_product(const Shape& a, const Shape& b, const Shape& c, bool ta, bool tb,
                          bool bias, bool relu) {
  Operation op;
  op.name =
      fmt::format("matmul {}{} by {}{} to {}{}{}", a.text(), ta ? " transposed" : "", b.text(),
                  tb ? " transposed" : "", c.text(), bias ? ", bias" : "", relu ? ", relu" : "");
  const Index m = c[c.rank() - 2], n = c.back(), k = a[a.rank() - (ta ? 2 : 1)];
  op.inputs = {a, b};
  if (bias) op.inputs.push_back({n});
  if (bias) op.carried = 1;  // rounded before it is added, as PyTorch's autocast does
  if (bias) op.loose = {2};  // of either format
  op.outputs = {c};
  op.input_roles = {Role::kActivation, Role::kActivation, Role::kParameter};
  op.forward = [=](Backend& backend, const Tensors& in, const Tensors& out, Tensors&) {
    backend.matmul({.a = ta ? transposed(in[0]) : View(in[0]),
                    .b = tb ? transposed(in[1]) : View(in[1]),
                    .bias = bias ? in[2] : Tensor(),
                    .c = out[0],
                    .relu = relu});
  };
  const auto batch_of = [](const Shape& shape) {
    return Shape(shape.sizes().first(static_cast<std::size_t>(shape.rank() - 2)));
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t o = 0; o < out[0].size(); ++o) {
      const std::size_t matrix = o / at(m * n);
      const Index i = static_cast<Index>(o / at(n)) % m, j = static_cast<Index>(o) % n;
      const std::size_t from_a = place_in(batch_of(a), batch_of(c), matrix) * at(m * k),
                        from_b = place_in(batch_of(b), batch_of(c), matrix) * at(k * n);
      double sum = bias ? in[2][at(j)] : 0.0;
      for (Index l = 0; l < k; ++l)
        sum += in[0][from_a + at(ta ? l * m + i : i * k + l)] *
               in[1][from_b + at(tb ? j * k + l : l * n + j)];
      out[0][o] = relu ? std::max(sum, 0.0) : sum;
    }
  };
  return op;
}

// What attention computes of one tensor that holds queries, keys and values of all heads.

namespace {
/// Queries, keys or values (0, 1, 2) of N×T×(3·H·D), as N×H×T×D.
View heads(const Tensor& x, Index part, Index count, Index depth) {
  return View(x).slice(2, part * count * depth, count * depth).split(2, depth).transposed(1, 2);
}
}  // namespace

Operation head_scores(Index batch, Index length, Index count, Index depth) {
  Operation op;
  op.name = fmt::format("matmul {}x{}: scores of {} heads of {}", batch, length, count, depth);
  op.inputs = {{batch, length, 3 * count * depth}};
  op.outputs = {{batch, count, length, length}};
  op.input_roles = {Role::kActivation};
  op.forward = [=](Backend& backend, const Tensors& in, const Tensors& out, Tensors&) {
    backend.matmul({.a = heads(in[0], 0, count, depth),
                    .b = transposed(heads(in[0], 1, count, depth)),
                    .c = out[0]});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    const auto number = [&](Index n, Index t, Index part, Index h, Index d) {
      return in[0][at((((n * length + t) * 3 + part) * count + h) * depth + d)];
    };
    for (std::size_t o = 0; o < out[0].size(); ++o) {
      const auto i = static_cast<Index>(o);
      const Index key = i % length, query = i / length % length, h = i / length / length % count,
                  n = i / length / length / count;
      for (Index d = 0; d < depth; ++d)
        out[0][o] += number(n, query, 0, h, d) * number(n, key, 1, h, d);
    }
  };
  return op;
}

Operation head_values(Index batch, Index length, Index count, Index depth) {
  Operation op;
  op.name = fmt::format("matmul {}x{}: values of {} heads of {}", batch, length, count, depth);
  op.inputs = {{batch, count, length, length}, {batch, length, 3 * count * depth}};
  op.outputs = {{batch, length, count, depth}};
  op.input_roles = {Role::kActivation, Role::kActivation};
  op.forward = [=](Backend& backend, const Tensors& in, const Tensors& out, Tensors&) {
    backend.matmul(
        {.a = in[0], .b = heads(in[1], 2, count, depth), .c = View(out[0]).transposed(1, 2)});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t o = 0; o < out[0].size(); ++o) {
      const auto i = static_cast<Index>(o);
      const Index d = i % depth, h = i / depth % count, t = i / depth / count % length,
                  n = i / depth / count / length;
      for (Index k = 0; k < length; ++k)
        out[0][o] += in[0][at(((n * count + h) * length + t) * length + k)] *
                     in[1][at((((n * length + k) * 3 + 2) * count + h) * depth + d)];
    }
  };
  return op;
}

}  // namespace starling::tests
