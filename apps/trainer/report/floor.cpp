#include "apps/trainer/report/floor.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "core/autograd.h"
#include "core/forwarding_backend.h"

namespace starling {

namespace {

/// Notes each operation's work. No tensor is held, since a second handle would change what the layers overwrite in place.
class CountingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  std::vector<OperationWork> take() { return std::move(work_); }

  void copy(const Tensor& from, const Tensor& to) override { work_.push_back({"copy", bytes_of({from, to})}); }
  void fill(const Tensor& x, double) override { work_.push_back({"fill", bytes_of({x})}); }

 private:
  bool notes_accesses() const override { return true; }
  void before(std::string_view name, const Accesses& accesses) override {
    work_.push_back({std::string(name), accesses.bytes, accesses.flops});
  }

  std::vector<OperationWork> work_;
};

}  // namespace

double Ceilings::flops(DType compute, bool tf32) const {
  if (compute == DType::kFloat64) return fp64_flops;
  if (compute == DType::kFloat32) return tf32 ? tf32_flops : fp32_flops;
  return low_flops;
}

Ceilings h200_ceilings() { return {"H200", 4.3e12, 790e12, 67e12, 395e12, 67e12}; }

std::vector<OperationWork> count_pass(const Task& task, Model& model, const PassShape& shape) {
  const auto meta = make_meta_backend();
  CountingBackend backend(*meta);
  model.allocate(backend, shape.dtype, shape.compute);
  {
    Tape tape(backend);
    Pass pass{.backend = backend, .tape = &tape, .training = true, .defer_norms = shape.defer_norms};
    training_pass(task, model, empty_batch(task.tensors(), backend, shape.batch_size, shape.activations()), pass);
  }
  model.drop_memory();
  return backend.take();
}

double low_gradient_elements(const Model& model, DType compute) {
  double count = 0.0;
  if (!is_low_precision(compute)) return count;
  for (const Parameter* parameter : model.parameters()) {
    const bool convolution = parameter->product && parameter->layout == TensorLayout::kConvWeight;
    if (convolution && parameter->trainable) count += static_cast<double>(parameter->shape.elements());
  }
  return count;
}

OperationWork count_update(const OptimizerRule& rule, double parameters, double received, DType dtype, DType compute,
                           double low_gradients) {
  const auto element = static_cast<double>(size_of(dtype));
  double bytes = static_cast<double>(rule.bytes_per_parameter(static_cast<int>(size_of(dtype)))) + received * element;
  if (is_low_precision(compute)) bytes += static_cast<double>(size_of(compute));
  return {"update", parameters * bytes - low_gradients * (element - static_cast<double>(size_of(compute))), 0.0};
}

Floor floor_of(const std::vector<OperationWork>& work, double flops_per_second, double bytes_per_second) {
  Floor floor;
  for (const OperationWork& operation : work) {
    floor.bytes += operation.bytes;
    floor.flops += operation.flops;
    floor.seconds += std::max(operation.bytes / bytes_per_second, operation.flops / flops_per_second);
  }
  floor.memory_seconds = floor.bytes / bytes_per_second;
  floor.arithmetic_seconds = floor.flops / flops_per_second;
  return floor;
}

}  // namespace starling
