#pragma once

#include "core/backend.h"
#include "core/operations/products.h"
#include "kernels/cuda/libraries/cudnn_spec.h"

namespace starling::cuda::shim {

/// A tensor on memory that its owner keeps alive.
Tensor borrowed(Backend& cpu, void* data, const Shape& shape, DType dtype);

/// Does what cuDNN's graph for `spec` would, on memory that the CPU reaches: in fp32, results
/// rounded once to the graph's type. Every bound tensor must be the graph's, and the graph's all
/// bound.
void carry_out(const GraphSpec& spec, const Bindings& bindings, Backend& cpu);

/// Computes a product as cuBLASLt does it.
void multiply(const Matmul& args, Backend& cpu);

}  // namespace starling::cuda::shim
