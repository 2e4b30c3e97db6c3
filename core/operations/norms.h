#pragma once

#include <algorithm>
#include <cstdint>

#include "core/operations/accesses.h"
#include "core/operations/rectifier.h"
#include "core/tensor.h"

// Batch and layer normalisation, and softmax.
namespace starling {

/// Batch normalisation of x[R,C] or x[N,H,W,C] over all dimensions but the last, followed by an
/// optional addition of residual and the rectifier. In training, saves the batch's mean and
/// 1/sqrt(biased variance + eps) for the backward pass, and moves the running statistics by
/// `momentum` towards the batch's mean and unbiased variance. gamma and beta are optional; y, too,
/// in training, to compute statistics only.
struct BatchNormForward {
  Tensor x, residual, gamma, beta, y;
  Tensor running_mean, running_var;  ///< updated in training, read in inference
  /// [C]. Written in training, and in inference if given; in inference without running statistics
  /// they are read instead of those
  Tensor saved_mean, saved_inv_std;
  double eps = 1e-5, momentum = 0.1;
  bool training = true;
  Tensor batches_tracked;  ///< int64 scalar, optional: incremented in training
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

/// The gradient of y is dy, or dy + dy2 (optional). With a ReLU, y is the forward pass's output and
/// masks the gradient first. `dresidual` (optional) receives the masked sum, and may be dy or dy2
/// if the caller owns it. dx may be dy, dy2, x, or y if it is not needed any more (each element is
/// read before it is written), which saves memory traffic; but dx and dresidual must differ. With
/// training = false the saved statistics are constants (inference-mode normalisation). If ranks
/// share a batch it is done in two steps, between which they sum over ranks.
struct BatchNormBackward {
  Tensor x, y, dy, dy2, gamma;
  Tensor saved_mean, saved_inv_std;
  Tensor dx, dresidual, dgamma, dbeta;
  bool accumulate = false;  ///< for dgamma and dbeta
  bool training = true;
  /// Optional, if the forward pass added no residual: with beta (and gamma, if any) the mask is
  /// recomputed from x, before rounding to x's dtype, and y may be empty. Faster, since y is not
  /// read.
  Tensor beta;
  Rectifier rectifier;
  enum class Sums : std::uint8_t {
    kOwn,      ///< are computed internally
    kWritten,  ///< are the only results, besides dresidual
    kGiven,    ///< are inputs that replace the first pass; without dresidual
  };
  Sums sums = Sums::kOwn;
  /// fp64 [C]: sums over rows of the masked gradient, and of it times x̂; empty for kOwn.
  Tensor sum_dy, sum_dy_xhat;
  Accesses accesses() const {
    const Tensor mask = rectifier.relu ? y : Tensor();
    Accesses result = Accesses().read({x, mask, dy, dy2, gamma, beta, saved_mean, saved_inv_std});
    if (sums == Sums::kWritten) return result.write({dresidual, sum_dy, sum_dy_xhat});
    result.write({dx, dresidual}).output(accumulate, {dgamma, dbeta});
    if (sums == Sums::kGiven) return result.read({sum_dy, sum_dy_xhat});
    if (!training) return result;
    // The first pass computes the sums. The second one may read the masked sum that it wrote.
    const double incoming = bytes_of({mask, dy, dy2});
    return result.again(bytes_of({x}) +
                        (dresidual ? std::min(incoming, bytes_of({dresidual})) : incoming));
  }
};

/// Synchronised batch normalisation: between a BatchNormForward without y and one with given
/// statistics, computes the statistics from sums over ranks: mean and 1/sqrt(biased variance + eps)
/// from the sums of `count` values per channel and of their squares. Updates running statistics and
/// count like BatchNormForward. Sums are fp64 [C], the others fp64 or fp32. Computed in fp64.
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

/// Layer normalisation of x[R,C] over C. gamma[C], beta[C], mean[R] and inv_std[R] are optional.
/// Not centered, it is the RMS norm, without a mean. With `residual`, of x + residual, which is
/// written to `sum`.
struct LayerNormForward {
  Tensor x, gamma, beta, y, saved_mean, saved_inv_std;
  double eps = 1e-5;
  bool centered = true;
  Tensor residual = {}, sum = {};
  Accesses accesses() const {
    return Accesses().read({x, residual, gamma, beta}).write({sum, y, saved_mean, saved_inv_std});
  }
};

/// `term`: added to dx, which may be it.
struct LayerNormBackward {
  Tensor x, dy, gamma, saved_mean, saved_inv_std, dx, dgamma, dbeta, term = {};
  bool accumulate = false, centered = true;
  Accesses accesses() const {
    return Accesses()
        .read({x, dy, gamma, saved_mean, saved_inv_std, term})
        .write({dx})
        .output(accumulate, {dgamma, dbeta});
  }
};

/// Softmax of x along its last dimension, or its logarithm. A row with a NaN, or with an infinite
/// maximum, becomes NaN.
struct SoftmaxForward {
  Tensor x, y;
  bool logarithm = false;
  Accesses accesses() const { return Accesses().read({x}).write({y}); }
};

/// y: the forward pass's output; dx may be dy.
struct SoftmaxBackward {
  Tensor y, dy, dx;
  bool logarithm = false;
  Accesses accesses() const { return Accesses().read({y, dy}).write({dx}); }
};

}  // namespace starling
