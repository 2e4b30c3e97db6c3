#pragma once

#include <cstdint>
#include <vector>

#include "core/parameter.h"
#include "layers/layer.h"

namespace starling {

/// What a training pass on shapes alone tells before any memory is taken.
struct ShapeTrace {
  std::vector<Parameter*> ready_order;  ///< the order in which gradients become complete
  std::vector<Parameter*> unused;       ///< trainable, but without gradient
  std::size_t activation_bytes = 0;     ///< peak of activations and their gradients in a pass
};

/// Runs forward and backward of one micro-batch on the meta backend, parameters in `dtype`, activations in `compute` where that is bf16 or
/// fp16, batch norms deferred where asked. The model's tensors have no memory afterwards. An unused parameter is Error(kUsage) with its
/// name unless `allow_unused`.
ShapeTrace trace_shapes(Model& model, std::int64_t batch_size, DType dtype, bool allow_unused, DType compute = DType::kFloat32,
                        bool defer_norms = false);

}  // namespace starling
