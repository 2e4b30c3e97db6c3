#pragma once

#include "core/operations/map_function.h"
#include "kernels/cuda/device/device.h"

// Arguments of a compiled expression's kernel (libraries/map_source.h). NVRTC compiles this header
// and the others that the generated source includes, with our own minimal headers of the standard
// library; so they must not use more than these provide.
namespace starling::cuda {

inline constexpr int kMapOuter = 5;  ///< dimensions except the last

/// Arguments of one launch. Strides are in elements.
struct MapArguments {
  const void* in[kMapTensors];
  void* out[kMapOutputs];
  double numbers[kMapMostNumbers];
  float narrow_numbers[kMapMostNumbers];
  /// Numbers of threads that process a pack each, then of threads that process one element of the
  /// tail; packs of a row
  Index packs, tail, row_packs;
  Index size[kMapOuter], stride[kMapTensors][kMapOuter];
};

}  // namespace starling::cuda
