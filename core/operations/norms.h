#pragma once

#include <algorithm>
#include <cstdint>

#include "core/operations/accesses.h"
#include "core/operations/rectifier.h"
#include "core/tensor.h"

// Batch and layer normalisation, and softmax.
namespace starling {

/// Batch normalisation of x[R,C] or x[N,H,W,C] over all but the last dimension, then + residual
/// (optional), then its rectifier. In training mean and 1/sqrt(variance + eps)
/// of the batch (biased variance) are saved for the backward pass, and the running statistics move
/// by `momentum` towards the batch's mean and unbiased variance. gamma and beta are optional; so is
/// y in training, for the statistics alone.
struct BatchNormForward {
  Tensor x, residual, gamma, beta, y;
  Tensor running_mean, running_var;  ///< updated in training, read in inference
  /// [C]; written in training, and in inference where given; in inference without running
  /// statistics these are the statistics
  Tensor saved_mean, saved_inv_std;
  double eps = 1e-5, momentum = 0.1;
  bool training = true;
  Tensor batches_tracked;  ///< int64 scalar, optional: one more in training
  Rectifier rectifier;
  Accesses accesses() const {
    Accesses result = Accesses().read({x, residual, gamma, beta}).write({y});
    if (!training && !running_mean) return result.read({saved_mean, saved_inv_std});
    result.write({saved_mean, saved_inv_std});
    if (!training) return result.read({running_mean, running_var});
    return result.again(y ? bytes_of({x}) : 0.0)
        .aside({running_mean, running_var, batches_tracked});
  }
};

/// The gradient of y may come as the sum of one or two terms (dy, dy2 optional). With a ReLU, y is
/// the forward's output and the gradient is masked first. `dresidual` (optional)
/// receives that masked sum, and may be dy or dy2 where the caller owns it. dx may be dy, dy2, x or
/// a y that is not needed any more (each element is read before it is written): that saves a
/// tensor's worth of traffic; but dx and dresidual are two tensors. With training = false the saved
/// statistics are constants (inference-mode normalisation). Where ranks share a batch, it goes in
/// two steps, and they add up the sums in between.
struct BatchNormBackward {
  Tensor x, y, dy, dy2, gamma;
  Tensor saved_mean, saved_inv_std;
  Tensor dx, dresidual, dgamma, dbeta;
  bool accumulate = false;  ///< for dgamma and dbeta
  bool training = true;
  /// Optional, and only where the forward pass added no residual: with beta (and gamma, if any) the
  /// mask is found from x again, before y is rounded to x's dtype, and y may be empty. Faster: one
  /// tensor less is read.
  Tensor beta;
  Rectifier rectifier;
  enum class Sums : std::uint8_t {
    kOwn,      ///< are found on the way
    kWritten,  ///< are all that is found, beside dresidual
    kGiven,    ///< are read in place of a first pass; without dresidual
  };
  Sums sums = Sums::kOwn;
  /// fp64 [C], of the masked gradient and of it times x̂, over the rows; of kOwn none.
  Tensor sum_dy, sum_dy_xhat;
  Accesses accesses() const {
    const Tensor mask = rectifier.relu ? y : Tensor();
    Accesses result = Accesses().read({x, mask, dy, dy2, gamma, beta, saved_mean, saved_inv_std});
    if (sums == Sums::kWritten) return result.write({dresidual, sum_dy, sum_dy_xhat});
    result.write({dx, dresidual}).output(accumulate, {dgamma, dbeta});
    if (sums == Sums::kGiven) return result.read({sum_dy, sum_dy_xhat});
    if (!training) return result;
    // The sums come first. The second pass may read the masked sum that the first one writes.
    const double incoming = bytes_of({mask, dy, dy2});
    return result.again(bytes_of({x}) +
                        (dresidual ? std::min(incoming, bytes_of({dresidual})) : incoming));
  }
};

/// For ranks that add up sums of their batches, between BatchNormForward without y and one with the
/// statistics given. From the sums of `count` values per channel, and of their squares, to the
/// statistics: mean and 1/sqrt(biased variance + eps). Moves the running statistics and counts, as
/// BatchNormForward does. Sums are fp64 [C], the others fp64 or fp32. Computed in fp64.
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

/// Layer normalisation of x[R,C] over C; gamma[C], beta[C]. mean and inv_std are [R]. All of these
/// are optional. Not centered it is the RMS norm: the mean counts as 0, and there is none.
struct LayerNormForward {
  Tensor x, gamma, beta, y, saved_mean, saved_inv_std;
  double eps = 1e-5;
  bool centered = true;
  Accesses accesses() const {
    return Accesses().read({x, gamma, beta}).write({y, saved_mean, saved_inv_std});
  }
};

struct LayerNormBackward {
  Tensor x, dy, gamma, saved_mean, saved_inv_std, dx, dgamma, dbeta;
  bool accumulate = false, centered = true;
  Accesses accesses() const {
    return Accesses()
        .read({x, dy, gamma, saved_mean, saved_inv_std})
        .write({dx})
        .output(accumulate, {dgamma, dbeta});
  }
};

/// Softmax of x along its last dimension, or its logarithm. NaN in a row makes all of it NaN, as
/// does a largest number that is infinite.
struct SoftmaxForward {
  Tensor x, y;
  bool logarithm = false;
  Accesses accesses() const { return Accesses().read({x}).write({y}); }
};

/// From what the forward pass wrote; dx may be dy.
struct SoftmaxBackward {
  Tensor y, dy, dx;
  bool logarithm = false;
  Accesses accesses() const { return Accesses().read({y, dy}).write({dx}); }
};

}  // namespace starling
