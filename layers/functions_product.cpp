#include "core/error.h"
#include "core/operations/checker.h"
#include "core/operations/convolutions.h"
#include "core/operations/map.h"
#include "core/operations/products.h"
#include "core/operations/reduce.h"
#include "layers/functions.h"
#include "layers/functions_chain.h"

namespace starling::functions {

namespace {

/// The gradient of a bias: the sum of dy over all but the last dimension.
void bias_gradient(Backend& backend, const Tensor& dy, const Gradients::Target& target) {
  if (!target) return;
  backend.reduce({dy, target.tensor, target.accumulate});
}

/// x as a matrix whose rows are all dimensions but the last.
Tensor matrix_of(const Tensor& x) {
  const std::int64_t columns = x.shape().back();
  return x.reshaped({x.elements() / columns, columns});
}

}  // namespace

Variable conv2d(const Variable& x, Parameter& weight, Parameter* bias, const Window2d& window,
                Pass& pass) {
  const Shape& in = x.shape();
  require(in.rank() == 4, "conv2d", "the input is {}, not N×H×W×C", in.text());
  const Shape out{in[0], window.output(0, in[1]), window.output(1, in[2]), weight.shape[0]};
  Conv2dForward args{.x = x.value(),
                     .weight = weight.operand(),
                     .bias = bias ? bias->value : Tensor(),
                     .y = Tensor(pass.backend, out, x.dtype()),
                     .window = window};
  pass.backend.conv2d_forward(args);

  auto backward = [x_saved = weight.trainable ? args.x : Tensor(),
                   w = x.requires_grad() ? args.weight : Tensor(), in, window](Gradients& g) {
    const Tensor& dy = g.output();
    const Gradients::Target dw = g.parameter(0);
    Gradients::Target db = g.parameter(1);
    const auto weights = [&] {
      if (dw) {
        const bool together = db && db.accumulate == dw.accumulate;
        g.backend().conv2d_backward_weights({.x = x_saved,
                                             .dy = dy,
                                             .dweight = dw.tensor,
                                             .dbias = together ? db.tensor : Tensor(),
                                             .window = window,
                                             .accumulate = dw.accumulate});
        if (together) db = {};
      }
      bias_gradient(g.backend(), dy, db);
    };
    // Issued before the gradient of x, so that the two overlap from the start.
    const bool concurrent = dw && g.wants(0) && g.run_concurrently(weights, {x_saved, dy});
    if (g.wants(0)) {
      Tensor dx(g.backend(), in, dy.dtype());
      g.backend().conv2d_backward_data({.dy = dy, .weight = w, .dx = dx, .window = window});
      g.set(0, std::move(dx));
    }
    if (!concurrent) weights();
  };
  return pass.record("conv2d", args.y, {x}, {&weight, bias}, std::move(backward));
}

Variable conv_transpose2d(const Variable& x, Parameter& weight, Parameter* bias,
                          const Window2d& window, const std::array<std::int64_t, 2>& output_padding,
                          Pass& pass) {
  const Shape &in = x.shape(), &w = weight.shape;
  if (in.rank() != 4 || w.rank() != 4 || w[0] != in.back() || in.back() % window.groups != 0)
    fail(ExitCode::kUsage, "conv_transpose2d",
         "x is {} and the weight {} is {}; needed: N×H×W×I and I×kH×kW×O, and {} groups divide I",
         in.text(), weight.name, w.text(), window.groups);
  const std::array<std::int64_t, 2> size =
      transposed_output({in[1], in[2]}, window, output_padding);
  const Shape out{in[0], size[0], size[1], w[3] * window.groups};
  for (int axis = 0; axis < 2; ++axis) {
    const auto i = static_cast<std::size_t>(axis);
    if (size[i] < 1 || output_padding[i] < 0 || output_padding[i] >= window.stride[i])
      fail(ExitCode::kUsage, "conv_transpose2d",
           "{} would become {} pixels along axis {}, with an output_padding of {} and a stride of "
           "{}; needed: one at least, and an output_padding below the stride",
           in.text(), size[i], axis, output_padding[i], window.stride[i]);
  }
  Tensor y(pass.backend, out, x.dtype());
  pass.backend.conv2d_backward_data(
      {.dy = x.value(), .weight = weight.operand(), .dx = y, .window = window});
  if (bias) pass.backend.map({MapFunction::kAdd, y, bias->value, y});

  auto backward = [x_saved = weight.trainable ? x.value() : Tensor(),
                   w = x.requires_grad() ? weight.operand() : Tensor(), in, window](Gradients& g) {
    const Tensor& dy = g.output();
    if (g.wants(0)) {
      Tensor dx(g.backend(), in, dy.dtype());
      g.backend().conv2d_forward({.x = dy, .weight = w, .bias = {}, .y = dx, .window = window});
      g.set(0, std::move(dx));
    }
    if (const Gradients::Target dw = g.parameter(0)) {
      g.backend().conv2d_backward_weights({.x = dy,
                                           .dy = x_saved,
                                           .dweight = dw.tensor,
                                           .dbias = {},
                                           .window = window,
                                           .accumulate = dw.accumulate});
    }
    bias_gradient(g.backend(), dy, g.parameter(1));
  };
  return pass.record("conv_transpose2d", std::move(y), {x}, {&weight, bias}, std::move(backward));
}

namespace {

/// x times a number, in its own memory.
void scale_in_place(Backend& backend, double number, const Tensor& x) {
  if (number != 1.0) backend.map({{{MapFunction::kMultiply, 0, kMapNumbers}}, {x}, x, {number}});
}

/// GELU of a product, which computed both. A product that takes it does both their gradients.
class GeluOfProduct final : public LazyValue {
 public:
  GeluOfProduct(Variable input, Tensor value, Pass& pass)
      : LazyValue(value.shape(), value.dtype(), input.requires_grad()),
        input_(std::move(input)),
        value_(std::move(value)),
        tape_(pass.tape),
        layer_(pass.tape->layer()) {}
  const Variable& input() const { return input_; }
  const Tensor& value() const { return value_; }

 private:
  Variable make() override {
    const Tape::Scope scope(tape_, layer_);
    return tape_->record("gelu", value_, {input_}, {}, [in = input_.value()](Gradients& g) {
      const Tensor dy = std::move(g.take_terms().front());
      Tensor dx = own_gradient_memory(dy);
      g.backend().map({MapFunction::kGeluTanhGradient, in, dy, dx});
      g.set(0, std::move(dx));
    });
  }

  Variable input_;
  Tensor value_;
  Tape* tape_;
  std::string_view layer_;
};

enum class After { kNothing, kRelu, kGelu };

/// `term`: where it has matrices, the term of low rank. `term_x` has a value where that takes
/// something else than x.
Variable linear_product(const Variable& x, Parameter& weight, Parameter* bias, const LowRank& term,
                        const Variable& term_x, Pass& pass, After after) {
  require(x.shape().rank() > 0, "linear", "the input is a scalar, not …×F");
  if (weight.shape.rank() != 2 || weight.shape[1] != x.shape().back()) {
    fail(ExitCode::kUsage, "linear", "x is {} and the weight {} is {}; needed: outputs×{}",
         x.shape().text(), weight.name, weight.shape.text(), x.shape().back());
  }
  Shape out = x.shape();
  out[out.rank() - 1] = weight.shape[0];
  // A GELU that nothing else has read: the node takes its input, whose gradient it computes.
  const auto gelu = x.lazy() && !x.lazy()->is_made() && !term.a
                        ? std::dynamic_pointer_cast<GeluOfProduct>(x.lazy())
                        : nullptr;
  const Variable from = gelu ? gelu->input() : x, taken = gelu ? Variable(gelu->value()) : x;
  const bool relu = after == After::kRelu;
  Tensor y(pass.backend, out, x.dtype()), before_gelu;
  if (after == After::kGelu) before_gelu = Tensor(pass.backend, out, x.dtype());
  pass.backend.matmul({.a = matrix_of(taken.value()),
                       .b = transposed(weight.operand()),
                       .bias = bias ? bias->operand() : Tensor(),
                       .c = matrix_of(y),
                       .relu = relu,
                       .before_gelu = before_gelu});

  // The narrow product is kept with its factor: it is a factor of b's gradient, too.
  const bool apart = term_x.has_value();
  Tensor narrow;
  if (term.a) {
    const Tensor in = matrix_of(apart ? term_x.value() : x.value());
    narrow = Tensor(pass.backend, {in.shape()[0], term.a->shape[0]}, x.dtype());
    pass.backend.matmul({.a = in, .b = transposed(term.a->operand()), .bias = {}, .c = narrow});
    scale_in_place(pass.backend, term.scale, narrow);
    pass.backend.matmul({.a = narrow,
                         .b = transposed(term.b->operand()),
                         .bias = {},
                         .c = matrix_of(y),
                         .accumulate = true});
  }

  // ReLU's gradient needs only the output, which the next operation saves anyway.
  auto backward = [x_saved = weight.trainable ? Saved(taken) : Saved(),
                   w = from.requires_grad() ? weight.operand() : Tensor(), in = x.shape(),
                   y_saved = relu ? y : Tensor(),
                   gelu_input = gelu && from.requires_grad() ? from.value() : Tensor(),
                   term_saved = term.a && term.a->trainable ? Saved(apart ? term_x : x) : Saved(),
                   narrow, term, apart](Gradients& g) {
    Tensor dy = std::move(g.take_terms().front());
    if (y_saved) {
      const Tensor masked = dy.exclusive() ? dy : Tensor(g.backend(), dy.shape(), dy.dtype());
      g.backend().map({MapFunction::kReluGradient, y_saved, dy, masked});
      dy = masked;
    }
    // The weight's gradient first: x may have been saved for it alone, and its memory is then
    // reused for dx.
    const Gradients::Target dw = g.parameter(0);
    Gradients::Target dbias = g.parameter(1);
    if (dw) {
      const bool together = dbias && dbias.accumulate == dw.accumulate;
      g.backend().matmul({.a = transposed(matrix_of(dy)),
                          .b = matrix_of(x_saved.take()),
                          .c = dw.tensor,
                          .accumulate = dw.accumulate,
                          .row_sums = together ? dbias.tensor : Tensor()});
      if (together) dbias = {};
    }
    bias_gradient(g.backend(), dy, dbias);
    Tensor dnarrow;
    if (term.a) {
      if (const Gradients::Target db = g.parameter(3)) {
        g.backend().matmul({.a = transposed(matrix_of(dy)),
                            .b = narrow,
                            .bias = {},
                            .c = db.tensor,
                            .accumulate = db.accumulate});
      }
      dnarrow = Tensor(g.backend(), narrow.shape(), dy.dtype());
      g.backend().matmul({.a = matrix_of(dy), .b = term.b->operand(), .bias = {}, .c = dnarrow});
      scale_in_place(g.backend(), term.scale, dnarrow);
      if (const Gradients::Target da = g.parameter(2)) {
        g.backend().matmul({.a = transposed(dnarrow),
                            .b = matrix_of(term_saved.take()),
                            .bias = {},
                            .c = da.tensor,
                            .accumulate = da.accumulate});
      }
    }
    const auto of_term = [&](const Tensor& dx, bool accumulate) {
      g.backend().matmul({.a = dnarrow,
                          .b = term.a->operand(),
                          .bias = {},
                          .c = matrix_of(dx),
                          .accumulate = accumulate});
    };
    if (g.wants(0)) {
      Tensor dx(g.backend(), in, dy.dtype());
      g.backend().matmul(
          {.a = matrix_of(dy), .b = w, .c = matrix_of(dx), .gelu_input = gelu_input});
      if (term.a && !apart) of_term(dx, true);
      g.set(0, std::move(dx));
    }
    if (apart && g.wants(1)) {
      Tensor dx(g.backend(), in, dy.dtype());
      of_term(dx, false);
      g.set(1, std::move(dx));
    }
  };
  std::vector<Variable> inputs{from};
  if (apart) inputs.push_back(term_x);
  std::vector<Parameter*> parameters{&weight, bias};
  if (term.a) parameters.insert(parameters.end(), {term.a, term.b});
  const Variable result = pass.record("linear", before_gelu ? before_gelu : y, inputs,
                                      std::move(parameters), std::move(backward));
  if (!before_gelu) return result;
  if (!pass.tape) return Variable(std::move(y));
  return Variable(std::make_shared<GeluOfProduct>(result, std::move(y), pass));
}

}  // namespace

Variable linear(const Variable& x, Parameter& weight, Parameter* bias, Pass& pass, bool relu) {
  return linear_product(x, weight, bias, {}, {}, pass, relu ? After::kRelu : After::kNothing);
}

Variable linear_gelu(const Variable& x, Parameter& weight, Parameter* bias, Pass& pass) {
  // What is computed again there must be computed in the same way.
  if (pass.recompute == Recompute::kCheap)
    return gelu(linear(x, weight, bias, pass), pass, GeluForm::kTanh);
  return linear_product(x, weight, bias, {}, {}, pass, After::kGelu);
}

Variable linear(const Variable& x, Parameter& weight, Parameter* bias, const LowRank& term,
                const Variable& term_x, Pass& pass) {
  return linear_product(x, weight, bias, term, term_x, pass, After::kNothing);
}

namespace {

/// The batch dimensions, which matmul() broadcasts.
Shape batches(const Shape& shape) {
  return Shape(shape.sizes().first(static_cast<std::size_t>(shape.rank() - 2)));
}
Shape with_matrix(const Shape& batch, std::int64_t rows, std::int64_t columns) {
  return batch.with_last(rows).with_last(columns);
}

/// a·b into a tensor of shape `to`. If `to` has fewer batches than the product, which has `batch`,
/// products are summed over the others.
Tensor product_into(Backend& backend, const View& a, const View& b, const Shape& batch,
                    const Shape& to) {
  const Shape whole = with_matrix(batch, a.shape()[a.shape().rank() - 2], b.shape().back());
  const DType type = whole == to ? a.dtype() : wide_of(a.dtype());
  Tensor y(backend, whole, type);
  backend.matmul({.a = a, .b = b, .bias = {}, .c = y});
  if (whole == to) return y;
  const Tensor sum(backend, to, type);
  backend.reduce({y, sum});
  return in_format(sum, a.dtype(), backend);
}

}  // namespace

Variable matmul(const Variable& a, const Variable& b, Pass& pass) {
  const Shape &left = a.shape(), &right = b.shape();
  if (!is_floating(a.dtype()) || a.dtype() != b.dtype())
    fail(ExitCode::kUsage, "matmul", "the operands are {} and {}; needed: one floating dtype",
         name_of(a.dtype()), name_of(b.dtype()));
  if (left.rank() == 0 || right.rank() == 0)
    fail(ExitCode::kUsage, "matmul", "{} by {}: a scalar is no matrix", left.text(), right.text());
  // Removes the dimension that a vector operand was given.
  const bool row = left.rank() == 1, column = right.rank() == 1;
  const Shape as_a = row ? Shape{1, left[0]} : left, as_b = column ? right.with_last(1) : right;
  const std::int64_t m = as_a[as_a.rank() - 2], k = as_a.back(), n = as_b.back();
  if (as_b[as_b.rank() - 2] != k)
    fail(ExitCode::kUsage, "matmul", "{} by {}: the inner dimensions are {} and {}", left.text(),
         right.text(), k, as_b[as_b.rank() - 2]);
  const Shape batch = broadcast("matmul", batches(as_a), batches(as_b));
  Shape out = row ? batch : batch.with_last(m);
  if (!column) out = out.with_last(n);

  const Tensor ta = a.value().reshaped(as_a), tb = b.value().reshaped(as_b);
  const Tensor y(pass.backend, with_matrix(batch, m, n), a.dtype());
  pass.backend.matmul({.a = ta, .b = tb, .bias = {}, .c = y});
  auto backward = [ta, tb, batch, whole = y.shape(), left, right](Gradients& g) {
    const Tensor dy = g.output().reshaped(whole);
    if (g.wants(0))
      g.set(0, product_into(g.backend(), dy, transposed(tb), batch, ta.shape()).reshaped(left));
    if (!g.wants(1)) return;
    if (tb.shape().rank() == 2 && ta.shape().rank() > 2) {
      // A single b for all batches: one product, which sums over them.
      return g.set(1, product_into(g.backend(), transposed(matrix_of(ta)), matrix_of(dy), Shape(),
                                   tb.shape())
                          .reshaped(right));
    }
    g.set(1, product_into(g.backend(), transposed(ta), dy, batch, tb.shape()).reshaped(right));
  };
  return pass.record("matmul", y.reshaped(out), {a, b}, {}, std::move(backward));
}

}  // namespace starling::functions
