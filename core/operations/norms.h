#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/operations/accesses.h"
#include "core/tensor.h"

// Batch and layer normalisation.
namespace starling {

/// ReLU's `ceiling` where there is none. 6 makes it ReLU6: min(max(x, 0), ceiling), whose gradient
/// is masked by 0 < y < ceiling.
inline constexpr double kNoCeiling = std::numeric_limits<double>::infinity();

/// Batch normalisation of x[R,C] or x[N,H,W,C] over all but the last dimension, then + residual
/// (optional), then ReLU if `relu`, with its `ceiling`. In training mean and 1/sqrt(variance + eps)
/// of the batch (biased variance) are saved for the backward pass, and the running statistics move
/// by `momentum` towards the batch's mean and unbiased variance. gamma and beta are optional.
struct BatchNormForward {
  Tensor x, residual, gamma, beta, y;
  Tensor running_mean, running_var;  ///< updated in training, read in inference
  /// [C]; written in training, and in inference where given; in inference without running
  /// statistics these are the statistics
  Tensor saved_mean, saved_inv_std;
  double eps = 1e-5, momentum = 0.1;
  bool training = true, relu = false;
  Tensor batches_tracked;  ///< int64 scalar, optional: one more in training
  double ceiling = kNoCeiling;
  Accesses accesses() const {
    Accesses result = Accesses().read({x, residual, gamma, beta}).write({y});
    if (!training && !running_mean) return result.read({saved_mean, saved_inv_std});
    result.write({saved_mean, saved_inv_std});
    if (!training) return result.read({running_mean, running_var});
    return result.again(bytes_of({x})).aside({running_mean, running_var, batches_tracked});
  }
};

/// The gradient of y may come as the sum of one or two terms (dy, dy2 optional). With `relu`, y is
/// the forward's output and the gradient is masked by 0 < y < ceiling first. `dresidual` (optional)
/// receives that masked sum, and may be dy or dy2 where the caller owns it. dx may be dy, dy2, x or
/// a y that is not needed any more (each element is read before it is written): that saves a
/// tensor's worth of traffic; but dx and dresidual are two tensors. With training = false the saved
/// statistics are constants (inference-mode normalisation).
struct BatchNormBackward {
  Tensor x, y, dy, dy2, gamma;
  Tensor saved_mean, saved_inv_std;
  Tensor dx, dresidual, dgamma, dbeta;
  bool relu = false, accumulate = false;  ///< accumulate: for dgamma and dbeta
  bool training = true;
  /// Optional, and only where the forward pass added no residual: with beta (and gamma, if any) the
  /// mask is found from x again, before y is rounded to x's dtype, and y may be empty. Faster: one
  /// tensor less is read.
  Tensor beta;
  double ceiling = kNoCeiling;
  Accesses accesses() const {
    const Tensor mask = relu ? y : Tensor();
    Accesses result = Accesses()
                          .read({x, mask, dy, dy2, gamma, beta, saved_mean, saved_inv_std})
                          .write({dx, dresidual})
                          .output(accumulate, {dgamma, dbeta});
    if (!training) return result;
    // The sums come first. The second pass may read the masked sum that the first one writes.
    const double incoming = bytes_of({mask, dy, dy2});
    return result.again(bytes_of({x}) +
                        (dresidual ? std::min(incoming, bytes_of({dresidual})) : incoming));
  }
};

// A batch norm in steps, for convolutions that carry out parts of it (Conv2dForward::norm and sum,
// Conv2dBackwardData::norm): one pass over the data for each step that no convolution takes over.
// Per-channel: [C], fp64 for fp64, else fp32, but sums may be fp64; data as above.

/// sum[c] = Σ x, square_sum[c] = Σ x², over all but the last dimension.
struct ChannelSums {
  Tensor x, sum, square_sum;
  Accesses accesses() const { return Accesses().read({x}).write({sum, square_sum}); }
};

/// From the sums of `count` values per channel to the statistics: mean and 1/sqrt(biased variance +
/// eps). Moves the running statistics and counts, as BatchNormForward does. Computed in fp64.
struct BatchNormFinish {
  Tensor sum, square_sum;
  Tensor running_mean, running_var, batches_tracked;  ///< optional
  Tensor saved_mean, saved_inv_std;                   ///< written
  std::int64_t count = 0;
  double eps = 1e-5, momentum = 0.1;
  Accesses accesses() const {
    return Accesses()
        .read({sum, square_sum})
        .change({running_mean, running_var})
        .aside({batches_tracked})
        .write({saved_mean, saved_inv_std});
  }
};

/// masked = dy where 0 < gamma·(x - mean)·inv_std + beta < ceiling, else 0 (masked may be dy);
/// sum_dy = Σ masked and sum_dy_xhat = Σ masked·(x - mean)·inv_std, over all but the last
/// dimension.
struct BatchNormBackwardSums {
  Tensor x, dy, saved_mean, saved_inv_std, gamma, beta, masked, sum_dy, sum_dy_xhat;
  double ceiling = kNoCeiling;
  Accesses accesses() const {
    return Accesses()
        .read({x, dy, saved_mean, saved_inv_std, gamma, beta})
        .write({masked, sum_dy, sum_dy_xhat});
  }
};

/// The last step: dx = gamma·inv_std·(dy - sum_dy/n - x̂·sum_dy_xhat/n), n = elements / C, dy being
/// masked already; dgamma = sum_dy_xhat and dbeta = sum_dy, added where `accumulate`. dx may be dy
/// or x.
struct BatchNormBackwardApply {
  Tensor x, dy, gamma, saved_mean, saved_inv_std, sum_dy, sum_dy_xhat, dx, dgamma, dbeta;
  bool accumulate = false;
  Accesses accesses() const {
    return Accesses()
        .read({x, dy, gamma, saved_mean, saved_inv_std, sum_dy, sum_dy_xhat})
        .write({dx})
        .output(accumulate, {dgamma, dbeta});
  }
};

/// Layer normalisation of x[R,C] over C; gamma[C], beta[C]. mean and inv_std are [R].
struct LayerNormForward {
  Tensor x, gamma, beta, y, saved_mean, saved_inv_std;
  double eps = 1e-5;
  Accesses accesses() const {
    return Accesses().read({x, gamma, beta}).write({y, saved_mean, saved_inv_std});
  }
};

struct LayerNormBackward {
  Tensor x, dy, gamma, saved_mean, saved_inv_std, dx, dgamma, dbeta;
  bool accumulate = false;
  Accesses accesses() const {
    return Accesses()
        .read({x, dy, gamma, saved_mean, saved_inv_std})
        .write({dx})
        .output(accumulate, {dgamma, dbeta});
  }
};

}  // namespace starling
