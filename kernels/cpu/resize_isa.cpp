#include "kernels/cpu/resize_kernels.h"
#include "kernels/math/resize_taps.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

// Products of 16-bit numbers are added in pairs: two rows, or two pixels, at a time. Written out,
// since compilers take the bytes apart one by one. Without SSE2 plain loops give the same bits.
namespace starling::cpu::STARLING_ISA {
namespace {

using math::kColumnHalf;
using math::kColumnShift;
using math::kRowHalf;
using math::kRowShift;

#if defined(__SSE2__)
static inline __attribute__((always_inline)) int pair_of(std::int32_t first, std::int32_t second) {
  return static_cast<int>(static_cast<std::uint32_t>(second) << 16 |
                          (static_cast<std::uint32_t>(first) & 0xFFFFU));
}
#endif

#if defined(__AVX2__)
/// kPairs: number of pairs of rows, of which few are common; 0: any.
template <int kPairs>
static inline __attribute__((always_inline)) void mix_wide_rows(const std::uint8_t* rows,
                                                                std::int64_t stride,
                                                                const std::int32_t* weights,
                                                                std::int64_t taps, std::int64_t n,
                                                                std::int16_t* out) {
  const __m256i zero = _mm256_setzero_si256();
  const std::int64_t pairs = kPairs > 0 ? kPairs : (taps + 1) / 2;
  const auto weights_of = [&](std::int64_t t) {
    return _mm256_set1_epi32(pair_of(weights[2 * t], 2 * t + 1 < taps ? weights[2 * t + 1] : 0));
  };
  __m256i known[kPairs + 1];  // an array has one at least
  for (int t = 0; t < kPairs; ++t) known[t] = weights_of(t);
  // The last numbers are made with some before them, once more: one by one they would take as long
  // as the others.
  for (std::int64_t i = 0, last = n - 32; i < n; i = i < last && i + 32 > last ? last : i + 32) {
    __m256i sum0 = _mm256_set1_epi32(kRowHalf), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (std::int64_t t = 0; t < pairs; ++t) {
      const __m256i pair = kPairs > 0 ? known[t] : weights_of(t);
      const std::uint8_t* from = rows + 2 * t * stride + i;
      const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
      const __m256i b = _mm256_loadu_si256(
          reinterpret_cast<const __m256i*>(2 * t + 1 < taps ? from + stride : from));
      const __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
      sum0 = _mm256_add_epi32(sum0, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), pair));
      sum1 = _mm256_add_epi32(sum1, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), pair));
      sum2 = _mm256_add_epi32(sum2, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), pair));
      sum3 = _mm256_add_epi32(sum3, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), pair));
    }
    const __m256i first =
        _mm256_packs_epi32(_mm256_srai_epi32(sum0, kRowShift), _mm256_srai_epi32(sum1, kRowShift));
    const __m256i second =
        _mm256_packs_epi32(_mm256_srai_epi32(sum2, kRowShift), _mm256_srai_epi32(sum3, kRowShift));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                        _mm256_permute2x128_si256(first, second, 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i + 16),
                        _mm256_permute2x128_si256(first, second, 0x31));
  }
}
#endif

static void mix_rows(const std::uint8_t* rows, std::int64_t stride, const std::int32_t* weights,
                     std::int64_t taps, std::int64_t n, std::int16_t* out) {
  std::int64_t i = 0;
#if defined(__AVX2__)
  if (n >= 32) {
    switch ((taps + 1) / 2) {
      case 1: return mix_wide_rows<1>(rows, stride, weights, taps, n, out);
      case 2: return mix_wide_rows<2>(rows, stride, weights, taps, n, out);
      default: return mix_wide_rows<0>(rows, stride, weights, taps, n, out);
    }
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
      const __m128i b =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(two ? from + stride : from));
      const __m128i low = _mm_unpacklo_epi8(a, b), high = _mm_unpackhi_epi8(a, b);
      sum0 = _mm_add_epi32(sum0, _mm_madd_epi16(_mm_unpacklo_epi8(low, zero), pair));
      sum1 = _mm_add_epi32(sum1, _mm_madd_epi16(_mm_unpackhi_epi8(low, zero), pair));
      sum2 = _mm_add_epi32(sum2, _mm_madd_epi16(_mm_unpacklo_epi8(high, zero), pair));
      sum3 = _mm_add_epi32(sum3, _mm_madd_epi16(_mm_unpackhi_epi8(high, zero), pair));
    }
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(out + i),
        _mm_packs_epi32(_mm_srai_epi32(sum0, kRowShift), _mm_srai_epi32(sum1, kRowShift)));
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(out + i + 8),
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
/// Two pixels one after the other become pairs of a number each.
template <int kChannels>
static inline __attribute__((always_inline)) __m128i pairs_of(__m128i pixels) {
  return _mm_unpacklo_epi16(pixels, _mm_srli_si128(pixels, 2 * kChannels));
}
/// One output's four sums, as a pixel.
template <int kChannels>
static inline __attribute__((always_inline)) int mixed_pixel(const std::int16_t* from,
                                                             const std::int32_t* weights,
                                                             std::int64_t taps) {
  __m128i sum = _mm_set1_epi32(kColumnHalf);
  for (std::int64_t t = 0; t < taps; ++t) {
    const __m128i pixels =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * kChannels * t));
    const __m128i weight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(weights + 16 * t));
    sum = _mm_add_epi32(sum, _mm_madd_epi16(pairs_of<kChannels>(pixels), weight));
  }
  const __m128i level = _mm_srai_epi32(sum, kColumnShift);
  return _mm_cvtsi128_si32(_mm_packus_epi16(_mm_packs_epi32(level, level), level));
}
#endif
#if defined(__AVX2__)
/// Two outputs' sums, one in each half.
template <int kChannels>
static inline __attribute__((always_inline)) __m256i mixed_pixels(const std::int16_t* row,
                                                                  const std::int32_t* first,
                                                                  const std::int32_t* weights,
                                                                  std::int64_t taps) {
  const std::int16_t *a = row + kChannels * std::int64_t{first[0]},
                     *b = row + kChannels * std::int64_t{first[1]};
  const __m256i places =
      kChannels == 4 ? _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, 0, 1,
                                        8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)
                     : _mm256_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, 4, 5, 10, 11, 0, 1, 6,
                                        7, 2, 3, 8, 9, 4, 5, 10, 11, 4, 5, 10, 11);
  __m256i sum = _mm256_set1_epi32(kColumnHalf);
  for (std::int64_t t = 0; t < taps; ++t) {
    const auto* then = reinterpret_cast<const __m128i*>(b + 2 * kChannels * t);
    const __m256i both = _mm256_inserti128_si256(
        _mm256_castsi128_si256(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + 2 * kChannels * t))),
        _mm_loadu_si128(then), 1);
    const __m256i weight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + 16 * t));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(both, places), weight));
  }
  return _mm256_srai_epi32(sum, kColumnShift);
}
/// Four outputs, a pixel of 4 bytes each.
template <int kChannels>
static inline __attribute__((always_inline)) __m128i four_pixels(const std::int16_t* row,
                                                                 const std::int32_t* first,
                                                                 const std::int32_t* weights,
                                                                 std::int64_t taps) {
  const __m256i front = mixed_pixels<kChannels>(row, first, weights, taps);
  const __m256i back = mixed_pixels<kChannels>(row, first + 2, weights + 8, taps);
  const __m256i words = _mm256_packs_epi32(front, back);    // pixels 0, 2 | 1, 3
  const __m256i bytes = _mm256_packus_epi16(words, words);  // the same, twice
  return _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
}
#endif
#if defined(__AVX2__)
/// Writes up to four pixels of 4 bytes, from the output's x-th on, as far as it has them.
template <int kChannels>
static inline __attribute__((always_inline)) void store_four(__m128i pixels, std::int64_t x,
                                                             std::int64_t width,
                                                             std::uint8_t* out) {
  if (kChannels == 3)
    pixels = _mm_shuffle_epi8(
        pixels, _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
  std::uint8_t* const to = out + kChannels * x;
  // With 3 channels the next four are written over what is too much
  if (kChannels * (width - x) >= 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), pixels);
    return;
  }
  std::uint8_t rest[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), pixels);
  const std::int64_t left = width - x < 4 ? width - x : 4;
  __builtin_memcpy(to, rest, static_cast<unsigned long>(kChannels * left));
}
#endif

/// kTaps: ResizeColumns::taps, of which few are common; 0: any.
template <int kChannels, int kTaps>
static inline __attribute__((always_inline)) void mix_columns_of(const std::int16_t* row,
                                                                 const ResizeColumns& columns,
                                                                 std::uint8_t* out) {
  const std::int64_t taps = kTaps > 0 ? kTaps : columns.taps, width = columns.width;
#if defined(__AVX2__)
  for (std::int64_t x = 0; x < width; x += 4)
    store_four<kChannels>(
        four_pixels<kChannels>(row, columns.first + x, columns.weights + 4 * x * taps, taps), x,
        width, out);
#else
  for (std::int64_t x = 0; x < width; ++x) {
    const std::int16_t* from = row + kChannels * std::int64_t{columns.first[x]};
    // 16 numbers to those of the next pair
    const std::int32_t* weights = columns.weights + 4 * (x / 4 * 4 * taps + x % 4);
#if defined(__SSE2__)
    const int pixel = mixed_pixel<kChannels>(from, weights, taps);
    __builtin_memcpy(out + kChannels * x, &pixel, kChannels);
#else
    for (int c = 0; c < kChannels; ++c) {
      std::int32_t sum = kColumnHalf;
      for (std::int64_t t = 0; t < 2 * taps; ++t) {
        const auto pair = static_cast<std::uint32_t>(weights[t / 2 * 16]);
        sum += static_cast<std::int16_t>(t % 2 == 0 ? pair & 0xFFFFU : pair >> 16) *
               from[kChannels * t + c];
      }
      const std::int32_t level = sum >> kColumnShift;
      out[kChannels * x + c] = static_cast<std::uint8_t>(level < 0 ? 0 : level > 255 ? 255 : level);
    }
#endif
  }
#endif
}

template <int kChannels>
static inline __attribute__((always_inline)) void mix_columns_by_taps(const std::int16_t* row,
                                                                      const ResizeColumns& columns,
                                                                      std::uint8_t* out) {
  switch (columns.taps) {
    case 1: return mix_columns_of<kChannels, 1>(row, columns, out);
    case 2: return mix_columns_of<kChannels, 2>(row, columns, out);
    case 3: return mix_columns_of<kChannels, 3>(row, columns, out);
    default: return mix_columns_of<kChannels, 0>(row, columns, out);
  }
}

static void mix_columns(const std::int16_t* row, const ResizeColumns& columns, std::uint8_t* out) {
  columns.channels == 3 ? mix_columns_by_taps<3>(row, columns, out)
                        : mix_columns_by_taps<4>(row, columns, out);
}

static void narrow(const std::uint8_t* from, std::int64_t pixels, std::uint8_t* out) {
  std::int64_t x = 0;
#if defined(__AVX2__)
  const __m256i places = _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1, 0,
                                          1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  for (; x + 10 <= pixels; x += 8) {  // writes 28 bytes of 24; the next write over the rest
    const __m256i both = _mm256_shuffle_epi8(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 4 * x)), places);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 3 * x), _mm256_castsi256_si128(both));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 3 * x + 12),
                     _mm256_extracti128_si256(both, 1));
  }
#endif
  for (; x + 1 < pixels; ++x) __builtin_memcpy(out + 3 * x, from + 4 * x, 4);
  if (x < pixels) __builtin_memcpy(out + 3 * x, from + 4 * x, 3);
}

static void copy_rows(const std::uint8_t* from, std::int64_t stride, std::int64_t bytes,
                      std::int64_t rows, std::uint8_t* out) {
  for (std::int64_t y = 0; y < rows; ++y, from += stride, out += bytes) {
#if defined(__AVX2__)
    if (bytes >= 32) {
      std::int64_t i = 0;
      for (; i + 32 <= bytes; i += 32)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
      i = bytes - 32;  // the end, in part once more
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
      continue;
    }
#endif
    __builtin_memcpy(out, from, static_cast<unsigned long>(bytes));
  }
}

}  // namespace

const ResizeKernels& resize_copy() {
  static constexpr ResizeKernels copy{mix_rows, mix_columns, narrow, copy_rows};
  return copy;
}

}  // namespace starling::cpu::STARLING_ISA
