#include "kernels/composed_conv.h"

#include "core/error.h"

namespace starling {

namespace {

/// What the convolution would have read: relu(scale·x + shift).
Tensor loaded(Backend& backend, const Tensor& x, const NormOnLoad& norm) {
  Tensor y(backend, x.shape(), x.dtype());
  backend.scale_shift({.x = x, .scale = norm.scale, .shift = norm.shift, .y = y, .relu = true});
  return y;
}

}  // namespace

void composed_conv2d_forward(Backend& backend, const Conv2dForward& args) {
  require(static_cast<bool>(args.sum) == static_cast<bool>(args.square_sum), "conv2d", "one of the two sums is missing");
  Conv2dForward plain = args;
  plain.norm = {};
  plain.sum = plain.square_sum = {};
  if (args.norm) plain.x = loaded(backend, args.x, args.norm);
  backend.conv2d_forward(plain);
  if (args.sum) backend.channel_sums({.x = args.y, .sum = args.sum, .square_sum = args.square_sum});
}

void composed_conv2d_backward_data(Backend& backend, const Conv2dBackwardData& args) {
  Conv2dBackwardData plain = args;
  plain.norm = {};
  backend.conv2d_backward_data(plain);
  const NormGradient& norm = args.norm;
  if (!norm) return;
  backend.batch_norm_backward_sums({.x = norm.x,
                                    .dy = args.dx,
                                    .saved_mean = norm.mean,
                                    .saved_inv_std = norm.inv_std,
                                    .gamma = norm.gamma,
                                    .beta = norm.beta,
                                    .masked = args.dx,
                                    .sum_dy = norm.sum_dy,
                                    .sum_dy_xhat = norm.sum_dy_xhat});
}

void composed_conv2d_backward_weights(Backend& backend, const Conv2dBackwardWeights& args) {
  Conv2dBackwardWeights plain = args;
  plain.norm = {};
  if (args.norm) plain.x = loaded(backend, args.x, args.norm);
  backend.conv2d_backward_weights(plain);
}

}  // namespace starling
