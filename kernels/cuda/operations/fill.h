#pragma once

#include "core/tensor.h"

namespace starling::cuda {

class CudaBackend;

/// Sets every element of x to `value`, rounded or truncated to its dtype.
void fill_numbers(CudaBackend& backend, const Tensor& x, double value);

}  // namespace starling::cuda
