#pragma once

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/pack_isa.h"

// Loops over rows, for files that are compiled once per instruction set. A row, or part of a long
// one, stays in the L1 cache for several passes, while the next row is prefetched.

namespace starling::cpu::STARLING_ISA {
namespace {

/// A reduction in independent lanes, so that it vectorises.
template <class R, class Fold>
struct Lanes {
  static constexpr Index kCount = 32;
  R lane[kCount];

  [[gnu::always_inline]] explicit Lanes(R nothing) {
    for (Index j = 0; j < kCount; ++j) lane[j] = nothing;
  }
  /// Accumulates f(i) for i < n.
  template <class F>
  [[gnu::always_inline]] void take(Index n, F f) {
    Index i = 0;
    for (; i + kCount <= n; i += kCount) {
      STARLING_LOOP for (Index j = 0; j < kCount; ++j) lane[j] = Fold::of(lane[j], f(i + j));
    }
    for (Index j = 0, rest = n - i; j < rest; ++j) lane[j] = Fold::of(lane[j], f(i + j));
  }
  [[gnu::always_inline]] R result() {
    for (Index half = kCount / 2; half > 0; half /= 2) {
      for (Index j = 0; j < half; ++j) lane[j] = Fold::of(lane[j], lane[j + half]);
    }
    return lane[0];
  }
};
struct Plus {
  template <class R>
  STARLING_HD static R of(R a, R b) {
    return a + b;
  }
};

/// Maximum and minimum; unspecified for NaN.
struct Largest {
  template <class R>
  STARLING_HD static R of(R a, R b) {
    return b > a ? b : a;
  }
};
struct Least {
  template <class R>
  STARLING_HD static R of(R a, R b) {
    return b < a ? b : a;
  }
};

/// Calls f(first, count) for parts of a row.
template <class F>
STARLING_HD void in_parts(Index n, Index part, F f) {
  for (Index i = 0; i < n; i += part) f(i, n - i < part ? n - i : part);
}
constexpr Index kPrefetchInterval = 512;  ///< elements between prefetches of the next row

/// Prefetches n elements.
template <class T>
STARLING_HD void prefetch_range(const T* from, Index n) {
  const char* line = reinterpret_cast<const char*>(from);
  for (Index i = 0; i < n * static_cast<Index>(sizeof(T)); i += 64) __builtin_prefetch(line + i);
}

/// The sum of a row: Σ part(first, count)(i) for i < count, over parts of kStreamBuffer elements;
/// in R within a part, and in double over parts. Prefetches the row at `next`, if not null.
template <class R, class T, class Part>
STARLING_HD double row_sum(Index n, const T* next, Part part) {
  double sum = 0.0;
  in_parts(
      n, kStreamBuffer, [&](Index begin, Index size) __attribute__((always_inline)) {
        const auto f = part(begin, size);
        Lanes<R, Plus> lanes(R(0));
        in_parts(
            size, kPrefetchInterval, [&](Index first, Index count) __attribute__((always_inline)) {
              if (next) prefetch_range(next + begin + first, count);
              lanes.take(
                  count, [=](Index i) __attribute__((always_inline)) { return f(first + i); });
            });
        sum += static_cast<double>(lanes.result());
      });
  return sum;
}

/// Writes rows of n elements: directly, or through a buffer of kStreamBuffer elements.
template <class T>
struct RowOutput {
  using R = Compute<T>;
  T* y;
  R* buffer;
  Index n;
  bool streamed;

  [[gnu::always_inline]] RowOutput(T* to, R* room, Index rows, Index size, bool may_stream)
      : y(to),
        buffer(room),
        n(size),
        streamed(may_stream && streams(to, rows * n, n % kStreamBuffer)) {}
  [[gnu::always_inline]] bool direct() const { return !kIsLow<T> && !streamed; }
  /// Where to write a row's results from `first` on.
  [[gnu::always_inline]] R* room(Index row, Index first) const {
    if constexpr (!kIsLow<T>)
      if (!streamed) return y + row * n + first;
    return buffer;
  }
  /// Stores them, if they are in the buffer.
  [[gnu::always_inline]] void put(Index row, Index first, Index count) const {
    if constexpr (kIsLow<T>) {
      pack(y + row * n + first, buffer, count, streamed);
    } else if (streamed) {
      stream(y + row * n + first, buffer, count);
    }
  }
  [[gnu::always_inline]] void end() const {
    if (streamed) end_stream();
  }
};

/// Reads rows of n elements in R; 16-bit types are converted in a buffer of kStreamBuffer elements.
template <class T>
struct RowInput {
  using R = Compute<T>;
  const T* x;
  R* buffer;
  Index n;
  /// Elements first … first + count - 1 of a row. `again`: the same as in the last call, so that
  /// the buffer can be reused.
  [[gnu::always_inline]] const R* numbers(Index row, Index first, Index count, bool again) const {
    if constexpr (kIsLow<T>) {
      if (again && n <= kStreamBuffer) return buffer;
      STARLING_LOOP for (Index i = 0; i < count; ++i) buffer[i] = widen(x[row * n + first + i]);
      return buffer;
    } else {
      return x + row * n + first;
    }
  }
};

}  // namespace
}  // namespace starling::cpu::STARLING_ISA
