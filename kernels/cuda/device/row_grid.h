#pragma once

#include <source_location>

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/runtime/launch.h"

// Grids for rows of items, e.g. an image's rows of pixels with some packs of channels each.
// Adjacent threads process adjacent items.
namespace starling::cuda {

inline Launch over_rows(Index rows, Index items, StreamHandle stream,
                        std::source_location where = std::source_location::current()) {
  constexpr unsigned kMost = 65535;
  unsigned x = 1;
  while (x < unsigned{kThreads} && static_cast<Index>(x) < items) x *= 2;
  const unsigned y = kThreads / x;
  const unsigned columns = blocks_for(items, static_cast<int>(x), 1, kMost),
                 lines = blocks_for(rows, static_cast<int>(y), 1, kMost);
  return {{columns, lines}, {x, y}, stream, 0, where};
}

/// Calls f(row, item) for each item, distributed over all threads of a kernel that was launched
/// with over_rows(rows, items, …).
template <class F>
__device__ void for_items(Index rows, Index items, F f) {
  for (Index row = Index{blockIdx.y} * blockDim.y + threadIdx.y; row < rows;
       row += Index{gridDim.y} * blockDim.y) {
    for (Index item = Index{blockIdx.x} * blockDim.x + threadIdx.x; item < items;
         item += Index{gridDim.x} * blockDim.x)
      f(row, item);
  }
}

struct Quotient {
  Index whole, rest;
};
/// Quotient and remainder of nonnegative numbers; with 32-bit arithmetic if possible, which is
/// several times faster.
STARLING_HD Quotient divide(Index a, Index b) {
  if (((a | b) >> 32) == 0) {
    const auto n = static_cast<std::uint32_t>(a), d = static_cast<std::uint32_t>(b), q = n / d;
    return {static_cast<Index>(q), static_cast<Index>(n - q * d)};
  }
  const Index q = a / b;
  return {q, a - q * b};
}

}  // namespace starling::cuda
