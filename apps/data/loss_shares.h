#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "apps/data/dataset.h"
#include "core/autograd.h"
#include "topology/topology.h"

namespace starling {

/// The factor on each micro-batch's loss if some targets are ignored (padding, masked prompts). A
/// micro-batch's loss is the mean over its own counted targets; multiplied by these factors, the
/// loss of an update is the mean over all its counted targets, however they are distributed to
/// micro-batches and ranks.
class LossShares {
 public:
  /// Whether ranks average gradients in the update that begins at this micro-batch of the epoch, so
  /// that its mean is over the targets of all ranks.
  using AveragesGradients = std::function<bool(std::int64_t epoch, std::int64_t batch)>;
  /// The samples of a rank's micro-batches in an epoch, in order.
  using OrderOfRank = std::function<std::vector<std::int64_t>(int rank)>;

  /// `counts`: the counted targets of each training sample (targets_that_count()). `accumulate`:
  /// micro-batches of an update. The ranks of a replica average gradients in all updates.
  LossShares(std::vector<std::int32_t> counts, std::int64_t batch_size, std::int64_t accumulate,
             const RankLayout& site, AveragesGradients averages_gradients);

  /// The factors of a rank's first `batches` micro-batches of an epoch. `order` is only called for
  /// other ranks if they average gradients with this one.
  std::vector<double> of_epoch(std::int64_t epoch, std::int64_t batches, int rank,
                               const OrderOfRank& order) const;

  /// The name of the tensor with a batch's factor: fp64, one number for each sample, all equal. A
  /// tensor, so that a captured graph reads the current value in each step.
  static constexpr const char* kTensor = "loss share";
  /// The loss times the batch's factor.
  static Variable apply(const Batch& batch, const Variable& loss, Pass& pass);

 private:
  std::vector<double> counted_targets(std::span<const std::int64_t> order,
                                      std::int64_t batches) const;

  std::vector<std::int32_t> counts_;
  std::int64_t batch_size_, accumulate_;
  int ranks_, replica_;
  AveragesGradients averages_gradients_;
};

}  // namespace starling
