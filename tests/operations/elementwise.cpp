#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "core/philox.h"
#include "tests/operations/rows.h"

// Element by element, and sums.
namespace starling::tests {

Operation activation(Activation kind, const std::string& name, Index n) {
  Operation op;
  op.exact = kind == Activation::kNone || kind == Activation::kRelu || kind == Activation::kRelu6;
  op.name = fmt::format("{} of {}", name, n);
  op.inputs = {{n}};
  op.outputs = {{n}};
  // Random numbers lie between -1 and 1: in a row of relu6 they reach beyond its upper bound.
  if (kind == Activation::kRelu6) {
    op.fit = [](std::vector<Numbers>& in) {
      for (double& v : in[0]) v *= 8.0;
    };
  }
  op.forward = [kind](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.activation_forward({.kind = kind, .x = in[0], .y = out[0]});
  };
  op.reference = [kind](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t i = 0; i < in[0].size(); ++i) {
      const double v = in[0][i];
      out[0][i] = kind == Activation::kNone    ? v
                  : kind == Activation::kRelu  ? std::max(v, 0.0)
                  : kind == Activation::kRelu6 ? std::min(std::max(v, 0.0), 6.0)
                  : kind == Activation::kGelu  ? v * 0.5 * std::erfc(-v / std::sqrt(2.0))
                                               : v / (1.0 + std::exp(-v));
    }
  };
  op.backward = [kind](Backend& b, const Tensors& in, const Tensors&, const Tensors&,
                       const Tensor& dy, const Tensors& d) {
    b.activation_backward({.kind = kind, .x = in[0], .dy = dy, .dx = d[0]});
  };
  return op;
}

Operation sum_of_two(Index n) {
  Operation op;
  op.exact = true;
  op.name = fmt::format("add of {}", n);
  op.inputs = {{n}, {n}};
  op.outputs = {{n}};
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.add({.a = in[0], .b = in[1], .y = out[0]});
  };
  op.reference = [](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t i = 0; i < in[0].size(); ++i) out[0][i] = in[0][i] + in[1][i];
  };
  return op;
}

Operation sum_with_weights(Index n, int terms) {
  constexpr std::array<double, 8> kWeights{0.5, 0.25, -2.0, 1.0, -0.75, 0.3, 1.5, -0.1};
  Operation op;
  op.name = fmt::format("weighted_sum of {}", n);
  if (terms == 0) op.loose = {0};
  if (terms != 3) op.name += fmt::format(", {} terms", terms);
  op.inputs.assign(static_cast<std::size_t>(terms), Shape{n});
  op.outputs = {{n}};
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    WeightedSum args{.weight = kWeights, .terms = terms, .out = out[0]};
    std::copy(in.begin(), in.end(), args.in.begin());
    b.weighted_sum(args);
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t k = 0; k < in.size(); ++k) {
      for (std::size_t i = 0; i < in[k].size(); ++i) out[0][i] += kWeights[k] * in[k][i];
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
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.sum_rows({.x = in[0], .y = out[0]});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index i = 0; i < rows * channels; ++i) out[0][at(i % channels)] += in[0][at(i)];
  };
  return op;
}

Operation dropout(Index n, double p, Index run) {
  constexpr std::uint64_t kKey = 5, kCounter = (std::uint64_t{3} << 40) + 7;
  Operation op;
  op.exact = true;
  op.name = fmt::format("dropout of {}, {}", n, p);
  if (run > 1) op.name += fmt::format(", in runs of {}", run);
  op.inputs = {{n}};
  op.outputs = {{n}};
  op.forward = [p, run](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.dropout({.x = in[0], .y = out[0], .p = p, .key = kKey, .counter = kCounter, .run = run});
  };
  op.reference = [p, run](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t i = 0; i < in[0].size(); ++i) {
      const std::size_t number = i / static_cast<std::size_t>(run);
      const auto draw =
          static_cast<double>(uniform_float(philox(kKey, number / 4, kCounter).v[number % 4]));
      out[0][i] = draw >= p ? in[0][i] / (1.0 - p) : 0.0;
    }
  };
  op.backward = [p, run](Backend& b, const Tensors&, const Tensors&, const Tensors&,
                         const Tensor& dy, const Tensors& d) {
    b.dropout({.x = dy, .y = d[0], .p = p, .key = kKey, .counter = kCounter, .run = run});
  };
  return op;
}

Operation cast(Index n, Role from, Role to) {
  Operation op;
  const auto name = [](Role role) {
    return role == Role::kParameter ? "parameters" : "activations";
  };
  op.exact = true;
  op.loose = {0, 1};
  op.name = fmt::format("cast of {} from the type of {} to that of {}", n, name(from), name(to));
  op.inputs = {{n}};
  op.outputs = {{n}};
  op.input_roles = {from};
  op.output_roles = {to};
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.cast({.x = in[0], .y = out[0]});
  };
  op.reference = [](const std::vector<Numbers>& in, std::vector<Numbers>& out) { out[0] = in[0]; };
  op.backward = [](Backend& b, const Tensors&, const Tensors&, const Tensors&, const Tensor& dy,
                   const Tensors& d) { b.cast({.x = dy, .y = d[0]}); };
  return op;
}

}  // namespace starling::tests
