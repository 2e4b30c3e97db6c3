#include "kernels/math/codec.h"

#include <type_traits>

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
static inline __attribute__((always_inline)) __m128i lowest_bytes(Floats with_integers) {
  return _mm512_maskz_cvtepi32_epi8(kAll, (__m512i)with_integers);
}
static inline __attribute__((always_inline)) void put_bytes(Floats with_integers,
                                                            std::uint8_t* codes) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), lowest_bytes(with_integers));
}
static inline __attribute__((always_inline)) Floats signed_numbers(__m128i bytes) {
  return (Floats)_mm512_maskz_cvtepi32_ps(kAll, _mm512_maskz_cvtepi8_epi32(kAll, bytes));
}
static inline __attribute__((always_inline)) Floats signed_bytes(const std::uint8_t* codes) {
  return signed_numbers(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
}
static inline __attribute__((always_inline)) Floats unsigned_bytes(const std::uint8_t* codes) {
  return (Floats)_mm512_maskz_cvtepi32_ps(
      kAll,
      _mm512_maskz_cvtepu8_epi32(kAll, _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))));
}
constexpr bool kHasVectors = true;
#elif defined(__AVX2__)
static inline __attribute__((always_inline)) __m128i lowest_bytes(Floats with_integers) {
  const __m256i lowest =
      _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                       0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i bytes = _mm256_shuffle_epi8((__m256i)with_integers, lowest);
  return _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
}
static inline __attribute__((always_inline)) void put_bytes(Floats with_integers,
                                                            std::uint8_t* codes) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(codes), lowest_bytes(with_integers));
}
static inline __attribute__((always_inline)) Floats signed_numbers(__m128i bytes) {
  return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
static inline __attribute__((always_inline)) Floats signed_bytes(const std::uint8_t* codes) {
  return signed_numbers(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
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
static inline void put_halves(Floats, std::uint8_t*) {}
static inline Floats signed_halves(const std::uint8_t*) { return Floats{}; }
constexpr bool kHasVectors = false;  // loops it is
#endif
#if defined(__AVX2__)
/// The lowest 4 bits of each integer, two in a byte.
static inline __attribute__((always_inline)) void put_halves(Floats with_integers,
                                                             std::uint8_t* codes) {
  const __m128i halves = _mm_and_si128(lowest_bytes(with_integers), _mm_set1_epi8(15)),
                pairs = _mm_maddubs_epi16(halves, _mm_set1_epi16(0x1001)),  // low + 16 · high
      bytes = _mm_packus_epi16(pairs, pairs);
  __builtin_memcpy(codes, &bytes, kLanes / 2);
}
static inline __attribute__((always_inline)) Floats signed_halves(const std::uint8_t* codes) {
  std::int64_t bits = 0;
  __builtin_memcpy(&bits, codes, kLanes / 2);
  const __m128i bytes = _mm_cvtepu8_epi16(_mm_cvtsi64_si128(bits)), sign = _mm_set1_epi8(8),
                halves =
                    _mm_and_si128(_mm_or_si128(bytes, _mm_slli_epi16(bytes, 4)), _mm_set1_epi8(15));
  return signed_numbers(_mm_sub_epi8(_mm_xor_si128(halves, sign), sign));
}
#endif

/// Codes of a symmetric code, and with kRest what they leave of the numbers: rest = decay · (x -
/// decoded). By a product with 1/scale, or by a division. Returns how far the codes' numbers are
/// from whole ones at most, as bits, which order as the numbers do.
template <bool kDivides, bool kRest, int kBits, class T>
static inline __attribute__((always_inline)) std::int32_t encode_vectors(
    math::SymmetricCode<kBits> code, const T* x, Index n, std::uint8_t* codes, float* rest,
    float decay) {
  const float inverse = 1.0f / code.scale;
  Bits furthest = {};
  for (Index i = 0; i < n; i += kLanes) {
    const Floats numbers = numbers_at(x + i),
                 level = kDivides ? numbers / code.scale : numbers * inverse,
                 with_integer = level + kInteger, whole = with_integer - kInteger;
    if constexpr (!kDivides) furthest = larger((Bits)(level - whole) & 0x7fffffff, furthest);
    if constexpr (kBits == 8)
      put_bytes(with_integer, codes + i);
    else
      put_halves(with_integer, codes + i / 2);
    if constexpr (kRest) {
      const Floats left = decay * (numbers - whole * code.scale);
      __builtin_memcpy(rest + i, &left, sizeof left);
    }
  }
  return fold(furthest, larger<Bits>);
}

/// The same of n numbers but for less than a vector's. A product takes a fraction of a division's
/// time, and lies within 2.5e-5 codes of the quotient: |x| is 127 scales at most, and three
/// roundings change it by 2^-24 each. So both round alike, but close to the middle between two
/// codes, where the block is divided (one block of 256 in fifty). Returns how many numbers are
/// done.
template <bool kRest, int kBits, class T>
static Index encode_vectors(math::SymmetricCode<kBits> code, const T* x, Index n,
                            std::uint8_t* codes, float* rest, float decay) {
  if (!kHasVectors || !(code.scale > 1e-30f && code.scale < 1e30f))
    return 0;  // scale or its inverse might be denormal, infinite or no number
  const Index done = n / kLanes * kLanes;
  if (encode_vectors<false, kRest>(code, x, done, codes, rest, decay) >=
      __builtin_bit_cast(std::int32_t, 0.49996f))
    encode_vectors<true, kRest>(code, x, done, codes, rest, decay);
  return done;
}

/// Makes the codes of MinMax8Code, which need no division. A NaN's block has a scale that is
/// none.
template <class T>
static Index encode_min_max(math::MinMax8Code code, const T* x, Index n, std::uint8_t* codes) {
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
static void encode(Code kind, float least, float most, const T* x, Index n, std::uint8_t* codes,
                   float* head, T* rest, T decay) {
  math::with_code(
      kind, [&](auto kind_of) __attribute__((always_inline)) {
        using Kind = decltype(kind_of);
        constexpr bool kSymmetric = !std::is_same_v<Kind, math::MinMax8Code>;
        const auto code = Kind::of(least, most);
        if (head) code.put(head);
        Index i = 0, kept = 0;  // numbers of which codes and rest are there
        if constexpr (!kSymmetric)
          i = encode_min_max(code, x, n, codes);
        else if constexpr (sizeof(T) == sizeof(float))
          i = rest ? encode_vectors<true>(code, x, n, codes, rest, decay)
                   : encode_vectors<false>(code, x, n, codes, rest, decay),
          kept = i;
        else
          i = encode_vectors<false>(code, x, n, codes, nullptr, 0.0f);
        if constexpr (Kind::kBits == 8) {
          for (; i < n; ++i) codes[i] = code.encode(static_cast<float>(x[i]));
        } else {
          for (; i < n; i += 2)
            codes[i / 2] =
                static_cast<std::uint8_t>(code.encode(static_cast<float>(x[i])) |
                                          code.encode(static_cast<float>(x[i + 1])) << 4);
        }
        if (!rest) return;
        STARLING_LOOP for (Index k = kept; k < n; ++k) rest[k] =
            decay * (x[k] - static_cast<T>(code.decode(math::code_at<Kind>(codes, k))));
      });
}

/// out = x - minus + residual; either may be null.
template <class T>
static void difference(const T* x, const T* minus, const T* residual, Index n, T* out) {
  if (!residual) {
    STARLING_LOOP for (Index i = 0; i < n; ++i) out[i] = x[i] - minus[i];
  } else if (!minus) {
    STARLING_LOOP for (Index i = 0; i < n; ++i) out[i] = x[i] + residual[i];
  } else {
    STARLING_LOOP for (Index i = 0; i < n; ++i) out[i] = x[i] - minus[i] + residual[i];
  }
}

/// kLanes numbers from number i on.
template <int kBits>
static inline __attribute__((always_inline)) Floats decode_vector(math::SymmetricCode<kBits> code,
                                                                  const std::uint8_t* codes,
                                                                  Index i) {
  if constexpr (kBits == 8) return signed_bytes(codes + i) * code.scale;
  return signed_halves(codes + i / 2) * code.scale;
}
static inline __attribute__((always_inline)) Floats decode_vector(math::MinMax8Code code,
                                                                  const std::uint8_t* codes,
                                                                  Index i) {
  return (unsigned_bytes(codes + i) + code.lower) / code.scale;
}

/// The loop of decode() for codes of one kind; from zero even where a sum of one would do, as -0 +
/// 0 is 0.
template <bool two, bool accumulate, class Kind, class T>
static inline __attribute__((always_inline)) void sum_decoded(const Kind (&code)[2],
                                                              const std::uint8_t* const* codes,
                                                              Index n, const T* weights, T* sum) {
  const std::uint8_t *first = codes[0], *second = codes[1];
  const T weight0 = weights[0], weight1 = two ? weights[1] : T(0);
  Index i = 0;
  if constexpr (kHasVectors && sizeof(T) == sizeof(float)) {
    for (; i + kLanes <= n; i += kLanes) {
      Floats total = {};
      if constexpr (accumulate) total = numbers_at(sum + i);
      total = total + weight0 * decode_vector(code[0], first, i);
      if constexpr (two) total = total + weight1 * decode_vector(code[1], second, i);
      __builtin_memcpy(sum + i, &total, sizeof total);
    }
  }
  STARLING_LOOP for (Index rest = i; rest < n; ++rest) {
    T total = accumulate ? sum[rest] : T(0);
    total = total + weight0 * static_cast<T>(code[0].decode(math::code_at<Kind>(first, rest)));
    if constexpr (two)
      total = total + weight1 * static_cast<T>(code[1].decode(math::code_at<Kind>(second, rest)));
    sum[rest] = total;
  }
}

template <class T>
static void decode(Code kind, int terms, const float* const* heads,
                   const std::uint8_t* const* codes, Index n, const T* weights, bool accumulate,
                   T* sum) {
  math::with_code(
      kind, [&](auto kind_of) __attribute__((always_inline)) {
        using Kind = decltype(kind_of);
        const bool two = terms == 2;
        const Kind code[2] = {Kind::from(heads[0]), Kind::from(heads[two ? 1 : 0])};
        if (two)
          accumulate ? sum_decoded<true, true>(code, codes, n, weights, sum)
                     : sum_decoded<true, false>(code, codes, n, weights, sum);
        else
          accumulate ? sum_decoded<false, true>(code, codes, n, weights, sum)
                     : sum_decoded<false, false>(code, codes, n, weights, sum);
      });
}

/// How many of n numbers, a multiple of kLanes, have bits of |v| above the pivot.
template <class T>
static inline __attribute__((always_inline)) Index count_above(const T* v, Index n,
                                                               std::int32_t pivot) {
  Bits sum0 = {}, sum1 = {};
  Index i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes)
    sum0 -= sizes_at(v + i) > pivot, sum1 -= sizes_at(v + i + kLanes) > pivot;
  if (i < n) sum0 -= sizes_at(v + i) > pivot;
  sum0 += sum1;
  Index sum = 0;
  for (Index j = 0; j < kLanes; ++j) sum += sum0[j];
  return sum;
}

/// Bit j: whether lane j, 0 or -1, is not 0.
static inline __attribute__((always_inline)) unsigned mask_of(Bits truth) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)truth, (__m512i)truth);
#elif defined(__AVX2__)
  return static_cast<unsigned>(_mm256_movemask_ps((__m256)truth));
#else
  unsigned mask = 0;
  for (Index j = 0; j < kLanes; ++j) mask |= static_cast<unsigned>(truth[j] & 1) << j;
  return mask;
#endif
}
#if defined(__AVX2__) && !defined(__AVX512F__)
/// Row m: the lanes of the mask m, ascending.
struct LanesOfMasks {
  std::uint8_t of[256][8] = {};
  constexpr LanesOfMasks() {
    for (int m = 0; m < 256; ++m)
      for (int j = 0, count = 0; j < 8; ++j)
        if (m >> j & 1) of[m][count++] = static_cast<std::uint8_t>(j);
  }
};
static constexpr LanesOfMasks kLanesOfMasks;
#endif

/// Whole vectors of what is chosen of a block's numbers.
template <class T>
struct Chosen {
  std::uint16_t* places;
  T* values;
  Index count = 0;
};

/// Adds the lanes of the mask, of places `at` and the numbers v; kLanes of both are written,
/// without a branch on how many there are: these are in no order that could be foreseen.
static inline __attribute__((always_inline)) void take_lanes(Chosen<float>& chosen, unsigned mask,
                                                             Bits at, Floats v) {
  std::uint16_t* places = chosen.places + chosen.count;
  float* values = chosen.values + chosen.count;
#if defined(__AVX512F__)
  const auto lanes = static_cast<__mmask16>(mask);
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(places),
      _mm512_maskz_cvtepi32_epi16(0xffff, _mm512_maskz_compress_epi32(lanes, (__m512i)at)));
  _mm512_storeu_ps(values, _mm512_maskz_compress_ps(lanes, (__m512)v));
#elif defined(__AVX2__)
  const __m256i lanes = _mm256_cvtepu8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kLanesOfMasks.of[mask])));
  const __m256 numbers = _mm256_permutevar8x32_ps((__m256)v, lanes);
  const __m256i all = _mm256_permutevar8x32_epi32((__m256i)at, lanes);
  _mm256_storeu_ps(values, numbers);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(places),
                   _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
#else
  for (Index to = 0; mask != 0; mask &= mask - 1, ++to) {
    const int j = __builtin_ctz(mask);
    places[to] = static_cast<std::uint16_t>(at[j]), values[to] = v[j];
  }
#endif
}
static inline __attribute__((always_inline)) void take_lanes(Chosen<double>& chosen, unsigned mask,
                                                             Bits at, const double* v) {
  for (Index to = chosen.count; mask != 0; mask &= mask - 1, ++to) {
    const int j = __builtin_ctz(mask);
    chosen.places[to] = static_cast<std::uint16_t>(at[j]), chosen.values[to] = v[j];
  }
}
static inline __attribute__((always_inline)) Floats lanes_at(const float* v) {
  return numbers_at(v);
}
static inline __attribute__((always_inline)) const double* lanes_at(const double* v) { return v; }
static inline __attribute__((always_inline)) Bits places_at(const std::uint16_t* places) {
  Bits result;
#if defined(__AVX512F__)
  result = (Bits)_mm512_maskz_cvtepu16_epi32(
      kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(places)));
#elif defined(__AVX2__)
  result = (Bits)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(places)));
#else
  for (Index j = 0; j < kLanes; ++j) result[j] = places[j];
#endif
  return result;
}

/// Takes those of n numbers whose |v| has bits above `low`. Returns the largest bits.
template <class T>
static __attribute__((noinline)) std::int32_t take_above(const T* v, Index n, std::int32_t low,
                                                         Chosen<T>& chosen) {
  Bits most = {}, at;
  for (Index j = 0; j < kLanes; ++j) at[j] = static_cast<std::int32_t>(j);
  Index i = 0;
  for (; i + kLanes <= n; i += kLanes, at += static_cast<std::int32_t>(kLanes)) {
    const Bits sizes = sizes_at(v + i);
    most = larger(sizes, most);
    const unsigned mask = mask_of(sizes > low);
    take_lanes(chosen, mask, at, lanes_at(v + i));
    chosen.count += __builtin_popcount(mask);
  }
  std::int32_t largest = fold(most, larger<Bits>);
  for (; i < n; ++i) {
    const auto size = __builtin_bit_cast(std::int32_t, static_cast<float>(v[i])) & 0x7fffffff;
    largest = size > largest ? size : largest;
    if (size <= low) continue;
    chosen.places[chosen.count] = static_cast<std::uint16_t>(i);
    chosen.values[chosen.count++] = v[i];
  }
  return largest;
}

/// Leaves the `wanted` of largest |v|, the first of equal ones; they lie above `low`, and none
/// above `high`. The bits of |v| order as |v| does, so the least of them is found by halving a
/// range of bits; a few that are left in it are sorted. Returns its bits.
template <class T>
static std::int32_t keep_largest(Chosen<T>& chosen, Index wanted, std::int32_t low,
                                 std::int32_t high) {
  const Index n = chosen.count, padded = (n + kLanes - 1) / kLanes * kLanes;
  T* values = chosen.values;
  for (Index i = n; i < padded; ++i) values[i] = T(0), chosen.places[i] = 0;
  // At least `wanted` are above low, and fewer above high. Padding is above -1, as zeros.
  Index above_low = n, above_high = 0;
  constexpr Index kFew = 16;
  while (high - low > 1 && above_low - above_high > kFew) {
    const std::int32_t pivot = low + (high - low) / 2;
    const Index above = count_above(values, padded, pivot);
    const bool more = above >= wanted;
    (more ? low : high) = pivot, (more ? above_low : above_high) = above;
  }
  std::int32_t least = high;
  if (high - low > 1) {
    std::int32_t few[kFew + 2 * kLanes] = {};
    Index count = 0;
    for (Index i = 0; i < padded; i += kLanes) {
      const Bits sizes = sizes_at(values + i);
      for (unsigned in = mask_of((sizes > low) & (sizes <= high)); in != 0; in &= in - 1)
        if (i + __builtin_ctz(in) < n) few[count++] = sizes[__builtin_ctz(in)];
    }
    const Index rank = wanted - above_high;  // the rank-th largest of them
    for (Index k = 0; k < rank; ++k) {
      Index best = k;
      for (Index other = k + 1; other < count; ++other)
        best = few[other] > few[best] ? other : best;
      const std::int32_t taken = few[best];
      few[best] = few[k], few[k] = taken;
    }
    least = few[rank - 1];
  }
  Index equal = wanted - count_above(values, padded, least);
  chosen.count = 0;
  for (Index i = 0; i < padded; i += kLanes) {
    const Bits sizes = sizes_at(values + i);
    unsigned taken = mask_of(sizes > least);
    for (unsigned same = mask_of(sizes == least); same != 0 && equal > 0; same &= same - 1, --equal)
      taken |= same & -same;
    // What is written lies before what is read next.
    take_lanes(chosen, taken, places_at(chosen.places + i), lanes_at(values + i));
    chosen.count += __builtin_popcount(taken);
  }
  return least;
}

/// take_above() of v = x - minus + residual, with residual' = decay · v, while they come from
/// memory.
template <bool kMinus, bool kResidual>
static __attribute__((noinline)) std::int32_t take_differences(const float* x, const float* minus,
                                                               float* residual, float decay,
                                                               Index n, std::int32_t low, float* v,
                                                               Chosen<float>& chosen) {
  Bits most = {}, at;
  for (Index j = 0; j < kLanes; ++j) at[j] = static_cast<std::int32_t>(j);
  for (Index i = 0; i < n; i += kLanes, at += static_cast<std::int32_t>(kLanes)) {
    Floats number = numbers_at(x + i);
    if constexpr (kMinus) number = number - numbers_at(minus + i);
    if constexpr (kResidual) {
      number = number + numbers_at(residual + i);
      const Floats rest = decay * number;
      __builtin_memcpy(residual + i, &rest, sizeof rest);
    }
    __builtin_memcpy(v + i, &number, sizeof number);
    const Bits sizes = (Bits)number & 0x7fffffff;
    most = larger(sizes, most);
    const unsigned mask = mask_of(sizes > low);
    take_lanes(chosen, mask, at, number);
    chosen.count += __builtin_popcount(mask);
  }
  return fold(most, larger<Bits>);
}

/// Candidates are taken in one pass, by a bound below which the last block chose nothing; of these
/// few the largest are kept. Where the bound was too high, it goes down until there are enough.
template <class T>
static float choose(const T* x, const T* minus, T* residual, T decay, Index n, Index wanted,
                    std::int32_t& guess, T* v, std::uint16_t* places, T* values) {
  // A part of the least chosen |v|, in bits: an eighth of an octave
  constexpr std::int32_t kBelow = 1 << 20;
  const bool made = minus || residual;
  Chosen<T> chosen{places, values};
  std::int32_t low = guess > kBelow ? guess - kBelow : -1, largest = 0;
  if (low < 0 && n >= 16 * wanted && n >= 1024) {
    // The first block: by a sample of it
    constexpr Index kSample = 256;
    Chosen<T> sample{places, values};
    if (made) difference(x, minus, static_cast<const T*>(residual), kSample, v);
    const std::int32_t most = take_above(made ? v : x, kSample, -1, sample);
    const std::int32_t least = keep_largest(sample, wanted * kSample / n + 1, -1, most);
    low = least > kBelow ? least - kBelow : -1;
  }
  Index done = 0;  // numbers of v that were made and looked at
  if constexpr (sizeof(T) == sizeof(float)) {
    done = made ? n / kLanes * kLanes : 0;
    if (minus && residual)
      largest = take_differences<true, true>(x, minus, residual, decay, done, low, v, chosen);
    else if (minus)
      largest = take_differences<true, false>(x, minus, residual, decay, done, low, v, chosen);
    else if (residual)
      largest = take_differences<false, true>(x, minus, residual, decay, done, low, v, chosen);
  }
  if (made && done < n) {
    difference(x + done, minus ? minus + done : nullptr,
               static_cast<const T*>(residual ? residual + done : nullptr), n - done, v + done);
    for (Index i = done; residual && i < n; ++i) residual[i] = decay * v[i];
  }
  const T* numbers = made ? v : x;
  for (std::int32_t step = 4 * kBelow; done < n || chosen.count < wanted; step *= 2) {
    if (done == n) low = low > step ? low - step : -1;
    chosen.count = 0;
    largest = take_above(numbers, n, low, chosen);
    done = n;
  }
  guess = keep_largest(chosen, wanted, low, largest);
  return __builtin_bit_cast(float, largest);
}

/// Places of 12 or 16 bits.
static void put_places(const std::uint16_t* places, Index n, bool wide, std::uint8_t* to) {
  if (wide) {
    for (Index i = 0; i < n; ++i) {
      to[2 * i] = static_cast<std::uint8_t>(places[i]);
      to[2 * i + 1] = static_cast<std::uint8_t>(places[i] >> 8);
    }
    return;
  }
  Index i = 0;
#if defined(__AVX2__)
  // Eight at a time are 12 bytes, of 16 that are written.
  const __m128i low_bytes = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  for (; i + 11 <= n; i += 8) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(places + i)),
                  pairs = _mm_madd_epi16(eight, _mm_set1_epi32(4096 << 16 | 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i / 2 * 3),
                     _mm_shuffle_epi8(pairs, low_bytes));
  }
#endif
  for (; i < n; i += 2) {
    const unsigned first = places[i], second = i + 1 < n ? places[i + 1] : 0u;
    std::uint8_t* pair = to + i / 2 * 3;
    pair[0] = static_cast<std::uint8_t>(first);
    pair[1] = static_cast<std::uint8_t>(first >> 8 | second << 4);
    if (i + 1 < n) pair[2] = static_cast<std::uint8_t>(second >> 4);
  }
}

template <class T>
static float encode_values(int bits, float most, const T* values, Index n, std::uint8_t* codes,
                           T* rest, T decay) {
  if (bits == 2) {
    constexpr Index kPiece = 256;
    const auto code = math::FourLevelCode::of(-most, most);
    for (Index first = 0; first < n; first += kPiece) {
      const Index count = n - first < kPiece ? n - first : kPiece;
      std::int32_t q[kPiece] = {};
      STARLING_LOOP for (Index k = 0; k < count; ++k) {
        q[k] = code.encode(static_cast<float>(values[first + k]));
        rest[first + k] = decay * (values[first + k] -
                                   static_cast<T>(code.decode(static_cast<std::uint8_t>(q[k]))));
      }
      for (Index k = 0; k < count; k += 4)
        codes[(first + k) / 4] =
            static_cast<std::uint8_t>(q[k] | q[k + 1] << 2 | q[k + 2] << 4 | q[k + 3] << 6);
    }
    return code.scale;
  }
  float scale = 0.0f;
  const Index even = bits == 8 ? n : n / 2 * 2;
  encode<T>(bits == 8 ? Code::kInt8 : Code::kInt4, -most, most, values, even, codes, &scale, rest,
            decay);
  if (even < n) {  // the last one has a byte for itself
    const auto code = math::Int4Code::of(-most, most);
    codes[even / 2] = code.encode(static_cast<float>(values[even]));
    rest[even] = decay * (values[even] - static_cast<T>(code.decode(codes[even / 2])));
  }
  return scale;
}

/// A place's sum and the weights of those who sent it, which are read and written as one.
template <class T>
struct SumAndWeight {
  typedef T Pair __attribute__((vector_size(2 * sizeof(T))));
};

template <class T>
static void add_values(int bits, float scale, const std::uint8_t* codes, const std::uint8_t* places,
                       bool wide, Index n, Index last, T weight, T* sums) {
  using Pair = typename SumAndWeight<T>::Pair;
  math::with_value_code(
      bits, [&](auto kind) __attribute__((always_inline)) {
        using Kind = decltype(kind);
        const Kind code = Kind::from(&scale);
        constexpr bool kTable = Kind::kBits < 8;
        Pair of_code[kTable ? 1 << Kind::kBits : 1];
        for (int q = 0; kTable && q < 1 << Kind::kBits; ++q)
          of_code[q] =
              Pair{weight * static_cast<T>(code.decode(static_cast<std::uint8_t>(q))), weight};
        const auto add = [&](Index place, std::uint8_t q) __attribute__((always_inline)) {
          if (place > last) return;
          Pair sum;
          __builtin_memcpy(&sum, sums + 2 * place, sizeof sum);
          if constexpr (kTable)
            sum += of_code[q];
          else
            sum += Pair{weight * static_cast<T>(code.decode(q)), weight};
          __builtin_memcpy(sums + 2 * place, &sum, sizeof sum);
        };
        Index k = 0;
        // Four places of 12 bits and what follows are eight bytes.
        for (const Index whole = wide ? -1 : (3 * n + 1) / 2 - 8; k / 2 * 3 <= whole && k + 4 <= n;
             k += 4) {
          std::uint64_t four;
          __builtin_memcpy(&four, places + k / 2 * 3, sizeof four);
          for (int j = 0; j < 4; ++j)
            add(static_cast<Index>(four >> 12 * j & 4095), math::code_at<Kind>(codes, k + j));
        }
        for (; k < n; ++k) add(math::place_at(places, wide, k), math::code_at<Kind>(codes, k));
      });
}

#if defined(__AVX512F__)
static inline __attribute__((always_inline)) void part_pairs(Floats a, Floats b, Floats& first,
                                                             Floats& second) {
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0),
                odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  first = (Floats)_mm512_permutex2var_ps((__m512)a, even, (__m512)b);
  second = (Floats)_mm512_permutex2var_ps((__m512)a, odd, (__m512)b);
}
#elif defined(__AVX2__)
static inline __attribute__((always_inline)) Floats in_order(__m256 halves) {
  return (Floats)_mm256_permute4x64_pd((__m256d)halves, 0xd8);
}
static inline __attribute__((always_inline)) void part_pairs(Floats a, Floats b, Floats& first,
                                                             Floats& second) {
  first = in_order(_mm256_shuffle_ps((__m256)a, (__m256)b, 0x88));
  second = in_order(_mm256_shuffle_ps((__m256)a, (__m256)b, 0xdd));
}
#else
static inline void part_pairs(Floats, Floats, Floats&, Floats&) {}
#endif

template <class T>
static void take_means(T* sums, T all, Index n, T* out) {
  Index i = 0;
  if constexpr (kHasVectors && sizeof(T) == sizeof(float)) {
    const Floats none = {}, one = none + 1.0f, over = none + all;
    for (; i + kLanes <= n; i += kLanes) {
      Floats sum = none, weight = none;
      part_pairs(numbers_at(sums + 2 * i), numbers_at(sums + 2 * i + kLanes), sum, weight);
      const Floats mean = sum / (all != T(0) ? over : (weight > none ? weight : one));
      __builtin_memcpy(out + i, &mean, sizeof mean);
      __builtin_memcpy(sums + 2 * i, &none, sizeof none);
      __builtin_memcpy(sums + 2 * i + kLanes, &none, sizeof none);
    }
  }
  for (; i < n; ++i) {
    T& sum = sums[2 * i];
    T& weight = sums[2 * i + 1];
    out[i] = sum / (all != T(0) ? all : weight > T(0) ? weight : T(1));
    sum = weight = T(0);
  }
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
  table.difference = difference<T>;
  table.encode = encode<T>;
  table.decode = decode<T>;
  table.choose = choose<T>;
  table.put_places = put_places;
  table.encode_values = encode_values<T>;
  table.add_values = add_values<T>;
  table.take_means = take_means<T>;
  table.encode16 = encode16<T>;
  table.decode16 = decode16<T>;
}

}  // namespace

void add_codec(AllKernels& all) { set(all.fp32), set(all.fp64); }

}  // namespace starling::cpu::STARLING_ISA
