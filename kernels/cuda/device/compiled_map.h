#pragma once

#include "kernels/cuda/device/map_arguments.h"
#include "kernels/cuda/device/packs.h"
#include "kernels/math/map_functions.h"

// What the kernels of compiled expressions (libraries/map_source.h) are made with. NVRTC compiles
// it too, with headers of the standard library of our own: nothing but what these have is used.
namespace starling::cuda {

/// A step's result, rounded as the step that is looked up alone would round it: the compiler may
/// not join a product of one step and a sum of another.
template <MapFunction kFunction>
STARLING_HD float map_result(float a, float b) {
  float result = math::map_function(kFunction, a, b);
#if defined(__CUDA_ARCH__)
  asm("" : "+f"(result));
#endif
  return result;
}
template <MapFunction kFunction>
STARLING_HD double map_result(double a, double b) {
  double result = math::map_function(kFunction, a, b);
#if defined(__CUDA_ARCH__)
  asm("" : "+d"(result));
#endif
  return result;
}

}  // namespace starling::cuda
