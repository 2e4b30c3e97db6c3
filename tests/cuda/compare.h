#pragma once

#include "kernels/cpu/cpu_backend.h"

namespace starling::tests {

/// The CPU that results are compared with: without fused multiply-add, as the shim computes.
inline Backend& plain_cpu() {
  static CpuBackend backend(1, cpu::Isa::kScalar);
  return backend;
}

inline constexpr DType kFloatingTypes[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16,
                                           DType::kFloat16};

}  // namespace starling::tests
