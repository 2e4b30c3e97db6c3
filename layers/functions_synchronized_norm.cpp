#include <memory>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/operations/map.h"
#include "core/operations/norms.h"
#include "core/operations/pointwise.h"
#include "layers/functions_norm.h"

// A batch norm over all ranks, put together from the steps of one: what the ranks add up lies
// between them.
namespace starling::functions::detail {
namespace {

/// Two sums per channel beside each other, so that one exchange adds up both over the ranks. In
/// fp64, so that a variance which is small beside the squares is left of their difference.
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

/// Gradient dy, and where it goes besides x: masked by what followed the norm, as far as that needs
/// the norm's output.
struct Incoming {
  Tensor dy, dresidual;
};
Incoming incoming_of(const BatchNormSaved& saved, Gradients& g) {
  std::vector<Tensor> terms = g.take_terms();
  Incoming result{terms[0], {}};
  if (terms.size() > 1) {
    result.dy = Tensor(g.backend(), saved.x.shape(), saved.x.dtype());
    g.backend().map({MapFunction::kAdd, terms[0], terms[1], result.dy});
  }
  if (saved.rectifier.relu && saved.has_residual) {
    Tensor masked(g.backend(), saved.x.shape(), saved.x.dtype());
    const Activation active =
        saved.rectifier.ceiling == kNoCeiling ? Activation::kRelu : Activation::kRelu6;
    g.backend().map({gradient_of(active), saved.y, result.dy, masked});
    result.dy = std::move(masked);
  }
  if (saved.has_residual) result.dresidual = result.dy;
  return result;
}

void synchronized_backward(const BatchNormSaved& saved, RankSums& ranks, Gradients& g) {
  Backend& backend = g.backend();
  const std::int64_t channels = saved.x.shape().back();
  const auto constant = [&](double value) {
    Tensor tensor(backend, Shape{channels}, saved.mean.dtype());
    backend.fill(tensor, value);
    return tensor;
  };
  Incoming incoming = incoming_of(saved, g);
  const bool masks = saved.rectifier.relu && !saved.has_residual;
  const SumsOfChannels own(backend, channels), mean(backend, channels);
  // The form 0·x̂ + 1 is positive everywhere: nothing is masked any more.
  const Tensor masked = masks ? Tensor(backend, saved.x.shape(), saved.x.dtype()) : incoming.dy;
  backend.batch_norm_backward_sums({.x = saved.x,
                                    .dy = incoming.dy,
                                    .saved_mean = saved.mean,
                                    .saved_inv_std = saved.inv_std,
                                    .gamma = masks ? saved.gamma : constant(0.0),
                                    .beta = masks ? saved.beta : constant(1.0),
                                    .masked = masked,
                                    .sum_dy = own.first,
                                    .sum_dy_xhat = own.second,
                                    .ceiling = masks ? saved.rectifier.ceiling : kNoCeiling});
  backend.weighted_sum(
      {.in = {own.both}, .weight = {1.0 / ranks.ranks()}, .terms = 1, .out = mean.both});
  ranks.sum(mean.both);
  Tensor dx(backend, saved.x.shape(), saved.x.dtype());
  BatchNormBackwardApply apply{.x = saved.x,
                               .dy = masked,
                               .gamma = saved.gamma,
                               .saved_mean = saved.mean,
                               .saved_inv_std = saved.inv_std,
                               .sum_dy = mean.first,
                               .sum_dy_xhat = mean.second,
                               .dx = dx};
  backend.batch_norm_backward_apply(apply);
  const ScaleShiftTargets targets(g);
  apply.sum_dy = own.first;
  apply.sum_dy_xhat = own.second;
  apply.dx = {};
  apply.dgamma = targets.dgamma;
  apply.dbeta = targets.dbeta;
  apply.accumulate = targets.accumulate;
  backend.batch_norm_backward_apply(apply);
  if (saved.has_residual) g.set(1, std::move(incoming.dresidual));
  g.set(0, std::move(dx));
}

/// The step from the sums of `count` values per channel to the statistics, in memory of their own.
BatchNormFinish finish_batch_norm(const BatchNormState& state, const Tensor& sum,
                                  const Tensor& square_sum, std::int64_t count, Pass& pass) {
  const auto vector = [&] {
    return Tensor(pass.backend, sum.shape(), state.running_mean->value.dtype());
  };
  BatchNormFinish finish{
      .sum = sum,
      .square_sum = square_sum,
      .running_mean = state.running_mean->value,
      .running_var = state.running_var->value,
      .batches_tracked = state.batches_tracked ? state.batches_tracked->value : Tensor(),
      .saved_mean = vector(),
      .saved_inv_std = vector(),
      .count = count,
      .eps = state.eps,
      .momentum = momentum_of(state, pass)};
  pass.backend.batch_norm_finish(finish);
  return finish;
}

}  // namespace

Variable synchronized_batch_norm(const Variable& x, const BatchNormState& state,
                                 Rectifier rectifier, const Variable& residual, RankSums& ranks,
                                 Pass& pass) {
  const Tensor& input = x.value();
  const std::int64_t channels = input.shape().back();
  const SumsOfChannels sums(pass.backend, channels);
  pass.backend.channel_sums({.x = input, .sum = sums.first, .square_sum = sums.second});
  ranks.sum(sums.both);
  const BatchNormFinish finish = finish_batch_norm(
      state, sums.first, sums.second, input.elements() / channels * ranks.ranks(), pass);
  Tensor y(pass.backend, input.shape(), input.dtype());
  pass.backend.batch_norm_forward({.x = input,
                                   .residual = residual.value(),
                                   .gamma = state.gamma->value,
                                   .beta = state.beta->value,
                                   .y = y,
                                   .saved_mean = finish.saved_mean,
                                   .saved_inv_std = finish.saved_inv_std,
                                   .training = false,
                                   .relu = rectifier.relu,
                                   .ceiling = rectifier.ceiling});
  if (!pass.tape) return Variable(std::move(y));
  const bool has_residual = residual.has_value();
  BatchNormSaved saved{.x = input,
                       .y = rectifier.relu && has_residual ? y : Tensor(),
                       .gamma = state.gamma->value,
                       .beta = state.beta->value,
                       .mean = finish.saved_mean,
                       .inv_std = finish.saved_inv_std,
                       .rectifier = rectifier,
                       .has_residual = has_residual};
  auto backward = [saved = std::move(saved), &ranks](Gradients& g) {
    synchronized_backward(saved, ranks, g);
  };
  return pass.record("batch_norm", y, {x, residual}, {state.gamma, state.beta}, std::move(backward),
                     2);
}

}  // namespace starling::functions::detail
