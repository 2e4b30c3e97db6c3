#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "core/error.h"
#include "core/operations/checker.h"
#include "core/operations/losses.h"
#include "core/operations/map.h"
#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "core/operations/reduce.h"
#include "core/view.h"
#include "layers/functions.h"

namespace starling::functions {

namespace {

/// dlogits times the gradient of the loss, a scalar on the device.
Tensor scaled(Backend& backend, const Tensor& factor, const Tensor& dlogits) {
  Tensor result(backend, dlogits.shape(), dlogits.dtype());
  backend.map({MapFunction::kMultiply, dlogits, factor, result});
  return result;
}

}  // namespace

Tensor in_format(const Tensor& x, DType format, Backend& backend) {
  if (x.dtype() == format) return x;
  Tensor y(backend, x.shape(), format);
  backend.cast({.x = x, .y = y});
  return y;
}

Variable mean_loss(const Variable& x, double scale, Pass& pass) {
  if (!is_floating(x.dtype()) || x.shape().elements() == 0)
    fail(ExitCode::kUsage, "mean_loss", "of {} {}; needed: floating numbers", name_of(x.dtype()),
         x.shape().text());
  if (pass.loss_scale != 1.0 && pass.backend.capturing())
    fail(ExitCode::kUsage, "mean_loss", "a graph would freeze the loss scale");
  const double share = scale / static_cast<double>(x.shape().elements());
  const Tensor y(pass.backend, Shape{}, wide_of(x.dtype()));
  Reduce sum(x.value(), y);
  sum.factor = share;
  pass.backend.reduce(sum);
  auto backward = [in = x.shape(), type = x.dtype(),
                   factor = share * pass.loss_scale](Gradients& g) {
    const Tensor dx(g.backend(), in, type);
    g.backend().map({{{MapFunction::kMultiply, 0, kMapNumbers}}, {g.output()}, dx, {factor}});
    g.set(0, dx);
  };
  return pass.record("mean_loss", y, {x}, {}, std::move(backward));
}

Variable target_loss(const Variable& x, const Tensor& targets, const TargetLossSettings& settings,
                     double scale, Pass& pass) {
  const Shape& shape = x.shape();
  const bool by_number = targets.dtype() == DType::kInt32, softmax = is_softmax(settings.kind);
  if (by_number ? shape.rank() < 2 || targets.shape().with_last(shape.back()) != shape
                : targets.shape() != shape || !is_floating(targets.dtype()) ||
                      (softmax && shape.rank() < 2)) {
    fail(ExitCode::kUsage, "loss",
         "the outputs are {}, the targets {} of {}; needed: as many floating numbers{}",
         shape.text(), targets.shape().text(), name_of(targets.dtype()),
         shape.rank() >= 2 ? ", or an int32 class for each row" : "");
  }
  const DType format = is_low_precision(x.dtype()) ? DType::kFloat32 : x.dtype();
  const std::int64_t columns = shape.rank() < 2 ? 1 : shape.back();
  const Shape rows{columns > 0 ? shape.elements() / columns : 0, columns};
  const std::int64_t terms = softmax ? rows[0] : shape.elements();
  TargetLoss args{.kind = settings.kind,
                  .x = x.value().reshaped(rows),
                  .targets = by_number ? targets : in_format(targets, format, pass.backend),
                  .loss = Tensor(pass.backend, Shape{}, format),
                  .parameter = settings.parameter,
                  .label_smoothing = settings.label_smoothing,
                  .scale = scale / static_cast<double>(terms),
                  .gradient_scale = pass.loss_scale,
                  .class_weights = settings.class_weights};
  if (by_number && softmax) args.ignored = settings.ignore_index;
  Tensor gradient;
  if (pass.tape && x.requires_grad()) {
    gradient = Tensor(pass.backend, shape, x.dtype());
    args.dx = gradient.reshaped(rows);
  }
  pass.backend.target_loss(args);
  args.dx = Tensor();  // so that the receiver of the gradient is its only holder
  auto backward = [gradient = std::move(gradient)](Gradients& g) mutable {
    if (g.output_is_one()) return g.set(0, std::move(gradient));
    g.set(0, scaled(g.backend(), g.output(), gradient));
  };
  return pass.record("loss", std::move(args.loss), {x}, {}, std::move(backward));
}

Variable cross_entropy(const Variable& logits, const Tensor& labels, double label_smoothing,
                       double scale, Pass& pass) {
  return target_loss(logits, labels,
                     {.kind = LossKind::kCrossEntropy,
                      .label_smoothing = label_smoothing,
                      .ignore_index = kIgnoreIndex},
                     scale, pass);
}

namespace {

std::int64_t whole(std::int64_t numbers, std::int64_t of) { return (numbers + of - 1) / of * of; }

/// Length of a padded row of logits; products are slow if rows are not aligned.
std::int64_t line_of(std::int64_t classes) {
  constexpr std::int64_t kAligned = 64, kWide = 1024;
  return classes < kWide ? classes : whole(classes, kAligned);
}
/// Memory for logits. On a GPU that is 21,000 rows of 50,304 classes in bf16: products of fewer
/// rows leave multiprocessors idle.
constexpr std::int64_t kLogitsBytesOnGpu = std::int64_t{2} << 30, kLogitsOnCpu = 1 << 24;

/// Rows per chunk: enough for efficient products and few passes over the weight's gradient, in
/// chunks of equal size and whole blocks of a product.
std::int64_t rows_at_once(std::int64_t n, std::int64_t classes, DType format, DeviceType device) {
  constexpr std::int64_t kBlock = 64;
  const std::int64_t numbers = device == DeviceType::kCuda
                                   ? kLogitsBytesOnGpu / static_cast<std::int64_t>(size_of(format))
                                   : kLogitsOnCpu;
  const std::int64_t most = std::max<std::int64_t>(1, numbers / line_of(classes));
  const std::int64_t parts = std::max<std::int64_t>(1, (n + most - 1) / most);
  return std::clamp<std::int64_t>(whole((n + parts - 1) / parts, kBlock), 1, most);
}

}  // namespace

void logits_by_rows(Backend& backend, const Tensor& x, const Tensor& weight, std::int64_t rows,
                    const std::function<void(std::int64_t first, const View& logits)>& use,
                    std::optional<double> padding) {
  const std::int64_t n = x.shape()[0], inputs = x.shape()[1], classes = weight.shape()[0];
  const std::int64_t line = line_of(classes);
  if (rows <= 0) rows = rows_at_once(n, classes, x.dtype(), backend.device());
  rows = std::clamp<std::int64_t>(rows, 1, std::max<std::int64_t>(1, n));
  const Tensor logits(backend, {rows, line}, x.dtype());
  if (padding && line > classes) backend.fill(logits, *padding);
  for (std::int64_t first = 0; first < n; first += rows) {
    const std::int64_t count = std::min(rows, n - first);
    const View some = View(logits.slice(0, {count, line})).slice(1, 0, classes);
    backend.matmul({.a = x.slice(first * inputs, {count, inputs}),
                    .b = transposed(weight),
                    .bias = {},
                    .c = some});
    use(first, some);
  }
}

namespace {

/// The loss and the requested gradients, computed by chunks of rows.
struct LossOfRows {
  Tensor loss, dx;  ///< dx: empty if not needed
};
/// `dweight`: receives the gradient of the weight; empty if not needed.
LossOfRows loss_of_rows(Backend& backend, const Tensor& x, const Tensor& weight,
                        const Tensor& targets, std::int64_t rows, TargetLoss args, bool wants_x,
                        const Tensor& dweight) {
  const std::int64_t n = x.shape()[0], inputs = x.shape()[1], chunks = (n + rows - 1) / rows;
  const DType wide = wide_of(x.dtype());
  const bool wants_weight = static_cast<bool>(dweight);
  LossOfRows result{.loss = Tensor(backend, Shape{}, wide)};
  if (wants_x) result.dx = Tensor(backend, x.shape(), x.dtype());
  if (wants_weight && n == 0) backend.fill(dweight, 0.0);
  const Tensor losses = chunks == 1 ? result.loss : Tensor(backend, Shape{chunks}, wide);
  args.batch_targets = targets;
  args.classes = weight.shape()[0];
  logits_by_rows(backend, x, weight, rows, [&](std::int64_t first, const View& logits) {
    const std::int64_t count = logits.shape()[0];
    args.x = logits.tensor();
    args.loss = losses.slice(first / rows, Shape{});
    args.targets = targets.slice(first, {count});
    if (wants_x || wants_weight) args.dx = args.x;
    backend.target_loss(args);
    const View& gradient = logits;  // written over the logits
    if (wants_x)
      backend.matmul({.a = gradient,
                      .b = weight,
                      .bias = {},
                      .c = result.dx.slice(first * inputs, {count, inputs})});
    if (wants_weight)
      backend.matmul({.a = transposed(gradient),
                      .b = x.slice(first * inputs, {count, inputs}),
                      .bias = {},
                      .c = dweight,
                      .accumulate = first > 0});
  });
  if (chunks != 1) backend.reduce({losses, result.loss});
  return result;
}

}  // namespace

Variable linear_cross_entropy(const Variable& x, Parameter& weight, const Tensor& targets,
                              double scale, Pass& pass, std::int64_t rows) {
  const Shape& in = x.shape();
  if (in.rank() < 1 || weight.shape.rank() != 2 || weight.shape[1] != in.back())
    fail(ExitCode::kUsage, "linear_cross_entropy",
         "x is {} and the weight {} is {}; needed: …×F and classes×F", in.text(), weight.name,
         weight.shape.text());
  if (targets.dtype() != DType::kInt32 || targets.shape().with_last(in.back()) != in)
    fail(ExitCode::kUsage, "linear_cross_entropy",
         "x is {} and the targets {} of {}; needed: an int32 class for each row", in.text(),
         targets.shape().text(), name_of(targets.dtype()));
  const std::int64_t n = targets.elements();
  if (rows <= 0) rows = rows_at_once(n, weight.shape[0], x.dtype(), pass.device);
  // Accumulate in the memory of the weight's gradient, if it is available.
  const bool wants_weight = pass.tape && weight.trainable;
  std::shared_ptr<Tensor> dweight;
  if (wants_weight && pass.overwrites && !pass.recomputing)
    dweight = pass.tape->early_gradient(weight);
  const bool early = static_cast<bool>(dweight);
  if (wants_weight && !early)
    dweight = std::make_shared<Tensor>(pass.backend, weight.shape, wide_of(x.dtype()));
  LossOfRows made = loss_of_rows(pass.backend, x.value().reshaped({n, in.back()}), weight.operand(),
                                 targets.reshaped({n}), rows,
                                 {.scale = scale / static_cast<double>(n),
                                  .gradient_scale = pass.loss_scale,
                                  .ignored = kIgnoreIndex},
                                 pass.tape && x.requires_grad(), dweight ? *dweight : Tensor());
  auto backward = [dx = std::move(made.dx), dweight, in, early](Gradients& g) mutable {
    const bool one = g.output_is_one();
    if (g.wants(0)) {
      if (!one) dx = scaled(g.backend(), g.output(), dx);
      g.set(0, std::exchange(dx, {}).reshaped(in));
    }
    if (const Gradients::Target target = g.parameter(0, early ? dweight : nullptr)) {
      using F = MapFunction;
      const Tensor& sum = target.tensor;
      if (target.accumulate)
        g.backend().map(
            {{{F::kMultiply}, {F::kAdd, kMapResults, 2}}, {*dweight, g.output(), sum}, sum});
      else if (!one || dweight->storage() != sum.storage())
        g.backend().map({F::kMultiply, *dweight, g.output(), sum});
    }
  };
  return pass.record("linear_cross_entropy", std::move(made.loss), {x}, {&weight},
                     std::move(backward));
}

}  // namespace starling::functions
