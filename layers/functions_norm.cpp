#include "core/error.h"
#include "core/operations/norms.h"
#include "core/operations/pointwise.h"
#include "core/operations/reduce.h"
#include "layers/functions.h"
#include "layers/functions_chain.h"
#include "layers/norm_statistics.h"

namespace starling::functions {

namespace {

// Batch norm over the batches of all ranks, of equal size, with sums over ranks between the steps.
// Does what the backend's own batch norm does with the same arguments in training. As in
// torch.nn.SyncBatchNorm the gradients of gamma and beta are sums over this rank's batch only.

/// Two sums per channel in one tensor, so that one exchange sums both over ranks. In fp64, so that
/// a variance much smaller than the squares is not lost to cancellation.
struct SumsOfChannels {
  Tensor both, first, second;

  SumsOfChannels(Backend& backend, std::int64_t channels) {
    constexpr std::int64_t kAlignment = 32;  // kernels load whole vectors
    const std::int64_t stride = (channels + kAlignment - 1) / kAlignment * kAlignment;
    both = Tensor(backend, Shape{2 * stride}, DType::kFloat64);
    if (stride != channels) backend.fill(both, 0.0);
    first = both.slice(0, Shape{channels});
    second = both.slice(stride, Shape{channels});
  }
};

void synchronized_forward(const BatchNormForward& args, RankSums& ranks, Backend& backend) {
  const std::int64_t channels = args.x.shape().back();
  const SumsOfChannels sums(backend, channels);
  // This rank's mean and 1/σ, from which its sums follow: n·mean and n·(σ² + mean²).
  backend.batch_norm_forward({.x = args.x,
                              .saved_mean = args.saved_mean,
                              .saved_inv_std = args.saved_inv_std,
                              .eps = 0.0});
  using F = MapFunction;
  const std::int64_t count = args.x.elements() / channels;
  const auto rows = static_cast<double>(count);
  Reduce sum(args.saved_mean, sums.first),
      squares({{F::kMultiply, 1, 1},
               {F::kDivide, kMapNumbers, kMapResults},
               {F::kSquare, 0},
               {F::kAdd, kMapResults + 1, kMapResults + 2}},
              {args.saved_mean, args.saved_inv_std}, sums.second, {1.0});
  sum.factor = squares.factor = rows;
  backend.reduce(sum);
  backend.reduce(squares);
  ranks.sum(sums.both);
  backend.batch_norm_finish({.sum = sums.first,
                             .square_sum = sums.second,
                             .running_mean = args.running_mean,
                             .running_var = args.running_var,
                             .batches_tracked = args.batches_tracked,
                             .saved_mean = args.saved_mean,
                             .saved_inv_std = args.saved_inv_std,
                             .count = args.x.elements() / channels * ranks.ranks(),
                             .eps = args.eps,
                             .momentum = args.momentum});
  BatchNormForward given = args;
  given.training = false;
  given.running_mean = given.running_var = given.batches_tracked = {};
  backend.batch_norm_forward(given);
}

void synchronized_backward(const BatchNormBackward& args, RankSums& ranks, Backend& backend) {
  const std::int64_t channels = args.x.shape().back();
  const SumsOfChannels own(backend, channels), mean(backend, channels);
  BatchNormBackward step = args;
  step.sums = BatchNormBackward::Sums::kWritten;
  step.sum_dy = own.first;
  step.sum_dy_xhat = own.second;
  backend.batch_norm_backward(step);
  backend.weighted_sum(
      {.in = {own.both}, .weight = {1.0 / ranks.ranks()}, .terms = 1, .out = mean.both});
  ranks.sum(mean.both);
  step.sums = BatchNormBackward::Sums::kGiven;
  if (args.dresidual) {  // from the masked sum, which is available here
    step.dy = args.dresidual;
    step.dy2 = step.y = step.beta = step.dresidual = {};
    step.rectifier = {};
  }
  step.dx = {};
  backend.batch_norm_backward(step);
  step.sum_dy = mean.first;
  step.sum_dy_xhat = mean.second;
  step.dgamma = step.dbeta = {};
  step.dx = args.dx;  // last, since it may share memory with x or dy
  backend.batch_norm_backward(step);
}

/// Targets of the gradients of scale and shift, parameters 0 and 1; empty if frozen or missing.
struct ScaleShiftTargets {
  Gradients::Target gamma, beta;
  explicit ScaleShiftTargets(Gradients& g, bool shifts = true)
      : gamma(g.parameter(0)), beta(shifts ? g.parameter(1) : Gradients::Target()) {
    require(!gamma || !beta || gamma.accumulate == beta.accumulate, "norm",
            "scale and shift of one normalisation are shared differently");
  }
  bool accumulate() const { return gamma.accumulate || beta.accumulate; }
};

/// Input 0 is x, input 1 the residual; parameters 0 and 1 are gamma and beta. The gradient has up
/// to two terms. `back`: what the forward pass saved.
void batch_norm_backward(BatchNormBackward back, RankSums* over, Gradients& g) {
  std::vector<Tensor> terms = g.take_terms();
  back.dy = terms[0];
  if (terms.size() > 1) back.dy2 = terms[1];

  Tensor dresidual;
  if (g.wants(1)) {
    if (!back.rectifier.relu && terms.size() == 1) {
      dresidual = terms[0];  // unchanged
    } else {
      // Overwrite a gradient term that is not shared, if there is one. (`back` has a second
      // handle.)
      for (const Tensor& term : terms) {
        if (!dresidual && term.storage().use_count() == 2) dresidual = term;
      }
      if (!dresidual) dresidual = Tensor(g.backend(), back.x.shape(), back.x.dtype());
      back.dresidual = dresidual;
    }
  }
  // Write dx over a term or x if it is not shared: less memory, and better use of caches.
  for (const Tensor& term : terms) {
    if (!back.dx && term.storage() != dresidual.storage() && term.storage().use_count() == 2)
      back.dx = term;
  }
  if (!back.dx && back.x.storage().use_count() == 2) back.dx = back.x;
  if (!back.dx) back.dx = Tensor(g.backend(), back.x.shape(), back.x.dtype());
  const ScaleShiftTargets targets(g);
  back.dgamma = targets.gamma.tensor;
  back.dbeta = targets.beta.tensor;
  back.accumulate = targets.accumulate();
  if (over) {
    synchronized_backward(back, *over, g.backend());
  } else {
    g.backend().batch_norm_backward(back);
  }
  terms.clear();
  if (dresidual) g.set(1, std::move(dresidual));
  Tensor dx = std::move(back.dx);
  back = {};  // releases handles, so that a receiver of a term may be its only holder
  g.set(0, std::move(dx));
}

}  // namespace

Variable batch_norm(const Variable& x, const BatchNormState& state, Activation active,
                    const Variable& residual, Pass& pass) {
  const Shape& shape = x.shape();
  require(
      active == Activation::kNone || active == Activation::kRelu || active == Activation::kRelu6,
      "batch_norm", "only ReLU and ReLU6 run with a batch norm");
  const bool has_residual = residual.has_value(), relu = active != Activation::kNone;
  if (has_residual) {
    require(residual.shape() == shape, "batch_norm", "the input is {}, the residual {}",
            shape.text(), residual.shape().text());
  }
  const Shape channels{shape.back()};
  // Frozen norms use the running statistics and do not change them
  const bool training = pass.training && (state.gamma->trainable || state.beta->trainable);
  RankSums* const over = training ? pass.find<RankSums>() : nullptr;
  const int ranks = over ? over->ranks() : 1;  // whose batches form one
  if (training && shape.elements() / shape.back() * ranks < 2) {
    fail(ExitCode::kUsage, "batch_norm",
         "one value per channel has no variance to train with; batches of 2 samples or more are "
         "needed");
  }
  const NormMomentum* const momentum = pass.find<NormMomentum>();
  BatchNormForward args{.x = x.value(),
                        .residual = residual.value(),
                        .gamma = state.gamma->value,
                        .beta = state.beta->value,
                        .y = Tensor(pass.backend, shape, x.dtype()),
                        .running_mean = state.running_mean->value,
                        .running_var = state.running_var->value,
                        .eps = state.eps,
                        .momentum = pass.recomputing ? 0.0
                                    : momentum       ? momentum->value
                                                     : state.momentum,
                        .training = training,
                        .rectifier = {relu, active == Activation::kRelu6 ? 6.0 : kNoCeiling}};
  if (training || pass.tape) {
    args.saved_mean = Tensor(pass.backend, channels, args.running_mean.dtype());
    args.saved_inv_std = Tensor(pass.backend, channels, args.running_mean.dtype());
  }
  if (state.batches_tracked && !pass.recomputing)
    args.batches_tracked = state.batches_tracked->value;
  if (over) {
    synchronized_forward(args, *over, pass.backend);
  } else {
    pass.backend.batch_norm_forward(args);
  }
  if (!pass.tape) return Variable(std::move(args.y));

  // Without a residual, ReLU's mask is recomputed from x and beta, so that the output is not saved
  // or read.
  BatchNormBackward saved{.x = args.x,
                          .y = relu && has_residual ? args.y : Tensor(),
                          .gamma = args.gamma,
                          .saved_mean = args.saved_mean,
                          .saved_inv_std = args.saved_inv_std,
                          .training = training,
                          .beta = relu && !has_residual ? args.beta : Tensor(),
                          .rectifier = args.rectifier};
  auto backward = [saved = std::move(saved), over](Gradients& g) {
    batch_norm_backward(saved, over, g);
  };
  // Two terms: if a block's input feeds both its body and its shortcut, this saves a pass for the
  // sum.
  return pass.record("batch_norm", args.y, {x, residual}, {state.gamma, state.beta},
                     std::move(backward), 2);
}

namespace {

/// Without beta the norm is not centred.
Variable row_norm(std::string_view name, const Variable& x, Parameter& gamma, Parameter* beta,
                  double eps, Pass& pass) {
  const bool centered = beta != nullptr;
  const auto statistics = [&] {
    return Tensor(pass.backend, Shape{x.shape().elements() / x.shape().back()},
                  gamma.value.dtype());
  };
  LayerNormForward args{.gamma = gamma.value,
                        .beta = centered ? beta->value : Tensor(),
                        .y = Tensor(pass.backend, x.shape(), x.dtype()),
                        .saved_mean = centered ? statistics() : Tensor(),
                        .saved_inv_std = statistics(),
                        .eps = eps,
                        .centered = centered};
  // Of a residual addition, which comes before most norms of a Transformer, both in one pass.
  const bool added = compute_sum(x, [&](const Tensor& a, const Tensor& b, const Tensor& sum) {
    LayerNormForward both = args;
    both.x = a, both.residual = b, both.sum = sum;
    pass.backend.layer_norm_forward(both);
  });
  args.x = x.value();
  if (!added) pass.backend.layer_norm_forward(args);

  auto backward = [saved = LayerNormBackward{.x = args.x,
                                             .gamma = args.gamma,
                                             .saved_mean = args.saved_mean,
                                             .saved_inv_std = args.saved_inv_std,
                                             .centered = centered}](Gradients& g) {
    LayerNormBackward back = saved;
    back.dy = g.output();
    if (g.wants(0)) {
      // What comes past the norm, of a residual connection.
      back.term = g.take_input_term(0);
      const bool onto = back.term && back.term.exclusive();
      back.dx = onto ? back.term : Tensor(g.backend(), back.x.shape(), back.x.dtype());
    }
    const ScaleShiftTargets targets(g, back.centered);
    back.dgamma = targets.gamma.tensor;
    back.dbeta = targets.beta.tensor;
    back.accumulate = targets.accumulate();
    g.backend().layer_norm_backward(back);
    back.term = {};
    if (back.dx) g.set(0, std::move(back.dx));
  };
  std::vector<Parameter*> parameters{&gamma};
  if (beta) parameters.push_back(beta);
  Variable y = pass.record(name, args.y, {x}, std::move(parameters), std::move(backward));
  if (y.requires_grad() && pass.recompute != Recompute::kNone) {
    LayerNormForward again = args;
    again.y = Tensor();
    y.set_recompute([again, &backend = pass.backend] {
      LayerNormForward made = again;
      made.y = Tensor(backend, made.x.shape(), made.x.dtype());
      backend.layer_norm_forward(made);  // recomputes the same statistics
      return made.y;
    });
  }
  return y;
}

}  // namespace

Variable layer_norm(const Variable& x, Parameter& gamma, Parameter& beta, double eps, Pass& pass) {
  return row_norm("layer_norm", x, gamma, &beta, eps, pass);
}
Variable rms_norm(const Variable& x, Parameter& weight, double eps, Pass& pass) {
  return row_norm("rms_norm", x, weight, nullptr, eps, pass);
}

}  // namespace starling::functions
