#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace starling {

/// out[i] = ((in[0][i] + in[1][i]) + in[2][i]) + …, `inputs` ≥ 1 of them, for fp32 and fp64. out may be one of the inputs. Each
/// element is summed alone and in this order, so its bits do not depend on how a message was cut. Denormals count as zero on every thread.
void sum_in_rank_order(DType dtype, const std::byte* const* in, int inputs, std::int64_t count, std::byte* out);

}  // namespace starling
