#pragma once

#include <vector>

#include "apps/trainer/data/loader.h"
#include "apps/trainer/tasks/metric.h"
#include "comm/bucket.h"
#include "comm/transport.h"
#include "layers/layer.h"

namespace starling {

struct EvaluationResult {
  std::vector<MetricValue> values;  ///< the task's metrics
  std::int64_t samples = 0;
  double consensus_distance = 0.0;
  std::vector<double> bucket_consensus;
};

/// Tests the model as its tensors stand, over all ranks' shares; the same result on every rank.
EvaluationResult evaluate(const Task& task, Model& model, EvaluationLoader& loader, Backend& backend, World& world);

/// While it lives, the model's tensors (low-precision copies too) are the mean over all ranks, in memory of their own; then they are this
/// rank's again, untouched. Collective: made on all ranks at the same point, with no exchange's receive buffer involved.
class MeanModelScope {
 public:
  /// `weight`: this rank's in the mean of parameters (Algorithm::mean_weight()).
  MeanModelScope(Model& model, std::vector<Bucket>& buckets, Backend& backend, Transport& transport, double weight = 1.0);
  ~MeanModelScope();
  MeanModelScope(const MeanModelScope&) = delete;
  MeanModelScope& operator=(const MeanModelScope&) = delete;
  /// sqrt(mean_i ‖x_i - x̄‖²) over parameters, and the same per bucket.
  double consensus_distance() const { return consensus_; }
  const std::vector<double>& bucket_consensus() const { return bucket_consensus_; }

 private:
  Model& model_;
  std::vector<Tensor> own_parameters_, own_low_, own_buffers_;
  double consensus_ = 0.0;
  std::vector<double> bucket_consensus_;
};

}  // namespace starling
