#include "core/error.h"
#include "layers/functions_norm.h"

namespace starling::functions::detail {

namespace {

/// The last step of a backward pass whose first ones the convolution took over that read the norm's output.
void apply_gathered(const BatchNormSaved& saved, const GatheredSums& sums, Gradients& g) {
  std::vector<Tensor> terms = g.take_terms();
  require(terms.size() == 1, "batch_norm", "{} gradient terms of a value that one convolution read", terms.size());
  Tensor dy = std::move(terms.front());
  Tensor dx = dy.exclusive() ? dy : saved.x.exclusive() ? saved.x : Tensor(g.backend(), dy.shape(), dy.dtype());
  const ScaleShiftTargets targets(g, saved.gamma);
  g.backend().batch_norm_backward_apply({.x = saved.x,
                                         .dy = dy,
                                         .gamma = saved.gamma,
                                         .saved_mean = saved.mean,
                                         .saved_inv_std = saved.inv_std,
                                         .sum_dy = sums.sum_dy,
                                         .sum_dy_xhat = sums.sum_dy_xhat,
                                         .dx = dx,
                                         .dgamma = targets.dgamma,
                                         .dbeta = targets.dbeta,
                                         .accumulate = targets.accumulate});
  dy = {};  // so that the receiver may find itself the only holder
  g.set(0, std::move(dx));
}

}  // namespace

Tensor PendingNorm::compute() {
  Tensor y(*backend_, norm_.x.shape(), norm_.x.dtype());
  backend_->scale_shift(
      {.x = norm_.x, .scale = norm_.scale, .shift = norm_.shift, .y = y, .relu = norm_.rectifier.relu, .ceiling = norm_.rectifier.ceiling});
  return y;
}

BatchNormFinish finish_batch_norm(const BatchNormState& state, const Tensor& sum, const Tensor& square_sum, std::int64_t count,
                                  Pass& pass) {
  const auto vector = [&] { return Tensor(pass.backend, sum.shape(), state.running_mean->value.dtype()); };
  BatchNormFinish finish{.sum = sum,
                         .square_sum = square_sum,
                         .gamma = state.gamma->value,
                         .beta = state.beta->value,
                         .running_mean = state.running_mean->value,
                         .running_var = state.running_var->value,
                         .batches_tracked = state.batches_tracked ? state.batches_tracked->value : Tensor(),
                         .saved_mean = vector(),
                         .saved_inv_std = vector(),
                         .scale = vector(),
                         .shift = vector(),
                         .count = count,
                         .eps = state.eps,
                         .momentum = pass.norm_momentum < 0.0 ? state.momentum : pass.norm_momentum};
  pass.backend.batch_norm_finish(finish);
  return finish;
}

Variable deferred_batch_norm(const Variable& x, const BatchNormState& state, Rectifier rectifier, const Variable& residual, Pass& pass) {
  const Tensor& input = x.value();
  const auto& statistics = *x.notes<ChannelStatistics>();
  const BatchNormFinish finish =
      finish_batch_norm(state, statistics.sum, statistics.square_sum, input.elements() / input.shape().back(), pass);
  BatchNormSaved saved{
      .x = input, .gamma = finish.gamma, .mean = finish.saved_mean, .inv_std = finish.saved_inv_std, .rectifier = rectifier};

  if (residual.has_value()) {
    ScaleShift apply{.x = input,
                     .scale = finish.scale,
                     .shift = finish.shift,
                     .y = Tensor(pass.backend, input.shape(), input.dtype()),
                     .relu = rectifier.relu,
                     .ceiling = rectifier.ceiling};
    if (const DeferredNorm* other = pending_norm(residual); other && !other->rectifier.relu) {
      apply.residual = other->x;
      apply.residual_scale = other->scale;
      apply.residual_shift = other->shift;
    } else {
      apply.residual = residual.value();
    }
    pass.backend.scale_shift(apply);
    saved.has_residual = true;
    if (rectifier.relu) saved.y = apply.y;
    return pass.record(
        "batch_norm", apply.y, {x, residual}, {state.gamma, state.beta},
        [saved = std::move(saved)](Gradients& g) { batch_norm_backward(saved, g); }, 2);
  }

  const auto sums = std::make_shared<GatheredSums>();
  if (rectifier.relu) saved.beta = finish.beta;
  auto backward = [saved = std::move(saved), sums](Gradients& g) {
    if (sums->sum_dy) {
      apply_gathered(saved, *sums, g);
    } else {
      batch_norm_backward(saved, g);
    }
  };
  Variable y = pass.record("batch_norm", input, {x}, {state.gamma, state.beta}, std::move(backward), 2);
  DeferredNorm norm{.x = input,
                    .scale = finish.scale,
                    .shift = finish.shift,
                    .mean = finish.saved_mean,
                    .inv_std = finish.saved_inv_std,
                    .gamma = finish.gamma,
                    .beta = finish.beta,
                    .rectifier = rectifier,
                    .sums = sums};
  y.set_pending(std::make_shared<PendingNorm>(pass.backend, std::move(norm)));
  return y;
}

}  // namespace starling::functions::detail
