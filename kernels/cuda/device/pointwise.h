#pragma once

#include <array>
#include <cstdint>
#include <source_location>

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/packs.h"
#include "kernels/cuda/runtime/launch.h"

// Elementwise kernels from functors. A functor has its number of inputs, and an operator() that
// processes N elements in the type of arithmetic:
//
//     template <class T> struct Sum {
//       static constexpr int kInputs = 2;
//       template <int N>
//       STARLING_HD void operator()(Index first, const T (&x)[2][N], T (&y)[N]) const {
//         for (int i = 0; i < N; ++i) y[i] = x[0][i] + x[1][i];
//       }
//     };
//     pointwise<T, T>(stream, n, {a, b}, y, Sum<Compute<T>>{});
//
// `first` is the index of element 0 of the N. The output may be an input: every element is read
// before it is written, by the same thread.
namespace starling::cuda {

namespace detail {

template <class From, class To, int kInputs>
struct PointwiseArguments {
  const From* in[kInputs];
  To* out;
  Index n;
  Index head;    ///< elements before the first whole group
  Index groups;  ///< of kPointwiseGroup elements, aligned in every tensor
};

template <class From, class To>
constexpr int kPointwiseGroup =
    Pack<From>::kSize > Pack<To>::kSize ? Pack<From>::kSize : Pack<To>::kSize;
template <int kInputs>
/// Groups that a thread loads before computing
constexpr int kPointwiseUnroll = kInputs > 2 ? 1 : 2;
constexpr int kPointwiseThreads = 256;

template <class F, class From, class To, int kInputs>
__global__ void pointwise_kernel(F f, PointwiseArguments<From, To, kInputs> a) {
  constexpr int kGroup = kPointwiseGroup<From, To>, kUnroll = kPointwiseUnroll<kInputs>;
  const Index threads = Index{gridDim.x} * blockDim.x;
  for (Index base = Index{blockIdx.x} * blockDim.x * kUnroll + threadIdx.x; base < a.groups;
       base += threads * kUnroll) {
    From x[kUnroll][kInputs][kGroup];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const Index group = base + Index{blockDim.x} * u;
      if (group >= a.groups) continue;
#pragma unroll
      for (int k = 0; k < kInputs; ++k) {
        // Up to 3 inputs are never null; of more, some may be.
        if (kInputs <= 3 || a.in[k] != nullptr)
          load<kGroup>(a.in[k] + a.head + group * kGroup, x[u][k]);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const Index group = base + Index{blockDim.x} * u;
      if (group >= a.groups) continue;
      Compute<From> wide[kInputs][kGroup];
#pragma unroll
      for (int k = 0; k < kInputs; ++k) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) wide[k][i] = widen(x[u][k][i]);
      }
      Compute<To> y[kGroup];
      f(a.head + group * kGroup, wide, y);
      store_narrow<kGroup>(y, a.out + a.head + group * kGroup);
    }
  }
  // Elements before and after the groups; all elements if the tensors' alignments differ.
  const Index whole = a.groups * kGroup;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < a.n - whole; i += threads) {
    const Index at = i < a.head ? i : i + whole;
    Compute<From> wide[kInputs][1];
#pragma unroll
    for (int k = 0; k < kInputs; ++k) {
      wide[k][0] = kInputs <= 3 || a.in[k] != nullptr ? widen(a.in[k][at]) : Compute<From>(0);
    }
    Compute<To> y[1];
    f(at, wide, y);
    a.out[at] = narrow<To>(y[0]);
  }
}

}  // namespace detail

/// Casts in the type of arithmetic: fp64 becomes bf16 and fp16 via fp32, as on the CPU.
template <class From, class To>
struct Convert {
  static constexpr int kInputs = 1;
  template <int N>
  STARLING_HD void operator()(Index, const From (&x)[1][N], To (&y)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = static_cast<To>(x[0][i]);
  }
};

/// out[i] = f(in_0[i], in_1[i], …) for i < n on `stream`.
template <class From, class To, class F>
void pointwise(StreamHandle stream, Index n,
               const std::array<const From*, static_cast<std::size_t>(F::kInputs)>& in, To* out,
               const F& f, std::source_location where = std::source_location::current()) {
  constexpr int kInputs = F::kInputs, kGroup = detail::kPointwiseGroup<From, To>;
  if (n <= 0) return;
  detail::PointwiseArguments<From, To, kInputs> a{};
  for (int k = 0; k < kInputs; ++k) a.in[k] = in[static_cast<std::size_t>(k)];
  a.out = out;
  a.n = n;
  for (Index head = 0; head < kGroup && head + kGroup <= n; ++head) {
    bool aligned = packable(out + head);
    for (const From* pointer : in)
      aligned = aligned && (pointer == nullptr || packable(pointer + head));
    if (!aligned) continue;
    a.head = head;
    a.groups = (n - head) / kGroup;
    break;
  }
  const Index rest = n - a.groups * kGroup;
  const unsigned for_groups =
      blocks_for(a.groups, detail::kPointwiseThreads, detail::kPointwiseUnroll<kInputs>);
  const unsigned for_rest = blocks_for(rest, detail::kPointwiseThreads, 4);
  launch(detail::pointwise_kernel<F, From, To, kInputs>,
         {{for_groups > for_rest ? for_groups : for_rest},
          {detail::kPointwiseThreads},
          stream,
          0,
          where},
         f, a);
}

}  // namespace starling::cuda
