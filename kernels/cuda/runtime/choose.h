#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/runtime/runtime.h"

namespace starling::cuda {

/// Device memory of a choice among candidates of `bytes` bytes each, a multiple of 16.
struct Choice {
  const std::int32_t* table = nullptr;    ///< the next place for (place so far, flag)
  const std::byte* candidates = nullptr;  ///< one after the other
  const double* control = nullptr;        ///< the flag is whether control[1] is not 0
  std::int32_t* place = nullptr;          ///< of the choice so far, and then of this one
  std::byte* to = nullptr;                ///< the chosen candidate goes there
  std::size_t bytes = 0;
};
void choose(const Choice& choice, StreamHandle stream);

}  // namespace starling::cuda
