#pragma once

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/pack_isa.h"

// Rows that come from memory once, for the files compiled once per instruction set: between its
// passes a row, or a part of a long one, is in the first cache, and the next row is on its way.

namespace starling::cpu::STARLING_ISA {
namespace {

/// What numbers become, in chains so that it vectorises.
template <class R, class Fold>
struct Lanes {
  static constexpr Index kCount = 32;
  R lane[kCount];

  [[gnu::always_inline]] explicit Lanes(R nothing) {
    for (Index j = 0; j < kCount; ++j) lane[j] = nothing;
  }
  /// Takes f(i) of i < n.
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

/// The larger or the lesser of two. NaN: which one is then left is open.
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

/// Calls f(first, count) for a row's parts.
template <class F>
STARLING_HD void in_parts(Index n, Index part, F f) {
  for (Index i = 0; i < n; i += part) f(i, n - i < part ? n - i : part);
}
constexpr Index kAskedPart = 512;  ///< of a row, between which the next one is asked for

/// Asks for numbers that come next while there is work on others.
template <class T>
STARLING_HD void ask_for(const T* from, Index n) {
  const char* line = reinterpret_cast<const char*>(from);
  for (Index i = 0; i < n * static_cast<Index>(sizeof(T)); i += 64) __builtin_prefetch(line + i);
}

/// The sum of a row: of part(first, count)(i), i < count, for its parts of kStreamBuffer numbers,
/// in R, and then in double; `next`, if any, is asked for.
template <class R, class T, class Part>
STARLING_HD double row_sum(Index n, const T* next, Part part) {
  double sum = 0.0;
  in_parts(
      n, kStreamBuffer, [&](Index begin, Index size) __attribute__((always_inline)) {
        const auto f = part(begin, size);
        Lanes<R, Plus> lanes(R(0));
        in_parts(
            size, kAskedPart, [&](Index first, Index count) __attribute__((always_inline)) {
              if (next) ask_for(next + begin + first, count);
              lanes.take(
                  count, [=](Index i) __attribute__((always_inline)) { return f(first + i); });
            });
        sum += static_cast<double>(lanes.result());
      });
  return sum;
}

/// Where rows of n numbers are written: as they are computed, or from a buffer of kStreamBuffer
/// numbers.
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
  /// Where the numbers from `first` on of a row are to be computed.
  [[gnu::always_inline]] R* room(Index row, Index first) const {
    if constexpr (!kIsLow<T>)
      if (!streamed) return y + row * n + first;
    return buffer;
  }
  /// Writes what is there.
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

/// Rows of n numbers as they are computed with; those of 16-bit types are widened into a buffer of
/// kStreamBuffer.
template <class T>
struct RowInput {
  using R = Compute<T>;
  const T* x;
  R* buffer;
  Index n;
  /// The numbers first … first + count - 1 of a row; `again` where the same of this row were asked
  /// for last, and are still there.
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
