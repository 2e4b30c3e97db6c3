#pragma once

#include <vector>

#include "core/backend.h"
#include "kernels/cuda/runtime/runtime.h"

namespace starling::cuda {

/// The running statistics of batch norms that cuDNN has carried out: moved by `momentum` towards the batch's mean and unbiased variance,
/// and the batch counted. The variance is found from the saved 1/sqrt(variance + eps): exact to rounding of variance + eps. One launch
/// moves those of all norms of a forward pass: whoever issues work calls finish() before anything that could see them.
/// STARLING_BATCHED_STATISTICS=0 launches for each norm at once.
class PendingStatistics {
 public:
  PendingStatistics();

  /// The tensors are kept until finish().
  void add(const BatchNormForward& args, StreamHandle stream);
  bool empty() const { return norms_.empty(); }
  /// Whether what is pending reads or writes some of the tensor's memory.
  bool involves(const Tensor& tensor) const;
  /// Issues what is pending, to the stream of the forward pass.
  void finish();
  /// Forgets it: the forward pass has not been done.
  void drop() noexcept { norms_.clear(); }

 private:
  struct Norm {
    Tensor mean, inv_std, running_mean, running_var, batches_tracked;
    std::int64_t channels = 0, rows = 0;
    double eps = 0.0, momentum = 0.0;
  };
  bool at_once_ = false;
  StreamHandle stream_ = nullptr;
  std::vector<Norm> norms_;
};

}  // namespace starling::cuda
