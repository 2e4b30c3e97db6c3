#pragma once

#include "core/host_device.h"

namespace starling::cuda {

/// A kernel argument that may change between launches of a graph: in a graph it is read from device
/// memory, otherwise it is the value itself.
template <class T>
struct StepScalar {
  T value{};
  const T* from = nullptr;

  STARLING_HD T get() const { return from != nullptr ? *from : value; }
};

}  // namespace starling::cuda
