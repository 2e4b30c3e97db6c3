#include "core/operations/map_function.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows_isa.h"
#include "kernels/math/activations.h"
#include "kernels/math/dropout.h"

namespace starling::cpu::STARLING_ISA {
namespace {

// In all of these the output may be an input: elements are read before they are written.

/// y[i] = f(i), computed in Compute<T>.
template <class T, class F>
static inline void for_each(T* y, Index n, F f) {
  if constexpr (kIsLow<T>) {
    constexpr Index kPiece = 512;
    alignas(64) Compute<T> buffer[kPiece];
    for (Index begin = 0; begin < n; begin += kPiece) {
      const Index count = n - begin < kPiece ? n - begin : kPiece;
      STARLING_LOOP for (Index i = 0; i < count; ++i) buffer[i] = f(begin + i);
      pack(y + begin, buffer, count, false);
    }
  } else {
    STARLING_LOOP for (Index i = 0; i < n; ++i) y[i] = f(i);
  }
}
#define STARLING_VALUE(...) \
  [=](Index i) __attribute__((always_inline)) { return __VA_ARGS__; }

/// A step of a Map on n numbers. o may be a or b.
template <class T>
static void map_step(MapFunction function, const T* pa, const T* pb, T* o, Index n) {
  switch (function) {
#define STARLING_MAP_LOOP(name, operands, value)     \
  case MapFunction::name:                            \
    STARLING_LOOP for (Index i = 0; i < n; ++i) {    \
      [[maybe_unused]] const T a = pa[i], b = pb[i]; \
      o[i] = value;                                  \
    }                                                \
    break;
    STARLING_MAP_FUNCTIONS(STARLING_MAP_LOOP)
#undef STARLING_MAP_LOOP
  }
}

/// Steps leave their results in the first cache, but for those that are outputs; meanwhile the next
/// numbers are asked for. Large outputs go past the caches.
template <class T>
static void map(const MapStep* steps, int count, const T* const* in, const Compute<T>* const* wide,
                const Compute<T>* constants, const MapResult<T>* results, int outputs, Index n) {
  using R = Compute<T>;
  constexpr Index kPiece = 512;
  constexpr bool kDirect = !kIsLow<T>;
  alignas(64) R room[kMapSlots][kPiece];
  static_assert(kMapSlots <= 64);
  const auto bit = [](int slot) { return std::uint64_t{1} << slot; };
  std::uint64_t used = 0;
  for (int s = 0; s < count; ++s)
    used |= bit(steps[s].a) | (operands_of(steps[s].function) > 1 ? bit(steps[s].b) : 0);
  const R* slot[kMapSlots] = {};
  for (int k = 0; k < kMapResults; ++k) {
    const bool varies = k < kMapTensors && (in[k] || wide[k]);
    if (varies || !(used >> k & 1)) continue;
    for (Index i = 0; i < (n < kPiece ? n : kPiece); ++i) room[k][i] = constants[k];
    slot[k] = room[k];
  }
  bool streamed[kMapOutputs];
  for (int r = 0; r < outputs; ++r) {
    // One that lies over an input is in a cache.
    streamed[r] = streams(results[r].y, n, kPiece);
    for (int k = 0; k < kMapTensors; ++k) streamed[r] = streamed[r] && in[k] != results[r].y;
  }
  for (Index begin = 0; begin < n; begin += kPiece) {
    const Index size = n - begin < kPiece ? n - begin : kPiece,
                ahead = begin + 2 * kPiece <= n ? kPiece : 0;
    for (int k = 0; k < kMapTensors; ++k) {
      if (!(used >> k & 1)) continue;
      if (wide[k]) {
        slot[k] = wide[k] + begin;
      } else if (in[k]) {
        if constexpr (kDirect) {
          slot[k] = in[k] + begin;
        } else {
          const T* from = in[k] + begin;
          STARLING_LOOP for (Index i = 0; i < size; ++i) room[k][i] = widen(from[i]);
          slot[k] = room[k];
        }
      }
    }
    for (int s = 0; s < count; ++s) {
      for (int k = s; k < kMapTensors; k += count)
        if (in[k]) ask_for(in[k] + begin + ahead, ahead);
      R* to = room[kMapResults + s];
      if constexpr (kDirect) {
        for (int r = 0; r < outputs; ++r)
          if (results[r].slot == kMapResults + s && !streamed[r]) to = results[r].y + begin;
      }
      const R* a = slot[steps[s].a];
      map_step(steps[s].function, a, operands_of(steps[s].function) > 1 ? slot[steps[s].b] : a, to,
               size);
      slot[kMapResults + s] = to;
    }
    for (int r = 0; r < outputs; ++r) {
      T* to = results[r].y + begin;
      const bool whole = size * static_cast<Index>(sizeof(T)) % 64 == 0;
      if constexpr (!kDirect) {
        pack(to, room[results[r].slot], size, streamed[r] && whole);
      } else if (streamed[r]) {
        const R* from = room[results[r].slot];
        if (whole) {
          stream(to, from, size);
        } else {
          for (Index i = 0; i < size; ++i) to[i] = from[i];
        }
      }
    }
  }
  for (int r = 0; r < outputs; ++r)
    if (streamed[r]) return end_stream();
}

template <class T>
static void add(const T* a, const T* b, T* y, Index n) {
  for_each(y, n, STARLING_VALUE(widen(a[i]) + widen(b[i])));
}

template <class T>
static void dropout(const T* x, T* y, Index first, Index n, double p, std::uint64_t key,
                    std::uint64_t counter) {
  const float threshold = static_cast<float>(p);
  const Compute<T> scale = p < 1.0 ? static_cast<Compute<T>>(1.0 / (1.0 - p)) : Compute<T>(0);
  for (Index i = 0; i < n; i += 4) {
    const math::DropoutMask mask =
        math::dropout_mask(key, counter, static_cast<std::uint64_t>((first + i) / 4), threshold);
    const Index count = n - i < 4 ? n - i : 4;
    for (Index j = 0; j < count; ++j)
      y[first + i + j] = narrow<T>(mask.keep[j] ? widen(x[first + i + j]) * scale : Compute<T>(0));
  }
}

template <class T>
static void weighted_sum(const T* const* in, const Compute<T>* weight, int terms, T* out, Index n,
                         bool accumulate) {
  constexpr Index kPiece = 1024;  // stays in the first cache while the terms go over it
  for (Index begin = 0; begin < n; begin += kPiece) {
    const Index end = begin + kPiece < n ? begin + kPiece : n;
    Compute<T> sum[kPiece];
    for (Index i = 0; i < end - begin; ++i)
      sum[i] = accumulate ? widen(out[begin + i]) : Compute<T>(0);
    for (int k = 0; k < terms; ++k) {
      const T* __restrict from = in[k] + begin;
      const Compute<T> w = weight[k];
      for (Index i = 0; i < end - begin; ++i) sum[i] += w * widen(from[i]);
    }
    for (Index i = 0; i < end - begin; ++i) out[begin + i] = narrow<T>(sum[i]);
  }
}

template <class T>
static double squares(const T* x, Index n) {
  constexpr Index kLanes = 32;
  double lane[kLanes] = {};
  Index i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (Index j = 0; j < kLanes; ++j) {
      const double d = static_cast<double>(widen(x[i + j]));
      lane[j] += d * d;
    }
  }
  double sum = 0.0;
  for (Index j = 0; j < kLanes; ++j) sum += lane[j];
  for (; i < n; ++i) {
    const double d = static_cast<double>(widen(x[i]));
    sum += d * d;
  }
  return sum;
}

// The processor's own conversions of fp16 where it has them; the compiler makes vectors of the
// others.
static void widen_numbers(const BFloat16* x, float* y, Index n) {
  STARLING_LOOP for (Index i = 0; i < n; ++i) y[i] = widen(x[i]);
}
/// Narrows without the instruction for bf16 on purpose: casts keep denormal numbers.
template <class T>
static void narrow_numbers(const float* x, T* y, Index n) {
  narrow_run(y, x, n);
}
static void widen_numbers(const Float16* x, float* y, Index n) {
  Index i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(y + i,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
#endif
  for (; i < n; ++i) y[i] = widen(x[i]);
}
template <class T>
static void set(Kernels<T>& table) {
  if constexpr (kIsLow<T>) {
    table.widen = widen_numbers;
    table.narrow = narrow_numbers<T>;
  }
  table.map = map<T>;
  table.add = add<T>;
  table.dropout = dropout<T>;
  table.weighted_sum = weighted_sum<T>;
  table.squares = squares<T>;
}

}  // namespace

STARLING_DEFINE_ADDERS(add_elementwise)

}  // namespace starling::cpu::STARLING_ISA
