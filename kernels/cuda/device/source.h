#pragma once

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"

// What an encoding reads, and the residual that it leaves.
namespace starling::cuda {

/// Numbers that a thread takes at once: 16 bytes of fp32, 4 of codes
constexpr int kCodeGroup = 4;

/// What is encoded: v = x - minus + residual; the latter two may be null.
template <class T>
struct Source {
  const T *x, *minus;
  T* residual;
  T decay;

  __device__ __forceinline__ void load_group(Index i, T (&v)[kCodeGroup]) const {
    load<kCodeGroup>(x + i, v);
    T other[kCodeGroup];
    if (minus) {
      load<kCodeGroup>(minus + i, other);
#pragma unroll
      for (int k = 0; k < kCodeGroup; ++k) v[k] = v[k] - other[k];
    }
    if (residual) {
      load<kCodeGroup>(residual + i, other);
#pragma unroll
      for (int k = 0; k < kCodeGroup; ++k) v[k] = v[k] + other[k];
    }
  }
  __device__ __forceinline__ T number(Index i) const {
    T v = x[i];
    if (minus) v = v - minus[i];
    if (residual) v = v + residual[i];
    return v;
  }
  /// residual = decay · (v - decoded).
  __device__ __forceinline__ void keep_rest(Index i, const T (&v)[kCodeGroup],
                                            const T (&decoded)[kCodeGroup]) const {
    if (!residual) return;
    T rest[kCodeGroup];
#pragma unroll
    for (int k = 0; k < kCodeGroup; ++k) rest[k] = decay * (v[k] - decoded[k]);
    store<kCodeGroup>(rest, residual + i);
  }
};

/// `args`: Encode or SparseEncode.
template <class T, class Args>
Source<T> source_of(const Args& args) {
  return {args.x.template data<T>(), args.minus ? args.minus.template data<T>() : nullptr,
          args.residual ? args.residual.template data<T>() : nullptr, static_cast<T>(args.decay)};
}

}  // namespace starling::cuda
