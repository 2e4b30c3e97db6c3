#pragma once

#include <cmath>

#include <starling/functions.h>
#include <starling/layer.h>
#include <starling/task.h>

// Layers and a loss that are written with functions alone: they run on CPUs and GPUs in every
// precision, and their gradients come with them.
namespace mine {

namespace f = starling::functions;
using starling::Init;
using starling::Pass;
using starling::Shape;
using starling::Tensor;
using starling::Variable;

/// Attention of a sequence T×C to itself, from products and a softmax.
class Attend final : public starling::Layer {
 public:
  explicit Attend(std::int64_t heads) : heads_(heads) {}

 private:
  Shape build(const Shape& input) override {
    if (input.rank() != 2 || input[1] % heads_ != 0) bad_shape(input, "T×C that the heads divide");
    qkv_ = &add_parameter("qkv", {3 * input[1], input[1]}, Init::normal(0.02));
    return input;
  }
  Variable compute(const Variable& x, Pass& pass) override {
    const std::int64_t depth = x.shape()[2] / heads_;
    const auto all = f::reshape(f::linear(x, *qkv_, nullptr, pass),
                                {x.shape()[0], x.shape()[1], 3, heads_, depth}, pass);
    const auto by_head = f::permute(all, {2, 0, 3, 1, 4}, pass);
    const auto part = [&](int i) { return f::slice(by_head, 0, i, i + 1, pass); };
    const auto scores = f::matmul(part(0), f::transpose(part(1), -2, -1, pass), pass);
    const double scale = 1 / std::sqrt(static_cast<double>(depth));
    const auto weights = f::softmax(f::multiply(scores, scale, pass), -1, pass);
    const auto heads = f::squeeze(f::matmul(weights, part(2), pass), 0, pass);
    return f::reshape(f::permute(heads, {0, 2, 1, 3}, pass), x.shape(), pass);
  }
  std::int64_t heads_;
  starling::Parameter* qkv_ = nullptr;
};

/// The focal loss of classes: those that are known well count less (arXiv 1708.02002).
class Focal final : public starling::Loss {
  Variable value(const Variable& scores, const Tensor& labels, double scale,
                 Pass& pass) const override {
    const Tensor column = labels.reshaped(labels.shape().with_last(1));
    const auto log_p = f::gather(f::log_softmax(scores, -1, pass), -1, column, pass);
    const auto rest = f::square(f::subtract(1.0, f::exp(log_p, pass), pass), pass);
    return f::mean_loss(f::multiply(rest, log_p, pass), -scale, pass);
  }
};

/// a + sigmoid(W·[a, b])·b: how much of a second value is let in.
class LetIn final : public starling::Layer {
  Shape build_several(starling::Shapes inputs) override {
    if (inputs.size() != 2 || inputs[0] != inputs[1]) bad_shape(inputs.back(), "the first's shape");
    const std::int64_t width = inputs[0].back();
    gate_ = &add_parameter("gate", {width, 2 * width}, Init::normal(0.1));
    return inputs[0];
  }
  Variable compute_several(starling::Values in, Pass& pass) override {
    const auto both = f::concat({in[0], in[1]}, -1, pass);
    const auto gate = f::sigmoid(f::linear(both, *gate_, nullptr, pass), pass);
    return f::add(in[0], f::multiply(gate, in[1], pass), pass);
  }
  starling::Parameter* gate_ = nullptr;
};

/// Of a sequence T×C: each step, or where it is nearly level what has changed since the one before;
/// and beside it the step's two numbers that are furthest from 0.
class Changes final : public starling::Layer {
  Shape build(const Shape& input) override {
    if (input.rank() != 2 || input[1] < 2) bad_shape(input, "T×C, of two numbers at least");
    return {input[0], input[1] + 2};
  }
  Variable compute(const Variable& x, Pass& pass) override {
    const auto before = f::pad(f::slice(x, 1, 0, -1, pass), {0, 0, 1, 0}, 0.0, pass);
    const auto changed = f::clamp(f::subtract(x, before, pass), -1.0, 1.0, pass);
    const auto spread = f::variance(x, {-1}, 1.0, true, pass);
    const auto level = f::less(spread, 0.05, pass);
    const auto furthest = f::topk(f::abs(x, pass), 2, -1, pass).index;
    return f::concat({f::where(level, changed, x, pass), f::gather(x, -1, furthest, pass)}, -1,
                     pass);
  }
};

}  // namespace mine
