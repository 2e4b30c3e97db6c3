#include "apps/pictures/resize_kernels.h"

namespace starling::cpu::STARLING_ISA {
namespace {

#if defined(__AVX512F__)
constexpr std::int64_t kWidth = 16;
#elif defined(__AVX2__)
constexpr std::int64_t kWidth = 8;
#else
constexpr std::int64_t kWidth = 4;
#endif
typedef std::int32_t Sums __attribute__((vector_size(4 * kWidth)));
typedef std::int16_t Shorts __attribute__((vector_size(2 * kWidth)));
typedef std::uint8_t Bytes __attribute__((vector_size(kWidth)));
typedef std::int32_t Pixel __attribute__((vector_size(16)));
typedef std::int16_t ShortPixel __attribute__((vector_size(8)));

static void mix_rows(const std::uint8_t* rows, std::int64_t stride, const std::int32_t* weights, std::int64_t taps, std::int64_t n,
                     std::int16_t* out) {
  constexpr int kShift = kTapBits - kBetweenBits, kHalf = 1 << (kShift - 1);
  constexpr std::int64_t kBlocks = 4;
  std::int64_t i = 0;
  for (; i + kBlocks * kWidth <= n; i += kBlocks * kWidth) {
    Sums sums[kBlocks];
    for (std::int64_t b = 0; b < kBlocks; ++b) sums[b] = Sums{} + kHalf;
    for (std::int64_t t = 0; t < taps; ++t) {
      const std::uint8_t* from = rows + t * stride + i;
      for (std::int64_t b = 0; b < kBlocks; ++b) {
        Bytes bytes;
        __builtin_memcpy(&bytes, from + b * kWidth, sizeof bytes);
        sums[b] += __builtin_convertvector(bytes, Sums) * weights[t];
      }
    }
    for (std::int64_t b = 0; b < kBlocks; ++b) {
      const Shorts result = __builtin_convertvector(sums[b] >> kShift, Shorts);
      __builtin_memcpy(out + i + b * kWidth, &result, sizeof result);
    }
  }
  for (; i < n; ++i) {
    std::int32_t sum = kHalf;
    for (std::int64_t t = 0; t < taps; ++t) sum += weights[t] * rows[t * stride + i];
    out[i] = static_cast<std::int16_t>(sum >> kShift);
  }
}

static void mix_columns(const std::int16_t* row, const std::int32_t* first, const std::int32_t* count, const std::int32_t* weights,
                        std::int64_t most, std::int64_t width, std::uint8_t* out) {
  constexpr int kShift = kTapBits + kBetweenBits, kHalf = 1 << (kShift - 1);
  for (std::int64_t x = 0; x < width; ++x) {
    const std::int16_t* from = row + 4 * std::int64_t{first[x]};
    const std::int32_t* own = weights + x * most;
    Pixel sum = Pixel{} + kHalf;
    for (std::int32_t t = 0; t < count[x]; ++t) {
      ShortPixel pixel;
      __builtin_memcpy(&pixel, from + 4 * t, sizeof pixel);
      sum += __builtin_convertvector(pixel, Pixel) * own[t];
    }
    const Pixel level = sum >> kShift;
    const Pixel most_level = Pixel{} + 255;
    Pixel bounded = level > 0 ? level : Pixel{};
    bounded = bounded < most_level ? bounded : most_level;
    for (int c = 0; c < 4; ++c) out[4 * x + c] = static_cast<std::uint8_t>(bounded[c]);
  }
}

}  // namespace

const ResizeKernels& resize_copy() {
  static constexpr ResizeKernels copy{mix_rows, mix_columns};
  return copy;
}

}  // namespace starling::cpu::STARLING_ISA
