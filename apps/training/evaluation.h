#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "apps/data/loader.h"
#include "apps/training/state/whole_values.h"
#include "apps/training/tasks/metric.h"
#include "comm/bucket.h"
#include "comm/replica.h"
#include "comm/transport.h"
#include "kernels/optimizer.h"
#include "layers/layer.h"

namespace starling {

struct EvaluationResult {
  std::vector<MetricValue> values;  ///< the task's metrics
  /// That were tested; that could not be read (Dataset::left_out)
  std::int64_t samples = 0, left_out = 0;
  bool stopped = false;  ///< the test was given up; nothing else is said then
  double consensus_distance = 0.0;
  std::vector<double> bucket_consensus;
  /// If requested, and outputs are scores of classes
  Confusions confusion;
};

/// Tests the current model on all ranks' parts of the test set; the result is equal on every rank.
/// Of several views of an image the mean output is used. AgreedError if samples cannot be read, or
/// all are left out. If `stop` returns true on any rank, all abort some batches later. Collective.
/// `each` is called with the outputs of each batch and the indices of its samples.
using EachOutput =
    std::function<void(const TaskOutput& output, std::span<const std::int64_t> samples)>;
EvaluationResult evaluate(const Task& task, Model& model, EvaluationLoader& loader,
                          Backend& backend, Transport& transport, bool confusion = false,
                          const std::function<bool()>& stop = {}, const EachOutput& each = {});

/// A rank's contribution to a weighted mean over ranks: the tensor itself for a weight of 1.
Tensor share_of(const Tensor& tensor, double weight);

/// During its lifetime the model's tensors, low-precision copies too, are those of the mean over
/// all ranks, in separate memory; afterwards this rank's own again. Of divided buckets rank 0 alone
/// has the values of matrices, in host memory. Collective; uses no receive buffers of exchanges.
class MeanModelScope {
 public:
  /// `replica`: whose ranks share the means, which each makes a part of; null: each rank has all.
  /// `weight`: of this rank in the mean of parameters, not of states (Algorithm::mean_weight()).
  /// `evaluated`: OptimizerRule::evaluated().
  MeanModelScope(Model& model, std::vector<Bucket>& buckets, Backend& backend, Transport& transport,
                 Replica* replica = nullptr, double weight = 1.0,
                 const EvaluatedModel& evaluated = {});
  /// For other tensors than the parameters: one per bucket, and one for each of the buffers.
  MeanModelScope(Model& model, const std::vector<Bucket>& buckets, Backend& backend,
                 Transport& transport, Replica* replica, double weight,
                 const std::vector<Tensor>& parameters, const std::vector<Tensor>& model_buffers);
  ~MeanModelScope();
  MeanModelScope(const MeanModelScope&) = delete;
  MeanModelScope& operator=(const MeanModelScope&) = delete;
  /// Averages the model's floating-point buffers over ranks. Collective.
  void average_buffers();
  /// sqrt(mean_i ‖x_i - x̄‖²) of the trained parameters.
  double consensus_distance() const { return consensus_; }
  const std::vector<double>& bucket_consensus() const { return bucket_consensus_; }

 private:
  void keep_own();
  /// Gives rank 0 the values of divided buckets.
  void give_values(const std::vector<Bucket>& buckets, const std::vector<Tensor>& parameters) {
    whole_ = std::make_unique<WholeValues>(buckets, replica_, parameters, transport_.rank() == 0);
  }
  /// The mean over ranks of tensors of the buckets' sizes, in memory that a replica shares.
  std::vector<Tensor> mean_of(const std::vector<Bucket>& buckets, const std::vector<Tensor>& values,
                              double weight);
  /// Whether there is one model alone, so that it is the mean.
  bool alone() const { return transport_.size() == (replica_ ? replica_->size() : 1); }
  /// Makes the model's parameters views into these tensors, one per bucket.
  void show(const std::vector<Bucket>& buckets, const std::vector<Tensor>& values,
            Backend& backend);

  Model& model_;
  Transport& transport_;
  Replica* replica_;
  std::unique_ptr<WholeValues> whole_;
  std::vector<Tensor> own_parameters_, own_low_, own_buffers_;
  double consensus_ = 0.0;
  std::vector<double> bucket_consensus_;
};

}  // namespace starling
