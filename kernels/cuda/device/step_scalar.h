#pragma once

#include "core/host_device.h"

namespace starling::cuda {

/// A kernel's argument that may change from launch to launch of a graph: then it lies in device
/// memory, otherwise it is the argument itself.
template <class T>
struct StepScalar {
  T value{};
  const T* from = nullptr;

  STARLING_HD T get() const { return from != nullptr ? *from : value; }
};

}  // namespace starling::cuda
