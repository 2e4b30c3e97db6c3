#include "kernels/math/codec.h"

#include "kernels/cpu/kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace starling::cpu::STARLING_ISA {
namespace {

// Vectors are written out: of arrays the compiler keeps none in registers from one turn to the
// next.
#if defined(__AVX512F__)
constexpr Index kLanes = 16;
#elif defined(__AVX__)
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

/// Lane j is lane j ^ step of v.
template <class Vector>
static inline __attribute__((always_inline)) Vector swapped(Vector v, std::int32_t step) {
#if defined(__clang__)
  Vector result = v;
  for (Index j = 0; j < kLanes; ++j) result[j] = v[j ^ step];
  return result;
#else
  Bits place;
  for (Index j = 0; j < kLanes; ++j) place[j] = static_cast<std::int32_t>(j);
  return __builtin_shuffle(v, place ^ step);
#endif
}

/// The number that `choose` leaves of a vector's numbers, taken in pairs, pairs of pairs and so on.
template <class Vector, class F>
static inline __attribute__((always_inline)) auto fold(Vector v, F choose) {
#pragma GCC unroll 4
  for (std::int32_t step = kLanes / 2; step > 0; step /= 2) v = choose(v, swapped(v, step));
  return v[0];
}

template <class Vector>
static inline __attribute__((always_inline)) Vector larger(Vector a, Vector b) {
  return a > b ? a : b;
}
template <class Vector>
static inline __attribute__((always_inline)) Vector smaller(Vector a, Vector b) {
  return a < b ? a : b;
}
/// |x| as integers, which order as |x| does; what is no number comes last.
template <class T>
static inline __attribute__((always_inline)) Bits sizes_at(const T* x) {
  return (Bits)numbers_at(x) & 0x7fffffff;
}

template <class T>
static void range(bool min_max, const T* x, Index n, float* least, float* most) {
  std::int32_t largest = 0;
  Index i = 0;
  if (min_max && n >= 2 * kLanes) {
    Bits size0 = {}, size1 = {};
    Floats low0 = Floats{} + *least, low1 = low0, high0 = Floats{} + *most, high1 = high0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
      const Floats first = numbers_at(x + i), second = numbers_at(x + i + kLanes);
      size0 = larger(sizes_at(x + i), size0), size1 = larger(sizes_at(x + i + kLanes), size1);
      low0 = smaller(first, low0), low1 = smaller(second, low1);
      high0 = larger(first, high0), high1 = larger(second, high1);
    }
    largest = fold(larger(size0, size1), larger<Bits>);
    *least = fold(smaller(low0, low1), smaller<Floats>);
    *most = fold(larger(high0, high1), larger<Floats>);
  } else if (n >= 4 * kLanes) {
    Bits size0 = {}, size1 = {}, size2 = {}, size3 = {};
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
      size0 = larger(sizes_at(x + i), size0), size1 = larger(sizes_at(x + i + kLanes), size1);
      size2 = larger(sizes_at(x + i + 2 * kLanes), size2),
      size3 = larger(sizes_at(x + i + 3 * kLanes), size3);
    }
    largest = fold(larger(larger(size0, size1), larger(size2, size3)), larger<Bits>);
  }
  for (; i < n; ++i) {
    const float value = static_cast<float>(x[i]);
    const std::int32_t bits = __builtin_bit_cast(std::int32_t, value) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
    *least = value < *least ? value : *least;
    *most = value > *most ? value : *most;
  }
  const float size_of_all = __builtin_bit_cast(float, largest);
  if (!min_max) *least = -size_of_all, *most = size_of_all;
  if (largest > 0x7f800000) *least = *most = size_of_all;  // NaN
}

/// x + kInteger has x, rounded to even, in its lowest bits, where |x| < 2^22; less kInteger it is
/// that integer.
constexpr float kInteger = 0x1.8p23f;

// Conversions from 32-bit lanes to their lowest bytes and back: the compiler takes lane by lane for
// what is one instruction or two.
#if defined(__AVX512F__)
// The mask is for g++ 12, which says wrongly of the forms without one that they read what was never
// written.
constexpr __mmask16 kAll = 0xffff;
static inline __attribute__((always_inline)) void put_bytes(Floats with_integers,
                                                            std::uint8_t* codes) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes),
                   _mm512_maskz_cvtepi32_epi8(kAll, (__m512i)with_integers));
}
static inline __attribute__((always_inline)) Floats signed_bytes(const std::uint8_t* codes) {
  return (Floats)_mm512_maskz_cvtepi32_ps(
      kAll,
      _mm512_maskz_cvtepi8_epi32(kAll, _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))));
}
static inline __attribute__((always_inline)) Floats unsigned_bytes(const std::uint8_t* codes) {
  return (Floats)_mm512_maskz_cvtepi32_ps(
      kAll,
      _mm512_maskz_cvtepu8_epi32(kAll, _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))));
}
constexpr bool kHasVectors = true;
#elif defined(__AVX2__)
static inline __attribute__((always_inline)) void put_bytes(Floats with_integers,
                                                            std::uint8_t* codes) {
  const __m256i lowest =
      _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                       0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i bytes = _mm256_shuffle_epi8((__m256i)with_integers, lowest);
  const __m128i all =
      _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(codes), all);
}
static inline __attribute__((always_inline)) Floats signed_bytes(const std::uint8_t* codes) {
  return (Floats)_mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes))));
}
static inline __attribute__((always_inline)) Floats unsigned_bytes(const std::uint8_t* codes) {
  return (Floats)_mm256_cvtepi32_ps(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes))));
}
constexpr bool kHasVectors = true;
#else
static inline void put_bytes(Floats, std::uint8_t*) {}
static inline Floats signed_bytes(const std::uint8_t*) { return Floats{}; }
static inline Floats unsigned_bytes(const std::uint8_t*) { return Floats{}; }
constexpr bool kHasVectors = false;  // loops it is
#endif

/// Int8Code's codes by a product with 1/scale, which takes a fraction of a division's time. It lies
/// within 2.5e-5 codes of the quotient: |x| is 127 scales at most, and three roundings change it by
/// 2^-24 each. So both round alike, but close to the middle between two codes. Returns how many
/// numbers, a multiple of kLanes, are done; none where one lies there (one block of 256 in fifty).
template <class T>
static Index encode_vectors(math::Int8Code code, const T* x, Index n, std::uint8_t* codes) {
  if (!kHasVectors || !(code.scale > 1e-30f && code.scale < 1e30f))
    return 0;  // scale or its inverse might be denormal, infinite or no number
  const float inverse = 1.0f / code.scale;
  Bits furthest = {};  // from its code, of all: as bits, which order as the numbers do
  Index i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Floats level = numbers_at(x + i) * inverse, with_integer = level + kInteger;
    const Bits off = (Bits)(level - (with_integer - kInteger)) & 0x7fffffff;
    furthest = larger(off, furthest);
    put_bytes(with_integer, codes + i);
  }
  if (fold(furthest, larger<Bits>) >= __builtin_bit_cast(std::int32_t, 0.49996f)) return 0;
  return i;
}

/// Makes the codes of MinMax8Code, which need no division. A NaN's block has a scale that is
/// none.
template <class T>
static Index encode_vectors(math::MinMax8Code code, const T* x, Index n, std::uint8_t* codes) {
  // Values with little variation, far from 0
  if (!kHasVectors || !(code.upper < 0x1p20f && code.lower > -0x1p20f)) return 0;
  const Floats upper = Floats{} + code.upper, zero = {};
  Index i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Floats level = (numbers_at(x + i) * code.scale + kInteger) - kInteger;
    const Floats q = smaller(level, upper) - code.lower;
    put_bytes(larger(q, zero) + kInteger, codes + i);
  }
  return i;
}

template <class T>
static void encode8(bool min_max, float least, float most, const T* x, Index n, std::uint8_t* codes,
                    float* head) {
  math::with_code(
      min_max, [&](auto kind) __attribute__((always_inline)) {
        const auto code = decltype(kind)::of(least, most);
        if (head) code.put(head);
        for (Index i = encode_vectors(code, x, n, codes); i < n; ++i)
          codes[i] = code.encode(static_cast<float>(x[i]));
      });
}

static inline __attribute__((always_inline)) Floats decode_vector(math::Int8Code code,
                                                                  const std::uint8_t* codes) {
  return signed_bytes(codes) * code.scale;
}
static inline __attribute__((always_inline)) Floats decode_vector(math::MinMax8Code code,
                                                                  const std::uint8_t* codes) {
  return (unsigned_bytes(codes) + code.lower) / code.scale;
}

/// The loop of decode8 for codes of one kind; from zero even where a sum of one would do, as -0 + 0
/// is 0.
template <bool two, bool accumulate, class Code, class T>
static inline __attribute__((always_inline)) void sum_decoded(const Code (&code)[2],
                                                              const std::uint8_t* const* codes,
                                                              Index n, const T* weights, T* sum) {
  const std::uint8_t *first = codes[0], *second = codes[1];
  const T weight0 = weights[0], weight1 = two ? weights[1] : T(0);
  Index i = 0;
  if constexpr (kHasVectors && sizeof(T) == sizeof(float)) {
    for (; i + kLanes <= n; i += kLanes) {
      Floats total = {};
      if constexpr (accumulate) total = numbers_at(sum + i);
      total = total + weight0 * decode_vector(code[0], first + i);
      if constexpr (two) total = total + weight1 * decode_vector(code[1], second + i);
      __builtin_memcpy(sum + i, &total, sizeof total);
    }
  }
  STARLING_LOOP for (Index rest = i; rest < n; ++rest) {
    T total = accumulate ? sum[rest] : T(0);
    total = total + weight0 * static_cast<T>(code[0].decode(first[rest]));
    if constexpr (two) total = total + weight1 * static_cast<T>(code[1].decode(second[rest]));
    sum[rest] = total;
  }
}

template <class T>
static void decode8(bool min_max, int terms, const float* const* heads,
                    const std::uint8_t* const* codes, Index n, const T* weights, bool accumulate,
                    T* sum) {
  math::with_code(
      min_max, [&](auto kind) __attribute__((always_inline)) {
        using Code = decltype(kind);
        const bool two = terms == 2;
        const Code code[2] = {Code::from(heads[0]), Code::from(heads[two ? 1 : 0])};
        if (two)
          accumulate ? sum_decoded<true, true>(code, codes, n, weights, sum)
                     : sum_decoded<true, false>(code, codes, n, weights, sum);
        else
          accumulate ? sum_decoded<false, true>(code, codes, n, weights, sum)
                     : sum_decoded<false, false>(code, codes, n, weights, sum);
      });
}

template <class T>
static void encode16(const T* x, Index n, BFloat16* codes) {
  STARLING_LOOP for (Index i = 0; i < n; ++i) codes[i] = narrow<BFloat16>(static_cast<float>(x[i]));
}

template <class T>
static void decode16(const BFloat16* codes, Index n, T weight, bool accumulate, T* sum) {
  if (accumulate) {
    STARLING_LOOP for (Index i = 0; i < n; ++i) sum[i] += weight * static_cast<T>(widen(codes[i]));
  } else {
    STARLING_LOOP for (Index i = 0; i < n; ++i) sum[i] =
        T(0) + weight * static_cast<T>(widen(codes[i]));
  }
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
