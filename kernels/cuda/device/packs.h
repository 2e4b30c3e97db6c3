#pragma once

#include "kernels/cuda/device/device.h"

// Vector loads and stores of several adjacent elements.
namespace starling::cuda {

/// Loads kCount consecutive elements, 16 bytes at a time. If they fill packs, the address must be a
/// multiple of 16.
template <int kCount, class T>
STARLING_HD void load(const T* from, T (&to)[kCount]) {
  if constexpr (kCount % Pack<T>::kSize == 0) {
#pragma unroll
    for (int p = 0; p < kCount / Pack<T>::kSize; ++p) {
      const Pack<T> pack = reinterpret_cast<const Pack<T>*>(from)[p];
#pragma unroll
      for (int i = 0; i < Pack<T>::kSize; ++i) to[p * Pack<T>::kSize + i] = pack.v[i];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = from[i];
  }
}
template <int kCount, class T>
STARLING_HD void store(const T (&from)[kCount], T* to) {
  if constexpr (kCount % Pack<T>::kSize == 0) {
#pragma unroll
    for (int p = 0; p < kCount / Pack<T>::kSize; ++p) {
      Pack<T> pack;
#pragma unroll
      for (int i = 0; i < Pack<T>::kSize; ++i) pack.v[i] = from[p * Pack<T>::kSize + i];
      store_pack(to + p * Pack<T>::kSize, pack);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = from[i];
  }
}
/// Loads and stores with conversion to and from the type of arithmetic.
template <int kCount, class T>
STARLING_HD void load_wide(const T* from, Compute<T> (&to)[kCount]) {
  T stored[kCount];
  load<kCount>(from, stored);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = widen(stored[i]);
}
template <int kCount, class T>
STARLING_HD void store_narrow(const Compute<T> (&from)[kCount], T* to) {
  T stored[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) stored[i] = narrow<T>(from[i]);
  store<kCount>(stored, to);
}

}  // namespace starling::cuda
