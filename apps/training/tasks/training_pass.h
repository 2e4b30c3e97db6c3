#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/training/tasks/task.h"
#include "core/autograd.h"
#include "core/forwarding_backend.h"
#include "core/parameter.h"

namespace starling {

/// The least that an operation moves through device memory, each input read and each output written
/// once, and what it multiplies and adds. Batch norm's statistics are read twice.
struct OperationWork {
  std::string name;  ///< as in core/operations
  double bytes = 0.0;
  double flops = 0.0;  ///< of convolutions and matrix products, two per multiply-add
  /// The device's, of an operation in another type than the others; 0: as floor_of() is told
  double flops_per_second = 0.0;
};

/// Notes each operation's work on shapes. It holds no tensor, which layers may then overwrite.
class CountingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  std::vector<OperationWork> work;

  void copy(const Tensor& from, const Tensor& to) override {
    work.push_back({"copy", bytes_of({from, to})});
  }
  void fill(const Tensor& x, double) override { work.push_back({"fill", bytes_of({x})}); }

 private:
  bool notes_accesses() const override { return true; }
  void before(std::string_view name, const Accesses& accesses) override {
    work.push_back({std::string(name), accesses.bytes, accesses.flops});
  }
};

/// Hooks and parameters of a training pass. Null functions are skipped.
struct PassSteps {
  double share = 1.0;  ///< factor of the loss: 1 / micro-batches of an update
  /// Whether it is the update's first micro-batch, which overwrites gradients, and its last
  bool first = true, last = true;
  std::function<void()> before_loss;
  std::function<void(const Variable& loss)> before_backward;
  /// Called with the backward pass, which it must run
  std::function<void(const std::function<void()>& run)> backward;
};
/// Forward pass, loss and backward pass of one micro-batch on pass.tape. Returns the loss.
Tensor training_pass(const Task& task, Model& model, const Batch& batch, Pass& pass,
                     const PassSteps& steps = {});

/// The size and the number formats of a micro-batch.
struct PassShape {
  std::int64_t batch_size = 1;
  DType dtype = DType::kFloat32;         ///< of parameters
  DType compute = DType::kFloat32;       ///< of activations, if bf16 or fp16
  bool synchronized_norms = false;       ///< batch norms use statistics over all ranks (RankSums)
  DeviceType device = DeviceType::kCpu;  ///< to train on
  std::optional<Recompute> recompute = {};

  DType activations() const { return is_low_precision(compute) ? compute : dtype; }
};

/// The result of tracing a training pass with shapes only, before any memory is allocated.
struct ShapeTrace {
  std::vector<Parameter*> ready_order;  ///< the order in which gradients become complete
  std::vector<Parameter*> unused;       ///< trainable, but without gradient
  std::size_t activation_bytes = 0;     ///< peak of activations and their gradients in a pass
  /// In order: a parameter whose gradient starts to be written, and how many are ready by then
  struct Begun {
    Parameter* parameter;
    std::size_t ready;
  };
  std::vector<Begun> begun;
  std::vector<OperationWork> work;  ///< of the pass, in order
  /// FLOPs per target of matrix products, if the task counts targets: forward, and backward, which
  /// has twice as many. That is 6 per parameter of a product, plus attention
  double target_flops = 0.0;
};
/// Traces a pass on the meta backend. The model's tensors have no memory afterwards. Error(kUsage)
/// for an unused parameter unless `allow_unused`, and for a layer that does not support the format.
ShapeTrace trace_shapes(const Task& task, Model& model, const PassShape& shape,
                        bool allow_unused = false);

}  // namespace starling
