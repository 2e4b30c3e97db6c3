#pragma once

#include <memory>

#include "core/backend.h"

namespace starling {

/// Σ and Σ² per channel of a convolution's output, gathered by the convolution for the batch norm that may follow.
struct ChannelStatistics {
  Tensor sum, square_sum;
};

/// What the data gradient of the only reader leaves for the batch norm's own gradient: the sums of NormGradient. Empty: it left none, and
/// the gradient is not masked.
struct GatheredSums {
  Tensor sum_dy, sum_dy_xhat;
};

/// A batch norm (with ReLU if `relu`) that is not carried out yet: its output is (relu of) scale·x + shift.
struct DeferredNorm {
  Tensor x, scale, shift;
  Tensor mean, inv_std, gamma, beta;
  bool relu = false;
  std::shared_ptr<GatheredSums> sums;  ///< shared by whoever gathers and the batch norm's backward function
};

/// The output of a deferred batch norm, as a value. Convolutions and sums that can do the norm as they load read it as norm(); for
/// everybody else it is written out, once, as soon as it is asked for.
class PendingNorm {
 public:
  PendingNorm(Backend& backend, DeferredNorm norm) : backend_(&backend), norm_(std::move(norm)) {}
  const DeferredNorm& norm() const { return norm_; }
  bool written() const { return static_cast<bool>(value_); }
  /// The normalised value; issues its computation to the current stream on the first call.
  const Tensor& value();

 private:
  Backend* backend_;
  DeferredNorm norm_;
  Tensor value_;
};

}  // namespace starling
