#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <type_traits>

#include "kernels/cpu/storage.h"

// Stores of results in files that are compiled once per instruction set: conversion to the storage
// type, and streaming stores where they pay off. For 16-bit types kernels write fp32 to a buffer in
// the L1 cache, which is converted from there, since compilers do not vectorise with the
// processor's conversion instructions.

namespace starling::cpu::STARLING_ISA {
namespace {

using Index = std::int64_t;

constexpr Index kStreamBuffer = 4096;  // elements
// bytes; smaller results may still be in a cache when they are read
constexpr Index kStreamFrom = Index{4} << 20;

/// Whether a result of `elements`, in lines of `width`, should and can be written with streaming
/// stores. A large result is evicted from the caches before it is read again; bypassing them saves
/// reading the destination first, a third of the traffic.
template <class T>
static inline bool streams(const T* to, Index elements, Index width) {
#if defined(__AVX2__)
  return elements * static_cast<Index>(sizeof(T)) >= kStreamFrom && width <= kStreamBuffer &&
         reinterpret_cast<unsigned long>(to) % 64 == 0 &&
         width * static_cast<Index>(sizeof(T)) % 64 == 0;
#else
  (void)to, (void)elements, (void)width;
  return false;
#endif
}

/// Copies whole cache lines with streaming stores.
template <class T>
static inline void stream(T* to, const T* from, Index n) {
#if defined(__AVX512F__)
  for (Index i = 0; i < n * static_cast<Index>(sizeof(T)) / 64; ++i) {
    _mm512_stream_ps(reinterpret_cast<float*>(to) + i * 16,
                     _mm512_loadu_ps(reinterpret_cast<const char*>(from) + i * 64));
  }
#elif defined(__AVX2__)
  for (Index i = 0; i < n * static_cast<Index>(sizeof(T)) / 32; ++i) {
    const auto* block =
        reinterpret_cast<const float*>(reinterpret_cast<const char*>(from) + i * 32);
    _mm256_stream_ps(reinterpret_cast<float*>(to) + i * 8, _mm256_loadu_ps(block));
  }
#else
  for (Index i = 0; i < n; ++i) to[i] = from[i];
#endif
}

/// Makes streaming stores visible to other threads.
static inline void end_stream() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

/// Converts n elements, rounding to nearest even.
static inline void narrow_run(BFloat16* to, const float* from, Index n) {
  for (Index i = 0; i < n; ++i) to[i] = narrow<BFloat16>(from[i]);
}
static inline void narrow_run(Float16* to, const float* from, Index n) {
  Index i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
#endif
  for (; i < n; ++i) to[i] = narrow<Float16>(from[i]);
}

#if defined(__AVX512F__)
/// narrow_run() with AVX512_BF16, which treats subnormal numbers as zero, as arithmetic on the CPU
/// does.
template <bool kStream>
__attribute__((target("avx512bf16"))) static void narrow_run_bf16(BFloat16* to, const float* from,
                                                                  Index n) {
  Index i = 0;
  for (; i + 32 <= n; i += 32) {
    const auto both = reinterpret_cast<__m512i>(
        _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + i + 16), _mm512_loadu_ps(from + i)));
    if constexpr (kStream) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), both);
    } else {
      _mm512_storeu_si512(to + i, both);
    }
  }
  for (; i < n; ++i) to[i] = narrow<BFloat16>(from[i]);
}
#endif

/// Converts and stores n elements of a 16-bit type; `streamed` requires whole cache lines.
template <class T>
static inline void pack(T* to, const float* from, Index n, bool streamed) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (__builtin_cpu_supports("avx512bf16"))
      return (streamed ? narrow_run_bf16<true> : narrow_run_bf16<false>)(to, from, n);
  }
#endif
  if (!streamed) return narrow_run(to, from, n);
  constexpr Index kPiece = 512;
  alignas(64) unsigned char bytes[kPiece * sizeof(T)];
  T* piece = reinterpret_cast<T*>(bytes);
  for (Index i = 0; i < n; i += kPiece) {
    const Index count = n - i < kPiece ? n - i : kPiece;
    narrow_run(piece, from + i, count);
    stream(to + i, piece, count);
  }
}

}  // namespace
}  // namespace starling::cpu::STARLING_ISA
