#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace starling {

/// The type of a sum of numbers of a type: the same for fp32 and fp64, fp32 for bf16.
constexpr DType sum_type(DType dtype) {
  return dtype == DType::kBFloat16 ? DType::kFloat32 : dtype;
}

/// out[i] = ((w_0·in[0][i] + w_1·in[1][i]) + w_2·in[2][i]) + …, one input or more, in
/// sum_type(dtype); `weights` null: all are 1. out may be one of the inputs of its type. Each
/// element is summed alone and in this order, so its bits do not depend on how a message was cut.
/// Denormals count as zero on every thread.
void sum_in_order(DType dtype, const std::vector<const std::byte*>& in, const double* weights,
                  std::int64_t count, std::byte* out);

}  // namespace starling
