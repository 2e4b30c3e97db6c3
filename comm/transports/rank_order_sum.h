#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace starling {

/// The type of a sum of numbers of a type: the same for fp32 and fp64, fp32 for bf16.
constexpr DType sum_type(DType dtype) {
  return dtype == DType::kBFloat16 ? DType::kFloat32 : dtype;
}

/// out[i] = ((in[0][i] + in[1][i]) + in[2][i]) + …, `inputs` ≥ 1 of them, in sum_type(dtype). out
/// may be one of the inputs of its type. Each element is summed alone and in this order, so its
/// bits do not depend on how a message was cut. Denormals count as zero on every thread.
void sum_in_rank_order(DType dtype, const std::byte* const* in, int inputs, std::int64_t count,
                       std::byte* out);

/// out[i] = Σ_k weights[k] · in[k][i] in the order of k, for fp32 and fp64; out may be one of the
/// inputs.
void weighted_sum_in_order(DType dtype, const std::byte* const* in, const double* weights,
                           int inputs, std::int64_t count, std::byte* out);

}  // namespace starling
