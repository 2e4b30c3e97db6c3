#pragma once

#include <cstdint>

namespace starling {

/// `starling-bench update`: the fused update kernel (mix + scale + decay + rule) of one bucket of `parameters` fp32 numbers on `threads`
/// cores, against plain copies that move as many bytes as AdamW with mixing does (32 per parameter), measured alternately in the same run.
/// Prints a table, or one JSON object. Returns the exit status.
int bench_update(std::int64_t parameters, int threads, int repeats, bool json);

}  // namespace starling
