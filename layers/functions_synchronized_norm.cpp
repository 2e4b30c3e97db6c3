#include <utility>

#include "core/operations/norms.h"
#include "core/operations/pointwise.h"
#include "core/operations/reduce.h"
#include "layers/functions_norm.h"

namespace starling::functions::detail {
namespace {

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

}  // namespace

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

}  // namespace starling::functions::detail
