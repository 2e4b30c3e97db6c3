#include "apps/pictures/resize_kernels.h"
#include "kernels/math/resize_taps.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

// Products of 16-bit numbers are added in pairs: two rows, or two pixels, at a time. Written out, since compilers take the bytes apart one
// by one. Without SSE2 plain loops give the same bits.
namespace starling::cpu::STARLING_ISA {
namespace {

using math::kColumnHalf;
using math::kColumnShift;
using math::kRowHalf;
using math::kRowShift;

#if defined(__SSE2__)
static inline __attribute__((always_inline)) int pair_of(std::int32_t first, std::int32_t second) {
  return static_cast<int>(static_cast<std::uint32_t>(second) << 16 | (static_cast<std::uint32_t>(first) & 0xFFFFU));
}
#endif

static void mix_rows(const std::uint8_t* rows, std::int64_t stride, const std::int32_t* weights, std::int64_t taps, std::int64_t n,
                     std::int16_t* out) {
  std::int64_t i = 0;
#if defined(__AVX2__)
  const __m256i zero = _mm256_setzero_si256();
  for (; i + 32 <= n; i += 32) {
    __m256i sum0 = _mm256_set1_epi32(kRowHalf), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (std::int64_t t = 0; t < taps; t += 2) {
      const bool two = t + 1 < taps;
      const __m256i pair = _mm256_set1_epi32(pair_of(weights[t], two ? weights[t + 1] : 0));
      const std::uint8_t* from = rows + t * stride + i;
      const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
      const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(two ? from + stride : from));
      const __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
      sum0 = _mm256_add_epi32(sum0, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), pair));
      sum1 = _mm256_add_epi32(sum1, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), pair));
      sum2 = _mm256_add_epi32(sum2, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), pair));
      sum3 = _mm256_add_epi32(sum3, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), pair));
    }
    const __m256i first = _mm256_packs_epi32(_mm256_srai_epi32(sum0, kRowShift), _mm256_srai_epi32(sum1, kRowShift));
    const __m256i second = _mm256_packs_epi32(_mm256_srai_epi32(sum2, kRowShift), _mm256_srai_epi32(sum3, kRowShift));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_permute2x128_si256(first, second, 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i + 16), _mm256_permute2x128_si256(first, second, 0x31));
  }
#elif defined(__SSE2__)
  const __m128i zero = _mm_setzero_si128();
  for (; i + 16 <= n; i += 16) {
    __m128i sum0 = _mm_set1_epi32(kRowHalf), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (std::int64_t t = 0; t < taps; t += 2) {
      const bool two = t + 1 < taps;
      const __m128i pair = _mm_set1_epi32(pair_of(weights[t], two ? weights[t + 1] : 0));
      const std::uint8_t* from = rows + t * stride + i;
      const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(two ? from + stride : from));
      const __m128i low = _mm_unpacklo_epi8(a, b), high = _mm_unpackhi_epi8(a, b);
      sum0 = _mm_add_epi32(sum0, _mm_madd_epi16(_mm_unpacklo_epi8(low, zero), pair));
      sum1 = _mm_add_epi32(sum1, _mm_madd_epi16(_mm_unpackhi_epi8(low, zero), pair));
      sum2 = _mm_add_epi32(sum2, _mm_madd_epi16(_mm_unpacklo_epi8(high, zero), pair));
      sum3 = _mm_add_epi32(sum3, _mm_madd_epi16(_mm_unpackhi_epi8(high, zero), pair));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm_packs_epi32(_mm_srai_epi32(sum0, kRowShift), _mm_srai_epi32(sum1, kRowShift)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i + 8),
                     _mm_packs_epi32(_mm_srai_epi32(sum2, kRowShift), _mm_srai_epi32(sum3, kRowShift)));
  }
#endif
  for (; i < n; ++i) {
    std::int32_t sum = kRowHalf;
    for (std::int64_t t = 0; t < taps; ++t) sum += weights[t] * rows[t * stride + i];
    out[i] = static_cast<std::int16_t>(sum >> kRowShift);
  }
}

#if defined(__SSE2__)
/// One pixel's four sums.
static inline __attribute__((always_inline)) __m128i mixed_pixel(const std::int16_t* from, const std::int32_t* pairs, std::int64_t taps) {
  __m128i sum = _mm_set1_epi32(kColumnHalf);
  for (std::int64_t t = 0; t < taps; ++t) {
    const __m128i pixels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 8 * t));
    const __m128i both = _mm_unpacklo_epi16(pixels, _mm_srli_si128(pixels, 8));
    sum = _mm_add_epi32(sum, _mm_madd_epi16(both, _mm_set1_epi32(pairs[t])));
  }
  return _mm_srai_epi32(sum, kColumnShift);
}
#endif
#if defined(__AVX2__)
/// Two pixels' sums, a pixel a half.
static inline __attribute__((always_inline)) __m256i mixed_pixels(const std::int16_t* row, const std::int32_t* first,
                                                                  const std::int32_t* pairs, std::int64_t taps) {
  const std::int16_t *a = row + 4 * std::int64_t{first[0]}, *b = row + 4 * std::int64_t{first[1]};
  __m256i sum = _mm256_set1_epi32(kColumnHalf);
  for (std::int64_t t = 0; t < taps; ++t) {
    const __m256i pixels = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + 8 * t))),
                                                   _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + 8 * t)), 1);
    const __m256i both = _mm256_unpacklo_epi16(pixels, _mm256_srli_si256(pixels, 8));
    const __m256i weights = _mm256_blend_epi32(_mm256_set1_epi32(pairs[t]), _mm256_set1_epi32(pairs[taps + t]), 0xF0);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(both, weights));
  }
  return _mm256_srai_epi32(sum, kColumnShift);
}
#endif

static void mix_columns(const std::int16_t* row, const std::int32_t* first, const std::int32_t* pairs, std::int64_t taps,
                        std::int64_t width, std::uint8_t* out) {
  std::int64_t x = 0;
#if defined(__AVX2__)
  for (; x + 4 <= width; x += 4) {
    const __m256i even = mixed_pixels(row, first + x, pairs + x * taps, taps);
    const __m256i odd = mixed_pixels(row, first + x + 2, pairs + (x + 2) * taps, taps);
    const __m256i words = _mm256_packs_epi32(even, odd);      // pixels 0, 2 | 1, 3
    const __m256i bytes = _mm256_packus_epi16(words, words);  // the same, twice
    const __m128i low = _mm256_castsi256_si128(bytes), high = _mm256_extracti128_si256(bytes, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 4 * x), _mm_unpacklo_epi32(low, high));
  }
#endif
  for (; x < width; ++x) {
    const std::int16_t* from = row + 4 * std::int64_t{first[x]};
    const std::int32_t* own = pairs + x * taps;
#if defined(__SSE2__)
    const __m128i level = mixed_pixel(from, own, taps);
    const __m128i bytes = _mm_packus_epi16(_mm_packs_epi32(level, level), level);
    const int pixel = _mm_cvtsi128_si32(bytes);
    __builtin_memcpy(out + 4 * x, &pixel, sizeof pixel);
#else
    for (int c = 0; c < 4; ++c) {
      std::int32_t sum = kColumnHalf;
      for (std::int64_t t = 0; t < 2 * taps; ++t) {
        const auto pair = static_cast<std::uint32_t>(own[t / 2]);
        sum += static_cast<std::int16_t>(t % 2 == 0 ? pair & 0xFFFFU : pair >> 16) * from[4 * t + c];
      }
      const std::int32_t level = sum >> kColumnShift;
      out[4 * x + c] = static_cast<std::uint8_t>(level < 0 ? 0 : level > 255 ? 255 : level);
    }
#endif
  }
}

static void widen(const std::uint8_t* from, std::int64_t pixels, std::uint8_t* out) {
  std::int64_t x = 0;
#if defined(__AVX2__)
  const __m256i places =
      _mm256_setr_epi8(0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12, 0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12);
  for (; x + 10 <= pixels; x += 8) {  // reads 28 bytes of 24
    const auto* at = reinterpret_cast<const __m128i*>(from + 3 * x);
    const auto* then = reinterpret_cast<const __m128i*>(from + 3 * x + 12);
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(at)), _mm_loadu_si128(then), 1);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 4 * x), _mm256_shuffle_epi8(both, places));
  }
#endif
  for (; x + 1 < pixels; ++x) __builtin_memcpy(out + 4 * x, from + 3 * x, 4);
  if (x < pixels) __builtin_memcpy(out + 4 * x, from + 3 * x, 3);
}

static void narrow(const std::uint8_t* from, std::int64_t pixels, std::uint8_t* out) {
  std::int64_t x = 0;
#if defined(__AVX2__)
  const __m256i places =
      _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1, 0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  for (; x + 10 <= pixels; x += 8) {  // writes 28 bytes of 24; the next write over the rest
    const __m256i both = _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 4 * x)), places);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 3 * x), _mm256_castsi256_si128(both));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 3 * x + 12), _mm256_extracti128_si256(both, 1));
  }
#endif
  for (; x + 1 < pixels; ++x) __builtin_memcpy(out + 3 * x, from + 4 * x, 4);
  if (x < pixels) __builtin_memcpy(out + 3 * x, from + 4 * x, 3);
}

static void copy_rows(const std::uint8_t* from, std::int64_t stride, std::int64_t bytes, std::int64_t rows, std::uint8_t* out) {
  for (std::int64_t y = 0; y < rows; ++y, from += stride, out += bytes) {
#if defined(__AVX2__)
    if (bytes >= 32) {
      std::int64_t i = 0;
      for (; i + 32 <= bytes; i += 32)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
      i = bytes - 32;  // the end, in part once more
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
      continue;
    }
#endif
    __builtin_memcpy(out, from, static_cast<unsigned long>(bytes));
  }
}

}  // namespace

const ResizeKernels& resize_copy() {
  static constexpr ResizeKernels copy{mix_rows, mix_columns, widen, narrow, copy_rows};
  return copy;
}

}  // namespace starling::cpu::STARLING_ISA
