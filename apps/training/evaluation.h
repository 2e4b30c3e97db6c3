#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "apps/data/loader.h"
#include "apps/training/tasks/metric.h"
#include "comm/bucket.h"
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
  /// Where asked for and outputs are scores of classes
  Confusions confusion;
};

/// Tests the model as its tensors stand, over all ranks' shares; the same result on every rank.
/// Where the loader shows an image in several views, what is measured is the mean of its outputs.
/// Samples that a rank cannot read (kUsage) are AgreedError on all ranks. Where `stop` says true on
/// any rank, all give the test up some batches later. In both cases the loader has stopped in their
/// midst. Where all samples are left out, that is an AgreedError, too. Collective.
/// `each` gets what came of each batch and the numbers of its test samples.
using EachOutput =
    std::function<void(const TaskOutput& output, std::span<const std::int64_t> samples)>;
EvaluationResult evaluate(const Task& task, Model& model, EvaluationLoader& loader,
                          Backend& backend, Transport& transport, bool confusion = false,
                          const std::function<bool()>& stop = {}, const EachOutput& each = {});

/// What a rank brings to a mean over ranks in which it has this weight: the tensor itself for 1.
Tensor share_of(const Tensor& tensor, double weight);

/// While it lives, the model's tensors (low-precision copies too) are what is evaluated of the mean
/// over all ranks, in memory of their own; then they are this rank's again, untouched. Collective:
/// made on all ranks at the same point, with no exchange's receive buffer involved.
class MeanModelScope {
 public:
  /// `weight`: this rank's in the mean of parameters (Algorithm::mean_weight()), not of states.
  /// `evaluated`: OptimizerRule::evaluated().
  MeanModelScope(Model& model, std::vector<Bucket>& buckets, Backend& backend, Transport& transport,
                 double weight = 1.0, const EvaluatedModel& evaluated = {});
  /// Shows other tensors than the parameters: the ranks' mean of these, one a bucket with its
  /// layout, and of these floating-point buffers, one for each of the model's.
  MeanModelScope(Model& model, const std::vector<Bucket>& buckets, Backend& backend,
                 Transport& transport, double weight, const std::vector<Tensor>& parameters,
                 const std::vector<Tensor>& model_buffers);
  ~MeanModelScope();
  MeanModelScope(const MeanModelScope&) = delete;
  MeanModelScope& operator=(const MeanModelScope&) = delete;
  /// Runs `measure`, which gives the model's floating-point buffers other values in memory of their
  /// own, and makes them the ranks' mean of what it found. Collective.
  void replace_buffers(const std::function<void()>& measure);
  /// sqrt(mean_i ‖x_i - x̄‖²) over parameters as they are trained, and the same per bucket.
  double consensus_distance() const { return consensus_; }
  const std::vector<double>& bucket_consensus() const { return bucket_consensus_; }

 private:
  void keep_own();
  /// Makes the model's parameters views into these, one a bucket.
  void show(const std::vector<Bucket>& buckets, const std::vector<Tensor>& values,
            Backend& backend);
  /// Makes floating-point buffers the ranks' mean.
  void average_buffers(Transport& transport);

  Model& model_;
  Transport& transport_;
  std::vector<Tensor> own_parameters_, own_low_, own_buffers_;
  double consensus_ = 0.0;
  std::vector<double> bucket_consensus_;
};

}  // namespace starling
