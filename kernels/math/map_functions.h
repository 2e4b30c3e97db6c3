#pragma once

#include "core/host_device.h"
#include "core/operations/map_function.h"
#include "kernels/math/activations.h"

namespace starling::math {

/// The function of a step of a Map, shared by the CPU and GPUs. Where `function` is a constant,
/// nothing but its value is left.
template <class T>
STARLING_HD T map_function(MapFunction function, T a, T b) {
  (void)b;
  switch (function) {
#define STARLING_MAP_CASE(name, operands, value) \
  case MapFunction::name: return value;
    STARLING_MAP_FUNCTIONS(STARLING_MAP_CASE)
#undef STARLING_MAP_CASE
  }
  return a;
}

}  // namespace starling::math
