#pragma once

#include <string>
#include <vector>

#include "comm/algorithm.h"
#include "comm/algorithms/gradient_norm.h"
#include "kernels/optimizer.h"

namespace starling {

/// What gossip and all-reduce share: the fused update of one bucket on the update stream, with clipping.
class Updater {
 public:
  explicit Updater(const AlgorithmSite& site);

  /// Clipping by the norm over all parameters: needs every gradient before the first update.
  bool needs_all_gradients() const { return site_.clip.norm > 0.0 && !site_.clip.per_bucket; }
  /// True where buckets are updated while the backward pass goes on.
  bool in_backward() const { return site_.in_backward && !needs_all_gradients(); }
  /// Before the updates of a step that clips globally: measures the norm of `scale` × gradients.
  void measure_global_norm(double scale);
  /// x = rule(self_weight·x + Σ weights·received, scale · clip factor · gradient, states), in place. Issued to the update stream, after the
  /// work that the compute stream holds so far.
  void update(int bucket, const StepInfo& info, double scale, double self_weight, const std::vector<Tensor>& received,
              const std::vector<double>& weights);
  /// The compute stream waits for the updates issued so far: the next forward pass reads the parameters.
  void join();

 private:
  AlgorithmSite site_;
  GradientNorm norm_;
  double global_factor_ = 1.0;
  std::vector<std::string> names_;  ///< "bucket 3", for the timeline
};

}  // namespace starling
