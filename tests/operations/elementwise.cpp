#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/operations/map.h"
#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "core/operations/reduce.h"
#include "core/philox.h"
#include "tests/operations/rows.h"

// Element by element, and sums.
namespace starling::tests {

Operation activation(MapFunction function, const std::string& name, Index n) {
  const bool relu = function == MapFunction::kRelu, relu6 = function == MapFunction::kRelu6;
  const MapFunction gradient = relu                             ? MapFunction::kReluGradient
                               : relu6                          ? MapFunction::kRelu6Gradient
                               : function == MapFunction::kGelu ? MapFunction::kGeluGradient
                                                                : MapFunction::kSiluGradient;
  Operation op;
  op.exact = relu || relu6;
  if (n == 1) op.loose = {1};  // one number broadcasts
  op.name = fmt::format("{} of {}", name, n);
  op.inputs = {{n}};
  op.outputs = {{n}};
  // Random numbers lie between -1 and 1: in a row of relu6 they reach beyond its upper bound.
  if (relu6) {
    op.fit = [](std::vector<Numbers>& in) {
      for (double& v : in[0]) v *= 8.0;
    };
  }
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.map({function, in[0], out[0]});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t i = 0; i < in[0].size(); ++i) {
      const double v = in[0][i];
      out[0][i] = relu                             ? std::max(v, 0.0)
                  : relu6                          ? std::min(std::max(v, 0.0), 6.0)
                  : function == MapFunction::kGelu ? v * 0.5 * std::erfc(-v / std::sqrt(2.0))
                                                   : v / (1.0 + std::exp(-v));
    }
  };
  op.backward = [=](Backend& b, const Tensors& in, const Tensors&, const Tensors&, const Tensor& dy,
                    const Tensors& d) {
    b.map({gradient, in[0], dy, d[0]});
  };
  return op;
}

Operation sum_of_two(Index n) {
  Operation op;
  op.exact = true;
  op.name = fmt::format("add of {}", n);
  if (n == 1) op.loose = {2};
  op.inputs = {{n}, {n}};
  op.outputs = {{n}};
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.map({MapFunction::kAdd, in[0], in[1], out[0]});
  };
  op.reference = [](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t i = 0; i < in[0].size(); ++i) out[0][i] = in[0][i] + in[1][i];
  };
  return op;
}

/// The element of a tensor of shape `own` that stands at place i of `places`.
std::size_t place_in(const Shape& own, const Shape& places, std::size_t i) {
  std::size_t result = 0, unit = 1;
  for (int d = 1; d <= places.rank(); ++d) {
    const std::size_t size = at(places[places.rank() - d]), coordinate = i % size;
    i /= size;
    if (d > own.rank()) continue;
    const Index extent = own[own.rank() - d];
    if (extent > 1) result += coordinate * unit;
    unit *= at(extent);
  }
  return result;
}

Operation reduction(Reduction by, const Shape& a, const Shape& b, const Shape& places,
                    const Shape& y) {
  Operation op;
  const bool sum = by == Reduction::kSum;
  op.name = fmt::format("{} of {} by {} over {}",
                        sum                         ? "sum"
                        : by == Reduction::kLargest ? "largest"
                                                    : "least",
                        a.text(), b.text(), y.text());
  op.inputs = {a, b};
  op.outputs = {y};
  op.input_roles = {Role::kActivation, Role::kParameter};
  op.loose = {0, 1, 2};
  op.forward = [=](Backend& backend, const Tensors& in, const Tensors& out, Tensors&) {
    Reduce args({{MapFunction::kMultiply}}, {in[0], in[1]}, out[0]);
    args.by = by;
    if (sum) args.factor = 0.5;
    backend.reduce(args);
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    std::vector<bool> begun(out[0].size());
    for (std::size_t i = 0; i < at(places.elements()); ++i) {
      const double v = in[0][place_in(a, places, i)] * in[1][place_in(b, places, i)];
      const std::size_t to = place_in(y, places, i);
      double& result = out[0][to];
      if (sum) {
        result += 0.5 * v;
      } else if (!begun[to] || std::isnan(v) ||
                 (by == Reduction::kLargest ? v > result : v < result)) {
        result = v;
      }
      begun[to] = true;
    }
  };
  return op;
}

namespace {

/// A function of maps by the standard library's, which arithmetic shared with GPUs is not.
double map_value(MapFunction function, double a, double b) {
  const auto share = [](double larger, double smaller) {
    return larger > smaller ? 1.0 : larger == smaller ? 0.5 : 0.0;
  };
  const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  constexpr double kRoot = 0.79788456080286535588;  // √(2/π)
  switch (function) {
    case MapFunction::kAdd: return a + b;
    case MapFunction::kSubtract: return a - b;
    case MapFunction::kMultiply: return a * b;
    case MapFunction::kDivide: return a / b;
    case MapFunction::kPower: return std::pow(a, b);
    case MapFunction::kMaximum:
    case MapFunction::kClampLow: return std::isnan(a) || a > b ? a : b;
    case MapFunction::kMinimum:
    case MapFunction::kClampHigh: return std::isnan(a) || a < b ? a : b;
    case MapFunction::kEqual: return a == b;
    case MapFunction::kNotEqual: return a != b;
    case MapFunction::kLess: return a < b;
    case MapFunction::kLessEqual: return a <= b;
    case MapFunction::kWhere: return b != 0.0 ? a : 0.0;
    case MapFunction::kWhereNot: return b != 0.0 ? 0.0 : a;
    case MapFunction::kAbs: return std::abs(a);
    case MapFunction::kSign: return a > 0.0 ? 1.0 : a < 0.0 ? -1.0 : a * 0.0;
    case MapFunction::kSquare: return a * a;
    case MapFunction::kExp: return std::exp(a);
    case MapFunction::kLog: return std::log(a);
    case MapFunction::kLog1p: return std::log1p(a);
    case MapFunction::kSqrt: return std::sqrt(a);
    case MapFunction::kRsqrt: return 1.0 / std::sqrt(a);
    case MapFunction::kSin: return std::sin(a);
    case MapFunction::kCos: return std::cos(a);
    case MapFunction::kTanh: return std::tanh(a);
    case MapFunction::kSigmoid: return sigmoid(a);
    case MapFunction::kSoftplus: return a > 20.0 ? a : std::log1p(std::exp(a));
    case MapFunction::kErf: return std::erf(a);
    case MapFunction::kRelu: return a <= 0.0 ? 0.0 : a;
    case MapFunction::kRelu6: return a <= 0.0 ? 0.0 : a >= 6.0 ? 6.0 : a;
    case MapFunction::kGelu: return a * 0.5 * std::erfc(-a / std::sqrt(2.0));
    case MapFunction::kGeluTanh:
      return 0.5 * a * (1.0 + std::tanh(kRoot * (a + 0.044715 * a * a * a)));
    case MapFunction::kSilu: return a * sigmoid(a);
    case MapFunction::kReluGradient: return a > 0.0 ? b : 0.0;
    case MapFunction::kRelu6Gradient: return a > 0.0 && a < 6.0 ? b : 0.0;
    case MapFunction::kGeluGradient:
      return b * (0.5 * std::erfc(-a / std::sqrt(2.0)) +
                  a * 0.39894228040143267794 * std::exp(-0.5 * a * a));
    case MapFunction::kGeluTanhGradient: {
      const double t = std::tanh(kRoot * (a + 0.044715 * a * a * a));
      return b *
             (0.5 * (1.0 + t) + 0.5 * a * (1.0 - t * t) * kRoot * (1.0 + 3.0 * 0.044715 * a * a));
    }
    case MapFunction::kSiluGradient: return b * sigmoid(a) * (1.0 + a * (1.0 - sigmoid(a)));
    case MapFunction::kErfGradient: return b * 1.12837916709551257390 * std::exp(-a * a);
    case MapFunction::kTanhGradient: return b * (1.0 - a * a);
    case MapFunction::kSigmoidGradient: return b * a * (1.0 - a);
    case MapFunction::kSqrtGradient: return b * 0.5 / a;
    case MapFunction::kRsqrtGradient: return -0.5 * b * a * a * a;
    case MapFunction::kPowerSlope: return b == 0.0 ? 0.0 : b * std::pow(a, b - 1.0);
    case MapFunction::kPowerLog: return a == 0.0 && b >= 0.0 ? 0.0 : std::pow(a, b) * std::log(a);
    case MapFunction::kShare: return share(a, b);
    case MapFunction::kNegativeProduct: return -(a * b);
  }
  return a;
}

const char* name_of(MapFunction function) {
#define STARLING_NAME(name, operands, value) #name,
  constexpr const char* kNames[] = {STARLING_MAP_FUNCTIONS(STARLING_NAME)};
#undef STARLING_NAME
  return kNames[static_cast<std::size_t>(function)];
}

}  // namespace

Operation map_function(MapFunction function, Index n) {
  Operation op;
  const bool two = operands_of(function) == 2;
  op.name = fmt::format("map: {} of {}", name_of(function), n);
  op.inputs = {{n}};
  if (two) op.inputs.push_back({n});
  op.outputs = {{n}};
  op.loose = {0, 1, 2};
  // Of numbers that the function has a value for, away from where it has none or jumps; some equal.
  op.fit = [=](std::vector<Numbers>& in) {
    for (std::size_t i = 0; i < in[0].size(); ++i) {
      in[0][i] = std::abs(in[0][i]) * 4.0 + 0.25;
      if (two) in[1][i] = i % 3 == 0 ? in[0][i] : std::abs(in[1][i]) * 2.0 + 0.5;
    }
  };
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    if (two) {
      b.map({function, in[0], in[1], out[0]});
    } else {
      b.map({function, in[0], out[0]});
    }
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t i = 0; i < in[0].size(); ++i)
      out[0][i] = map_value(function, in[0][i], two ? in[1][i] : 0.0);
  };
  return op;
}

Operation map_of_several(const Shape& a, const Shape& b, const Shape& y) {
  Operation op;
  op.name = fmt::format("map of {} and {} to three of {}", a.text(), b.text(), y.text());
  op.inputs = {a, b};
  op.outputs = {y, y, y};
  op.loose = {0, 1};
  op.forward = [](Backend& backend, const Tensors& in, const Tensors& out, Tensors&) {
    Map args({{MapFunction::kMultiply, 0, 1},
              {MapFunction::kTanh, kMapResults},
              {MapFunction::kAdd, kMapResults + 1, kMapNumbers},
              {MapFunction::kSubtract, kMapResults, kMapResults + 1}},
             {in[0], in[1]}, out[0], {2.5});
    args.also[0] = {out[1], kMapResults};
    args.also[1] = {out[2], kMapResults + 2};
    backend.map(args);
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t i = 0; i < out[0].size(); ++i) {
      const double product = in[0][place_in(a, y, i)] * in[1][place_in(b, y, i)];
      out[0][i] = product - std::tanh(product);
      out[1][i] = product;
      out[2][i] = std::tanh(product) + 2.5;
    }
  };
  return op;
}

Operation broadcast_map(const Shape& a, const Shape& b, const Shape& c, const Shape& y) {
  Operation op;
  op.name = fmt::format("map of {}, {} and {} to {}", a.text(), b.text(), c.text(), y.text());
  op.inputs = {a, b, c};
  op.outputs = {y};
  op.input_roles = {Role::kActivation, Role::kParameter};
  op.loose = {1};
  // silu(0.75 · (a·b) + c), in which the third step takes the first step's result twice removed
  op.forward = [](Backend& backend, const Tensors& in, const Tensors& out, Tensors&) {
    backend.map({{{MapFunction::kMultiply, 0, 1},
                  {MapFunction::kMultiply, kMapResults, kMapNumbers},
                  {MapFunction::kAdd, kMapResults + 1, 2},
                  {MapFunction::kSilu, kMapResults + 2}},
                 {in[0], in[1], in[2]},
                 out[0],
                 {0.75}});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t i = 0; i < out[0].size(); ++i) {
      const double v =
          0.75 * in[0][place_in(a, y, i)] * in[1][place_in(b, y, i)] + in[2][place_in(c, y, i)];
      out[0][i] = v / (1.0 + std::exp(-v));
    }
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
  op.name = fmt::format("sum of rows {}x{}", rows, channels);
  op.inputs = {{rows, channels}};
  op.outputs = {{channels}};
  op.output_roles = {Role::kParameter};
  op.loose = {1};  // fp64 and the rows' own type will do
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.reduce({in[0], out[0]});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index i = 0; i < rows * channels; ++i) out[0][at(i % channels)] += in[0][at(i)];
  };
  return op;
}

Operation dropout(Index n, double p) {
  constexpr std::uint64_t kKey = 5, kCounter = (std::uint64_t{3} << 40) + 7;
  Operation op;
  op.exact = true;
  op.name = fmt::format("dropout of {}, {}", n, p);
  op.inputs = {{n}};
  op.outputs = {{n}};
  op.forward = [p](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.dropout({.x = in[0], .y = out[0], .p = p, .key = kKey, .counter = kCounter});
  };
  op.reference = [p](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t i = 0; i < in[0].size(); ++i) {
      const auto draw = static_cast<double>(uniform_float(philox(kKey, i / 4, kCounter).v[i % 4]));
      out[0][i] = draw >= p ? in[0][i] / (1.0 - p) : 0.0;
    }
  };
  op.backward = [p](Backend& b, const Tensors&, const Tensors&, const Tensors&, const Tensor& dy,
                    const Tensors& d) {
    b.dropout({.x = dy, .y = d[0], .p = p, .key = kKey, .counter = kCounter});
  };
  return op;
}

Operation cast(Index n, Role from, Role to) {
  Operation op;
  const auto name = [](Role role) {
    return role == Role::kParameter ? "parameters"
           : role == Role::kIndex   ? "numbers of places"
                                    : "activations";
  };
  op.exact = true;
  op.loose = {0, 1};
  op.name = fmt::format("cast of {} from the type of {} to that of {}", n, name(from), name(to));
  op.inputs = {{n}};
  op.outputs = {{n}};
  op.input_roles = {from};
  op.output_roles = {to};
  if (from == Role::kIndex) op.bounds = {100};
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.cast({.x = in[0], .y = out[0]});
  };
  op.reference = [](const std::vector<Numbers>& in, std::vector<Numbers>& out) { out[0] = in[0]; };
  if (from == Role::kIndex) return op;
  op.backward = [](Backend& b, const Tensors&, const Tensors&, const Tensors&, const Tensor& dy,
                   const Tensors& d) { b.cast({.x = dy, .y = d[0]}); };
  return op;
}

}  // namespace starling::tests
