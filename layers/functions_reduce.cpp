#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/operations/checker.h"
#include "core/operations/norms.h"
#include "core/operations/reduce.h"
#include "layers/functions.h"
#include "layers/functions_chain.h"

// Reductions over dimensions, and functions based on them.
namespace starling::functions {

namespace {

using F = MapFunction;
constexpr std::uint8_t kResult = kMapResults, kNumber = kMapNumbers;

/// The shapes of a reduction's result: with size 1 for reduced dimensions, and without them.
struct Reduced {
  Shape kept, shape;
  std::int64_t count = 1;  ///< elements per result
};

Reduced reduced(std::string_view name, const Variable& x, const Dims& dims, bool keepdim) {
  if (!is_floating(x.dtype()))
    fail(ExitCode::kUsage, name, "the input is {}; needed: a floating dtype", name_of(x.dtype()));
  const Shape& in = x.shape();
  Reduced result{in, in, 1};
  std::array<bool, Shape::kMaxRank> goes{};
  for (const int dim : dims) {
    const int d = dimension(name, in, dim);
    if (std::exchange(goes[static_cast<std::size_t>(d)], true))
      fail(ExitCode::kUsage, name, "dimension {} is there twice", dim);
    result.count *= in[d];
    result.kept[d] = 1;
  }
  if (dims.empty()) {
    // As in PyTorch, no dimensions means all.
    for (int d = 0; d < in.rank(); ++d)
      goes[static_cast<std::size_t>(d)] = true, result.kept[d] = 1;
    result.count = in.elements();
  }
  result.shape = result.kept;
  if (!keepdim) {
    std::vector<std::int64_t> sizes;
    for (int d = 0; d < in.rank(); ++d)
      if (!goes[static_cast<std::size_t>(d)]) sizes.push_back(in[d]);
    result.shape = Shape(std::span<const std::int64_t>(sizes));
  }
  return result;
}

// Intermediate results of bf16 and fp16 values are fp32, so that results are rounded once.

Tensor reduce(Backend& backend, Reduction by, std::initializer_list<MapStep> program,
              std::initializer_list<Tensor> operands, const Tensor& y, double factor = 1.0) {
  Reduce args(program, operands, y);
  args.by = by;
  args.factor = factor;
  backend.reduce(args);
  return y;
}
Tensor reduce(Backend& backend, Reduction by, std::initializer_list<MapStep> program,
              std::initializer_list<Tensor> operands, const Shape& kept, double factor = 1.0) {
  const Tensor y(backend, kept, wide_of(operands.begin()->dtype()));
  return reduce(backend, by, program, operands, y, factor);
}
/// The result has the dtype of the first operand.
Tensor map(Backend& backend, std::initializer_list<MapStep> program,
           std::initializer_list<Tensor> operands, const Shape& shape,
           std::initializer_list<double> numbers = {}) {
  Tensor y(backend, shape, operands.begin()->dtype());
  backend.map({program, operands, y, numbers});
  return y;
}

/// The result of a reduction in its final shape and dtype.
Tensor result(const Variable& x, const Tensor& y, const Reduced& to) {
  return in_format(y, x.dtype(), y.backend()).reshaped(to.shape);
}

Variable sum_times(std::string_view name, const Variable& x, const Dims& dims, bool keepdim,
                   bool mean, Pass& pass) {
  const Reduced to = reduced(name, x, dims, keepdim);
  const double factor = mean ? 1.0 / static_cast<double>(to.count) : 1.0;
  if (auto fused = sum_of_chain(name, x, to.kept, to.shape, factor, pass)) return *fused;
  const Tensor y = reduce(pass.backend, Reduction::kSum, {}, {x.value()},
                          Tensor(pass.backend, to.kept, x.dtype()), factor);
  auto backward = [in = x.shape(), kept = to.kept, factor](Gradients& g) {
    if (factor == 1.0) return g.set(0, repeated(g.output().reshaped(kept), in, g.backend()));
    g.set(0, map(g.backend(), {{F::kMultiply, 0, kNumber}}, {g.output().reshaped(kept)}, in,
                 {factor}));
  };
  return pass.record(name, y.reshaped(to.shape), {x}, {}, std::move(backward));
}

Variable extreme(std::string_view name, const Variable& x, const Dims& dims, bool keepdim,
                 Reduction by, Pass& pass) {
  const Reduced to = reduced(name, x, dims, keepdim);
  if (x.shape().elements() == 0 && to.kept.elements() > 0)
    fail(ExitCode::kUsage, name, "the input is {}, and no number is largest or least",
         x.shape().text());
  const Tensor y =
      reduce(pass.backend, by, {}, {x.value()}, Tensor(pass.backend, to.kept, x.dtype()));
  auto backward = [x = x.value(), y, kept = to.kept](Gradients& g) {
    const Tensor equal = reduce(g.backend(), Reduction::kSum, {{F::kEqual, 0, 1}}, {x, y}, kept);
    g.set(0, map(g.backend(),
                 {{F::kEqual, 0, 1}, {F::kMultiply, kResult, 2}, {F::kDivide, kResult + 1, 3}},
                 {x, y, g.output().reshaped(kept), equal}, x.shape()));
  };
  return pass.record(name, y.reshaped(to.shape), {x}, {}, std::move(backward));
}

/// log Σ eˣ, with size 1 for reduced dimensions.
Tensor log_sum(Backend& backend, const Tensor& x, const Shape& kept) {
  const Tensor largest = reduce(backend, Reduction::kLargest, {}, {x}, kept);
  // Subtracts the largest element, or 0 if that is infinite, as the difference of two infinities is
  // NaN.
  const Tensor base =
      map(backend, {{F::kAbs, 0}, {F::kEqual, kResult, kNumber}, {F::kWhereNot, 0, kResult + 1}},
          {largest}, kept, {std::numeric_limits<double>::infinity()});
  const Tensor sum =
      reduce(backend, Reduction::kSum, {{F::kSubtract, 0, 1}, {F::kExp, kResult}}, {x, base}, kept);
  return map(backend, {{F::kLog, 0}, {F::kAdd, kResult, 1}}, {sum, base}, kept);
}

/// Softmax along another dimension than the last transposes first.
Variable softmax_along(std::string_view name, const Variable& x, int dim, bool logarithm,
                       Pass& pass) {
  reduced(name, x, {dim}, true);
  const int last = x.shape().rank() - 1, d = dimension(name, x.shape(), dim);
  if (x.shape().elements() == 0) return reshape(x, x.shape(), pass);
  if (d != last)
    return transpose(softmax_along(name, transpose(x, d, last, pass), last, logarithm, pass), d,
                     last, pass);
  const Shape rows{x.shape().elements() / x.shape().back(), x.shape().back()};
  const Tensor y(pass.backend, x.shape(), x.dtype());
  pass.backend.softmax_forward(
      {.x = x.value().reshaped(rows), .y = y.reshaped(rows), .logarithm = logarithm});
  auto backward = [y, rows, logarithm](Gradients& g) {
    const Tensor dy = std::move(g.take_terms().front());
    Tensor dx = own_gradient_memory(dy);
    g.backend().softmax_backward({.y = y.reshaped(rows),
                                  .dy = dy.reshaped(rows),
                                  .dx = dx.reshaped(rows),
                                  .logarithm = logarithm});
    g.set(0, std::move(dx));
  };
  return pass.record(name, y, {x}, {}, std::move(backward));
}

}  // namespace

int dimension(std::string_view name, const Shape& shape, int dim) {
  const int d = dim < 0 ? dim + shape.rank() : dim;
  if (d < 0 || d >= shape.rank())
    fail(ExitCode::kUsage, name, "{} has no dimension {}; there are {} to {}", shape.text(), dim,
         -shape.rank(), shape.rank() - 1);
  return d;
}

Variable sum(const Variable& x, const Dims& dims, bool keepdim, Pass& pass) {
  return sum_times("sum", x, dims, keepdim, false, pass);
}
Variable mean(const Variable& x, const Dims& dims, bool keepdim, Pass& pass) {
  return sum_times("mean", x, dims, keepdim, true, pass);
}
Variable max(const Variable& x, const Dims& dims, bool keepdim, Pass& pass) {
  return extreme("max", x, dims, keepdim, Reduction::kLargest, pass);
}
Variable min(const Variable& x, const Dims& dims, bool keepdim, Pass& pass) {
  return extreme("min", x, dims, keepdim, Reduction::kLeast, pass);
}

Variable variance(const Variable& x, const Dims& dims, double correction, bool keepdim,
                  Pass& pass) {
  const Reduced to = reduced("variance", x, dims, keepdim);
  const double share = 1.0 / std::max(0.0, static_cast<double>(to.count) - correction);
  const Tensor mean = reduce(pass.backend, Reduction::kSum, {}, {x.value()}, to.kept,
                             1.0 / static_cast<double>(to.count));
  const Tensor y =
      reduce(pass.backend, Reduction::kSum, {{F::kSubtract, 0, 1}, {F::kSquare, kResult}},
             {x.value(), mean}, to.kept, share);
  // Changes of the mean do not change the sum of squares around it.
  auto backward = [x = x.value(), mean, kept = to.kept, share](Gradients& g) {
    g.set(0, map(g.backend(),
                 {{F::kSubtract, 0, 1},
                  {F::kMultiply, kResult, 2},
                  {F::kMultiply, kResult + 1, kNumber}},
                 {x, mean, g.output().reshaped(kept)}, x.shape(), {2.0 * share}));
  };
  return pass.record("variance", result(x, y, to), {x}, {}, std::move(backward));
}

Variable logsumexp(const Variable& x, const Dims& dims, bool keepdim, Pass& pass) {
  const Reduced to = reduced("logsumexp", x, dims, keepdim);
  const Tensor y = log_sum(pass.backend, x.value(), to.kept);
  auto backward = [x = x.value(), y, kept = to.kept](Gradients& g) {
    // If all elements are -infinity so is y, which is treated as 0 here.
    const Tensor base = map(g.backend(), {{F::kEqual, 0, kNumber}, {F::kWhereNot, 0, kResult}}, {y},
                            kept, {-std::numeric_limits<double>::infinity()});
    g.set(0, map(g.backend(),
                 {{F::kSubtract, 0, 1}, {F::kExp, kResult}, {F::kMultiply, kResult + 1, 2}},
                 {x, base, g.output().reshaped(kept)}, x.shape()));
  };
  return pass.record("logsumexp", result(x, y, to), {x}, {}, std::move(backward));
}

Variable norm(const Variable& x, const Dims& dims, bool keepdim, Pass& pass) {
  const Reduced to = reduced("norm", x, dims, keepdim);
  const Tensor squares =
      reduce(pass.backend, Reduction::kSum, {{F::kSquare, 0}}, {x.value()}, to.kept);
  const Tensor y = map(pass.backend, {{F::kSqrt, 0}}, {squares}, to.kept);
  auto backward = [x = x.value(), y, kept = to.kept](Gradients& g) {
    // 0 where the norm is 0, as in PyTorch.
    g.set(0, map(g.backend(),
                 {{F::kMultiply, 0, 2}, {F::kDivide, kResult, 1}, {F::kWhere, kResult + 1, 1}},
                 {x, y, g.output().reshaped(kept)}, x.shape()));
  };
  return pass.record("norm", result(x, y, to), {x}, {}, std::move(backward));
}

Variable softmax(const Variable& x, int dim, Pass& pass) {
  return softmax_along("softmax", x, dim, false, pass);
}
Variable log_softmax(const Variable& x, int dim, Pass& pass) {
  return softmax_along("log_softmax", x, dim, true, pass);
}

}  // namespace starling::functions
