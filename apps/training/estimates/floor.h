#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/training/config/train_config.h"
#include "apps/training/estimates/ceilings.h"
#include "apps/training/tasks/operation_work.h"
#include "apps/training/tasks/training_pass.h"
#include "core/dtype.h"
#include "core/operations/updates.h"
#include "kernels/optimizer.h"
#include "layers/layer.h"

namespace starling {

/// The fused update of `parameters` numbers: the rule's own bytes, `received` neighbours to mix in,
/// and a low-precision copy if `compute` is one.
OperationWork count_update(const OptimizerRule& rule, double parameters, double received,
                           DType dtype, DType compute);

/// Work of a rule with whole matrices in a bucket of these layers, counted from what it issues on
/// shapes. It is products and all else that comes after the pass over single numbers (Muon). A rule
/// that does the whole update in steps of its own (Adafactor) has its bytes in that pass already:
/// its arithmetic is added to `pass`, which is count_update()'s.
std::vector<OperationWork> count_matrices(const OptimizerRule& rule,
                                          const std::vector<LayerExtent>& layers, DType dtype,
                                          OperationWork& pass);

/// A step on a device: the passes of its micro-batches, each `pass`, and the update of `parameters`
/// numbers, which is count_update() by the config's rule and what each parameter's own rule does
/// with whole matrices, whose products run at the rate of the parameters' type.
std::vector<OperationWork> count_step(const TrainConfig& config,
                                      const std::vector<OperationWork>& pass, double parameters,
                                      double received, const Ceilings& device);

struct Floor {
  double bytes = 0.0, flops = 0.0;
  double memory_seconds = 0.0;      ///< the bytes alone
  double arithmetic_seconds = 0.0;  ///< the arithmetic alone
  /// Operations one after another, each as fast as the slower of its two
  double seconds = 0.0;
  bool memory_bound() const { return memory_seconds >= arithmetic_seconds; }
};
Floor floor_of(const std::vector<OperationWork>& work, double flops_per_second,
               double bytes_per_second);

}  // namespace starling
