#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "apps/training/tasks/operation_work.h"
#include "apps/training/tasks/task.h"
#include "core/autograd.h"
#include "core/parameter.h"

namespace starling {

/// Steps of a training pass besides its three parts. Empty functions do nothing.
struct PassSteps {
  double share = 1.0;  ///< factor of the loss: 1 / micro-batches of an update
  /// Micro-batch of its update: the first overwrites gradients, the last reports them ready
  bool first = true, last = true;
  std::function<void()> before_loss;
  std::function<void(const Variable& loss)> before_backward;
  /// Runs the backward pass, where something goes around it
  std::function<void(const std::function<void()>& run)> backward;
};
/// Forward pass, loss and backward pass of one micro-batch on pass.tape: the one place where they
/// are put together. Returns the loss.
Tensor training_pass(const Task& task, Model& model, const Batch& batch, Pass& pass,
                     const PassSteps& steps = {});

/// The size and the number formats of a micro-batch.
struct PassShape {
  std::int64_t batch_size = 1;
  DType dtype = DType::kFloat32;         ///< of parameters
  DType compute = DType::kFloat32;       ///< of activations where that is bf16 or fp16
  bool synchronized_norms = false;       ///< batch norms are over all ranks (RankSums)
  DeviceType device = DeviceType::kCpu;  ///< that trains

  DType activations() const { return is_low_precision(compute) ? compute : dtype; }
};

/// What a training pass on shapes alone tells before any memory is taken.
struct ShapeTrace {
  std::vector<Parameter*> ready_order;  ///< the order in which gradients become complete
  std::vector<Parameter*> unused;       ///< trainable, but without gradient
  std::size_t activation_bytes = 0;     ///< peak of activations and their gradients in a pass
  /// A parameter whose gradient is begun, and how many are ready by then: in their order
  struct Begun {
    Parameter* parameter;
    std::size_t ready;
  };
  std::vector<Begun> begun;
  std::vector<OperationWork> work;  ///< of the pass, in order
  /// Where the task counts targets: a target's products, forward and backward, which are twice as
  /// many; 6 for each parameter of a product, and attention's own
  double target_flops = 0.0;
};
/// Runs one on the meta backend. The model's tensors have no memory afterwards. An unused parameter
/// is Error(kUsage) with its name unless `allow_unused`, and so is a layer that does not compute in
/// that format.
ShapeTrace trace_shapes(const Task& task, Model& model, const PassShape& shape,
                        bool allow_unused = false);

}  // namespace starling
