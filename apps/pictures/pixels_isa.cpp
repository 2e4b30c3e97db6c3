#include "apps/pictures/pixel_kernels.h"
#include "kernels/math/pixel_steps.h"

// Plain loops that compilers turn into vectors. Colours are taken apart into planes, a block at a
// time, since loads of every third byte are not vectorised well. Compiled without contraction, so
// that the bits are the same on every instruction set.
namespace starling::cpu::STARLING_ISA {
namespace {

using math::blended_byte;
using math::grey_of;
using math::inverted_byte;
using math::scaled_byte;
using math::smooth_mean;

constexpr int kBlock = 64;  // pixels

static void scale(std::uint8_t* bytes, std::int64_t n, std::int32_t factor, std::int32_t add) {
  for (std::int64_t i = 0; i < n; ++i)
    bytes[i] = static_cast<std::uint8_t>(scaled_byte(bytes[i], factor, add));
}

/// Calls change(r, g, b) with planes of kBlock numbers, for all pixels; what it leaves there is
/// written back where kWrite.
template <bool kWrite, class Bytes, class Change>
static inline __attribute__((always_inline)) void by_planes(Bytes* bytes, std::int64_t pixels,
                                                            const Change& change) {
  std::int32_t r[kBlock] = {}, g[kBlock] = {}, b[kBlock] = {};
  for (std::int64_t begin = 0; begin < pixels; begin += kBlock) {
    const int count = pixels - begin < kBlock ? static_cast<int>(pixels - begin) : kBlock;
    Bytes* own = bytes + 3 * begin;
    for (int i = 0; i < count; ++i) {
      r[i] = own[3 * i];
      g[i] = own[3 * i + 1];
      b[i] = own[3 * i + 2];
    }
    change(r, g, b, count);
    if constexpr (kWrite) {
      for (int i = 0; i < count; ++i) {
        own[3 * i] = static_cast<std::uint8_t>(r[i]);
        own[3 * i + 1] = static_cast<std::uint8_t>(g[i]);
        own[3 * i + 2] = static_cast<std::uint8_t>(b[i]);
      }
    }
  }
}

static void blend_grey(std::uint8_t* bytes, std::int64_t pixels, std::int32_t factor) {
  by_planes<true>(
      bytes, pixels,
      [factor](std::int32_t * r, std::int32_t * g, std::int32_t * b, int)
          __attribute__((always_inline)) {
            for (int i = 0; i < kBlock; ++i) {
              const std::int32_t grey = grey_of(r[i], g[i], b[i]);
              r[i] = blended_byte(r[i], grey, factor);
              g[i] = blended_byte(g[i], grey, factor);
              b[i] = blended_byte(b[i], grey, factor);
            }
          });
}

static std::int64_t grey_sum(const std::uint8_t* bytes, std::int64_t pixels) {
  std::int64_t sum = 0;
  by_planes<false>(
      bytes, pixels,
      [&sum](const std::int32_t* r, const std::int32_t* g, const std::int32_t* b, int count)
          __attribute__((always_inline)) {
            std::int32_t part = 0;
            for (int i = 0; i < count; ++i) part += grey_of(r[i], g[i], b[i]);
            sum += part;
          });
  return sum;
}

static void sharpen(const std::uint8_t* above, const std::uint8_t* row, const std::uint8_t* below,
                    std::int64_t n, std::int64_t channels, std::int32_t factor, std::uint8_t* out) {
  for (std::int64_t i = channels; i < n - channels; ++i) {
    const std::int64_t left = i - channels, right = i + channels;
    const std::int32_t sum = above[left] + above[i] + above[right] + row[left] + 5 * row[i] +
                             row[right] + below[left] + below[i] + below[right];
    out[i] = static_cast<std::uint8_t>(blended_byte(row[i], smooth_mean(sum), factor));
  }
}

static void turn_hue(std::uint8_t* bytes, std::int64_t pixels, float sixths) {
  by_planes<true>(
      bytes, pixels,
      [sixths](std::int32_t * r, std::int32_t * g, std::int32_t * b, int)
          __attribute__((always_inline)) {
            for (int i = 0; i < kBlock; ++i) math::turn_hue(r[i], g[i], b[i], sixths);
          });
}

static void invert_and_mask(std::uint8_t* bytes, std::int64_t n, std::int32_t threshold,
                            std::int32_t mask) {
  for (std::int64_t i = 0; i < n; ++i) {
    bytes[i] = static_cast<std::uint8_t>(inverted_byte(bytes[i], threshold, mask));
  }
}

}  // namespace

const PixelKernels& pixels_copy() {
  static constexpr PixelKernels copy{scale,   blend_grey, grey_sum,
                                     sharpen, turn_hue,   invert_and_mask};
  return copy;
}

}  // namespace starling::cpu::STARLING_ISA
