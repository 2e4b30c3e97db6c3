#include "kernels/math/codec.h"

#include "kernels/cpu/kernels.h"

namespace starling::cpu::STARLING_ISA {
namespace {

// Vectors are written out: of arrays the compiler keeps none in registers from one turn to the next.
#if defined(__AVX__)
constexpr Index kLanes = 8;
#else
constexpr Index kLanes = 4;
#endif
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t Bits __attribute__((vector_size(4 * kLanes)));

static inline __attribute__((always_inline)) Floats numbers_at(const float* x) {
  Floats result;
  __builtin_memcpy(&result, x, sizeof result);
  return result;
}
static inline __attribute__((always_inline)) Floats numbers_at(const double* x) {
  Floats result;
  for (Index j = 0; j < kLanes; ++j) result[j] = static_cast<float>(x[j]);
  return result;
}

template <class T>
static void range(bool min_max, const T* x, Index n, float* least, float* most) {
  // |x| as an integer orders as |x| does, and what is no number comes last.
  Bits size[2] = {};
  Floats low[2], high[2];
  for (Index k = 0; k < 2; ++k) low[k] = Floats{} + *least, high[k] = Floats{} + *most;
  Index i = 0;
  if (min_max) {
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
      for (Index k = 0; k < 2; ++k) {
        const Floats value = numbers_at(x + i + k * kLanes);
        const Bits bits = (Bits)value & 0x7fffffff;
        size[k] = bits > size[k] ? bits : size[k];
        low[k] = value < low[k] ? value : low[k];
        high[k] = value > high[k] ? value : high[k];
      }
    }
  } else {
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
      for (Index k = 0; k < 2; ++k) {
        const Bits bits = (Bits)numbers_at(x + i + k * kLanes) & 0x7fffffff;
        size[k] = bits > size[k] ? bits : size[k];
      }
    }
  }
  std::int32_t largest = 0;
  for (; i < n; ++i) {
    const float value = static_cast<float>(x[i]);
    const std::int32_t bits = __builtin_bit_cast(std::int32_t, value) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
    *least = value < *least ? value : *least;
    *most = value > *most ? value : *most;
  }
  const Bits both = size[0] > size[1] ? size[0] : size[1];
  for (Index j = 0; j < kLanes; ++j) largest = both[j] > largest ? both[j] : largest;
  if (min_max) {
    const Floats lower = low[0] < low[1] ? low[0] : low[1], higher = high[0] > high[1] ? high[0] : high[1];
    for (Index j = 0; j < kLanes; ++j) {
      *least = lower[j] < *least ? lower[j] : *least;
      *most = higher[j] > *most ? higher[j] : *most;
    }
  }
  const float size_of_all = __builtin_bit_cast(float, largest);
  if (!min_max) *least = -size_of_all, *most = size_of_all;
  if (largest > 0x7f800000) *least = *most = size_of_all;  // NaN
}

template <class T>
static void encode8(bool min_max, float least, float most, const T* x, Index n, std::uint8_t* codes, float* head) {
  math::with_code(
      min_max, [&](auto kind) __attribute__((always_inline)) {
        using Of = decltype(kind);
        const Of code = Of::of(least, most);
        if (head) code.put(head);
        STARLING_LOOP for (Index i = 0; i < n; ++i) codes[i] = code.encode(static_cast<float>(x[i]));
      });
}

template <class T>
static void decode8(bool min_max, const float* head, const std::uint8_t* codes, Index n, T weight, T* sum) {
  math::with_code(
      min_max, [&](auto kind) __attribute__((always_inline)) {
        const auto code = decltype(kind)::from(head);
        STARLING_LOOP for (Index i = 0; i < n; ++i) sum[i] += weight * static_cast<T>(code.decode(codes[i]));
      });
}

template <class T>
static void encode16(const T* x, Index n, BFloat16* codes) {
  STARLING_LOOP for (Index i = 0; i < n; ++i) codes[i] = narrow<BFloat16>(static_cast<float>(x[i]));
}

template <class T>
static void decode16(const BFloat16* codes, Index n, T weight, T* sum) {
  STARLING_LOOP for (Index i = 0; i < n; ++i) sum[i] += weight * static_cast<T>(widen(codes[i]));
}

template <class T>
static void set(Kernels<T>& table) {
  table.range = range<T>;
  table.encode8 = encode8<T>;
  table.decode8 = decode8<T>;
  table.encode16 = encode16<T>;
  table.decode16 = decode16<T>;
}

}  // namespace

void add_codec(Kernels<float>& table) { set(table); }
void add_codec(Kernels<double>& table) { set(table); }

}  // namespace starling::cpu::STARLING_ISA
