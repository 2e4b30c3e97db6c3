#include "core/operations/checker.h"

#include <limits>

#include "core/operations/all.h"

// Checks of the families that are small.
namespace starling {

void Checker::has(const Tensor& x, const char* name, std::int64_t elements, DType dtype) const {
  there(x, name);
  that(x.elements() == elements, "{} must have {} elements, not {}", name, elements, x.elements());
  that(x.dtype() == dtype, "{} is {}; needed: {}", name, name_of(x.dtype()), name_of(dtype));
}

Checker::Matrix Checker::matrix(const Tensor& x, const char* name) const {
  floating(x, name);
  that(x.shape().rank() >= 2 && x.shape().back() > 0, "{} must have two or more dimensions, not {}",
       name, x.shape().text());
  return {x.elements() / x.shape().back(), x.shape().back()};
}

// ---------------------------------------------------------------- Along a dimension

namespace {

void check_lines(const Checker& call, const Tensor& x, const Tensor& y, const char* name,
                 DType dtype) {
  call.floating(x, "x"), call.there(y, name);
  call.has(y, name, y.elements(), dtype);
  const Shape &from = x.shape(), &to = y.shape();
  call.that(from.rank() == 3 && to.rank() == 3 && from[0] == to[0] && from[2] == to[2],
            "{} and {} must be outer×n×inner, of which n alone may differ", from.text(), to.text());
}

}  // namespace

void check(const TopK& args) {
  const Checker call("topk");
  call.that(args.values || args.index, "neither values nor index");
  if (args.values) check_lines(call, args.x, args.values, "values", args.x.dtype());
  if (args.index) check_lines(call, args.x, args.index, "index", DType::kInt32);
  if (args.values && args.index)
    call.has(args.values, "values", args.index.elements(), args.x.dtype());
  call.that(args.k() <= args.x.shape()[1], "{} of {} numbers", args.k(), args.x.shape()[1]);
  call.that(args.x.elements() <= std::numeric_limits<std::int32_t>::max(),
            "{} has more numbers than can be counted in 32 bits", args.x.shape().text());
}

void check(const CumulativeSum& args) {
  const Checker call("cumulative_sum");
  check_lines(call, args.x, args.y, "y", args.x.dtype());
  call.has(args.y, "y", args.x.elements(), args.x.dtype());
}

// ---------------------------------------------------------------- By index

namespace {

void check_rows(const Checker& call, const Tensor& table, const Tensor& index,
                const Tensor& values) {
  call.floating(table, "the table"), call.there(values, "what is named"),
      call.there(index, "index");
  const Shape &t = table.shape(), &v = values.shape();
  call.that(t.rank() == 3 && v.rank() == 3 && t[0] == v[0] && t[2] == v[2],
            "{} and {} must be outer×rows×columns, of which rows alone may differ", t.text(),
            v.text());
  call.has(index, "index", index.shape() == v ? v.elements() : v[1], DType::kInt32);
  call.that(values.elements() <= std::numeric_limits<std::int32_t>::max() &&
                table.elements() <= std::numeric_limits<std::int32_t>::max(),
            "{} and {} have more numbers than can be counted in 32 bits", t.text(), v.text());
}

}  // namespace

void check(const Gather& args) {
  const Checker call("gather");
  check_rows(call, args.x, args.index, args.y);
  call.has(args.y, "y", args.y.elements(), args.x.dtype());
}

void check(const ScatterAdd& args) {
  const Checker call("scatter_add");
  check_rows(call, args.y, args.index, args.x);
  call.floating(args.x, "x");
  const DType dtype = args.x.dtype();
  call.that(args.y.dtype() == dtype || args.y.dtype() == wide_of(dtype),
            "x is {}, but y is {}; needed: {}", name_of(dtype), name_of(args.y.dtype()),
            name_of(wide_of(dtype)));
}

// ---------------------------------------------------------------- Losses

void check(const TargetLoss& args) {
  const Checker call("target_loss");
  const auto x = call.matrix(args.x, "x");
  const DType wide = wide_of(args.x.dtype());
  call.there(args.targets, "targets");
  if (args.targets.dtype() == DType::kInt32)
    call.has(args.targets, "targets", x.rows, DType::kInt32);
  else
    call.has(args.targets, "targets", x.elements(), wide);
  call.may_have(args.dx, "dx", x.elements(), args.x.dtype());
  call.may_have(args.loss, "loss", 1, wide);
  call.may_have(args.class_weights, "class_weights", x.columns, DType::kFloat64);
  call.that(!args.class_weights || is_softmax(args.kind),
            "class_weights are for the losses of a softmax");
  call.may_have(args.total, "total", 1, DType::kFloat64);
  call.that(!args.batch_targets || (args.targets.dtype() == DType::kInt32 &&
                                    args.batch_targets.dtype() == DType::kInt32),
            "batch_targets are numbers of classes, as targets then are");
  call.that((!args.ignored && !args.total) ||
                (is_softmax(args.kind) && args.targets.dtype() == DType::kInt32),
            "what counts is for numbers of classes and the losses of a softmax");
  call.that(args.classes >= 0 && args.classes <= x.columns, "a row has fewer numbers than classes");
  call.that(args.classes == 0 || (args.kind == LossKind::kCrossEntropy && !args.class_weights &&
                                  args.targets.dtype() == DType::kInt32),
            "padding is for the cross entropy with numbers of classes");
}

// ---------------------------------------------------------------- Elementwise, and squared norms

void check(const Dropout& args) {
  const Checker call("dropout");
  call.floating(args.x, "x");
  call.has(args.y, "y", args.x.elements(), args.x.dtype());
  call.that(args.p >= 0.0 && args.p <= 1.0, "p is {}, but must lie in [0, 1]", args.p);
}

void check(const Cast& args) {
  const Checker call("cast");
  call.there(args.x, "x"), call.floating(args.y, "y");
  call.that(args.x.dtype() != DType::kInt64, "x is {}; needed: a floating dtype, uint8 or int32",
            name_of(args.x.dtype()));
  call.that(args.x.elements() == args.y.elements(), "x has {} elements, y {}", args.x.elements(),
            args.y.elements());
}

void check(const WeightedSum& args) {
  const Checker call("weighted_sum");
  call.floating(args.out, "out");
  call.that(args.terms >= 0 && args.terms <= 8, "{} terms; at most 8", args.terms);
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.terms); ++i)
    call.has(args.in[i], "an input", args.out.elements(), args.out.dtype());
}

void check(const SquaredNorms& args) {
  const Checker call("squared_norms");
  call.there(args.totals, "totals");
  call.that(args.totals.dtype() == DType::kFloat64 && args.first >= 0 &&
                args.first + static_cast<std::int64_t>(args.x.size()) <= args.totals.elements(),
            "{} totals from {} on, in {} {}", args.x.size(), args.first, args.totals.elements(),
            name_of(args.totals.dtype()));
  for (const Tensor& tensor : args.x) {
    call.there(tensor, "a tensor");
    call.that(tensor.dtype() == args.x[0].dtype() &&
                  (tensor.dtype() == DType::kFloat32 || tensor.dtype() == DType::kFloat64),
              "tensors of {} and {}; needed: all fp32 or all fp64", name_of(args.x[0].dtype()),
              name_of(tensor.dtype()));
  }
}

// ---------------------------------------------------------------- Resizing

void check(const Resample& args) {
  const Checker call("resample");
  call.floating(args.x, "x"), call.there(args.y, "y");
  call.has(args.y, "y", args.y.elements(), args.x.dtype());
  const Shape &x = args.x.shape(), &y = args.y.shape();
  call.that(x.rank() == 4 && y.rank() == 4 && x[0] == y[0] && x[3] == y[3],
            "{} and {} must be N×H×W×C, of which H and W alone may differ", x.text(), y.text());
  // Devices compute places within an image with 32 bits.
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  for (int axis = 0; axis < 2; ++axis) {
    const ResampleAxis along = args.axis(axis);
    call.that(
        along.in > 0 && along.out > 0 && along.in < kMost && along.out < kMost && along.scale > 0.0,
        "{} pixels, which become {} at a scale of {}", along.in, along.out, along.scale);
  }
}

// ---------------------------------------------------------------- Updates

void check(const GradientControl& args) {
  const Checker call("gradient_control");
  call.there(args.totals, "totals");
  call.that(args.totals.dtype() == DType::kFloat64 && args.first >= 0 && args.count >= 0 &&
                args.first + args.count <= args.totals.elements(),
            "totals {} to {} of {} {}", args.first, args.first + args.count, args.totals.elements(),
            name_of(args.totals.dtype()));
  call.has(args.control, "control", 2, DType::kFloat64);
}

// What a rule needs is the rule's matter: check_update() (kernels/optimizer.h).
void check(const Update& args) { Checker("update").there(args.args.x, "x"); }

}  // namespace starling
