#pragma once

#include <memory>
#include <utility>

#include "layers/functions.h"

// What the files of the normalisations share, and convolutions, which carry out parts of them.
namespace starling::functions::detail {

/// Where the gradients of a scale and a shift go. Kernels write both, so a frozen one goes to scratch memory.
struct ScaleShiftTargets {
  Tensor dgamma, dbeta;
  bool accumulate = false;
  ScaleShiftTargets(Gradients& g, const Tensor& gamma);

 private:
  Tensor scratch(Gradients& g, const Tensor& gamma) const;
};

/// A ReLU within an operation: whether there is one, and its ceiling, 6 for ReLU6.
struct Rectifier {
  bool relu = false;
  double ceiling = kNoCeiling;
};
/// Error(kInternal) where the activation is no ReLU, ReLU6 or kNone.
Rectifier rectifier_of(Activation active);

/// What a batch norm keeps for its backward pass. y only with a residual: without one the ReLU's mask is found from x and beta again.
struct BatchNormSaved {
  Tensor x, y, gamma, beta, mean, inv_std;
  Rectifier rectifier;
  bool has_residual = false, training = true;
};
/// Input 0 is x, input 1 the residual; parameters 0 and 1 are gamma and beta. Up to two gradient terms.
void batch_norm_backward(const BatchNormSaved& saved, Gradients& g);

/// Carries out the step from the sums of `count` values per channel to what the batch norm is (BatchNormFinish), in memory of its own.
BatchNormFinish finish_batch_norm(const BatchNormState& state, const Tensor& sum, const Tensor& square_sum, std::int64_t count, Pass& pass);

/// A batch norm in training whose statistics are those of all ranks' batches, of one size each (pass.norms_over). As
/// torch.nn.SyncBatchNorm: the gradients of gamma and beta are sums over this rank's batch alone.
Variable synchronized_batch_norm(const Variable& x, const BatchNormState& state, Rectifier rectifier, const Variable& residual, Pass& pass);

/// Σ and Σ² per channel of a convolution's output, gathered by the convolution for the batch norm that may follow.
struct ChannelStatistics final : ValueNotes {
  ChannelStatistics(Tensor sums, Tensor square_sums) : sum(std::move(sums)), square_sum(std::move(square_sums)) {}
  Tensor sum, square_sum;
};

/// What the data gradient of the only reader leaves for the batch norm's own gradient: the sums of NormGradient. Empty: it left none, and
/// the gradient is not masked.
struct GatheredSums {
  Tensor sum_dy, sum_dy_xhat;
};

/// A batch norm (with what its rectifier says) that is not carried out yet: its output is (relu of) scale·x + shift.
struct DeferredNorm {
  Tensor x, scale, shift;
  Tensor mean, inv_std, gamma, beta;
  Rectifier rectifier;
  std::shared_ptr<GatheredSums> sums;  ///< shared by whoever gathers and the batch norm's backward function
  /// Whether a convolution can do it as it loads: that is made for ReLU without a ceiling.
  bool loads_in_convolutions() const { return rectifier.relu && rectifier.ceiling == kNoCeiling; }
};

/// The output of a deferred batch norm, as a value. Convolutions and sums that can do the norm as they load read it as norm(); for
/// everybody else it is written out, once, as soon as it is asked for.
class PendingNorm final : public LazyValue {
 public:
  PendingNorm(Backend& backend, DeferredNorm norm) : backend_(&backend), norm_(std::move(norm)) {}
  const DeferredNorm& norm() const { return norm_; }

 private:
  Tensor compute() override;
  Backend* backend_;
  DeferredNorm norm_;
};
/// The batch norm that is pending in x, which the reader may carry out itself; null where there is none.
inline const DeferredNorm* pending_norm(const Variable& x) {
  const PendingNorm* pending = x.pending<PendingNorm>();
  return pending ? &pending->norm() : nullptr;
}

/// A batch norm in training whose statistics the convolution before has gathered (ChannelStatistics). With a residual it is carried out;
/// otherwise it stays pending.
Variable deferred_batch_norm(const Variable& x, const BatchNormState& state, Rectifier rectifier, const Variable& residual, Pass& pass);

}  // namespace starling::functions::detail
