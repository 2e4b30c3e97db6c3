#include <utility>

#include "core/operations/map.h"
#include "core/operations/norms.h"
#include "core/operations/pointwise.h"
#include "layers/functions_norm.h"

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

/// The gradient of the output, which is the residual's too: of all terms, and masked by what
/// followed the norm as far as that needs the norm's output.
Tensor incoming_of(const BatchNormBackward& args, Backend& backend) {
  const auto memory = [&] {
    return args.dresidual ? args.dresidual : Tensor(backend, args.x.shape(), args.x.dtype());
  };
  Tensor dy = args.dy;
  if (args.dy2) {
    const Tensor sum = memory();
    backend.map({MapFunction::kAdd, dy, args.dy2, sum});
    dy = sum;
  }
  if (args.y) {
    const Tensor masked = memory();
    const Activation active = args.ceiling == kNoCeiling ? Activation::kRelu : Activation::kRelu6;
    backend.map({gradient_of(active), args.y, dy, masked});
    dy = masked;
  }
  return dy;
}

}  // namespace

void synchronized_forward(const BatchNormForward& args, RankSums& ranks, Backend& backend) {
  const std::int64_t channels = args.x.shape().back();
  const SumsOfChannels sums(backend, channels);
  backend.channel_sums({.x = args.x, .sum = sums.first, .square_sum = sums.second});
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
  BatchNormForward given = args;  // the statistics are, from here on
  given.running_mean = given.running_var = given.batches_tracked = {};
  given.training = false;
  backend.batch_norm_forward(given);
}

void synchronized_backward(const BatchNormBackward& args, RankSums& ranks, Backend& backend) {
  const std::int64_t channels = args.x.shape().back();
  const auto constant = [&](double value) {
    Tensor tensor(backend, Shape{channels}, args.saved_mean.dtype());
    backend.fill(tensor, value);
    return tensor;
  };
  const Tensor dy = incoming_of(args, backend);
  const bool masks = args.relu && !args.y;
  const SumsOfChannels own(backend, channels), mean(backend, channels);
  // The form 0·x̂ + 1 is positive everywhere: nothing is masked any more.
  const Tensor masked = masks ? Tensor(backend, args.x.shape(), args.x.dtype()) : dy;
  backend.batch_norm_backward_sums({.x = args.x,
                                    .dy = dy,
                                    .saved_mean = args.saved_mean,
                                    .saved_inv_std = args.saved_inv_std,
                                    .gamma = masks ? args.gamma : constant(0.0),
                                    .beta = masks ? args.beta : constant(1.0),
                                    .masked = masked,
                                    .sum_dy = own.first,
                                    .sum_dy_xhat = own.second,
                                    .ceiling = masks ? args.ceiling : kNoCeiling});
  backend.weighted_sum(
      {.in = {own.both}, .weight = {1.0 / ranks.ranks()}, .terms = 1, .out = mean.both});
  ranks.sum(mean.both);
  BatchNormBackwardApply apply{.x = args.x,
                               .dy = masked,
                               .gamma = args.gamma,
                               .saved_mean = args.saved_mean,
                               .saved_inv_std = args.saved_inv_std,
                               .sum_dy = own.first,
                               .sum_dy_xhat = own.second,
                               .dgamma = args.dgamma,
                               .dbeta = args.dbeta,
                               .accumulate = args.accumulate};
  backend.batch_norm_backward_apply(apply);
  apply.sum_dy = mean.first;
  apply.sum_dy_xhat = mean.second;
  apply.dgamma = apply.dbeta = {};
  apply.dx = args.dx;  // in the end, as it may be x or dy
  backend.batch_norm_backward_apply(apply);
}

}  // namespace starling::functions::detail
