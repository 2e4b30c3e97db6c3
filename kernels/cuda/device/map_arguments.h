#pragma once

#include "core/operations/map_function.h"
#include "kernels/cuda/device/device.h"

// What a launch of a compiled expression (libraries/map_source.h) is given. NVRTC compiles this and
// what else the expression's text includes, with headers of the standard library of our own:
// nothing but what these have is used there.
namespace starling::cuda {

inline constexpr int kMapOuter = 5;  ///< dimensions but the last

/// Of one launch. Strides are in elements.
struct MapArguments {
  const void* in[kMapTensors];
  void* out[kMapOutputs];
  double numbers[kMapMostNumbers];
  float narrow_numbers[kMapMostNumbers];
  /// Threads that take a pack each, and then those that take one place of a tail; packs of a row
  Index packs, tail, row_packs;
  Index size[kMapOuter], stride[kMapTensors][kMapOuter];
};

}  // namespace starling::cuda
