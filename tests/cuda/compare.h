#pragma once

#include "core/backend.h"

namespace starling::tests {

/// The CPU that results are compared with: without fused multiply-add, as the shim computes.
Backend& plain_cpu();

inline constexpr DType kFloatingTypes[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16,
                                           DType::kFloat16};

}  // namespace starling::tests
