#include "apps/pictures/pixel_kernels.h"

// Plain loops that compilers turn into vectors. Colours are taken apart into planes, a block at a time, since loads of every third byte are
// not vectorised well. Compiled without contraction, so that the bits are the same on every instruction set.
namespace starling::cpu::STARLING_ISA {
namespace {

constexpr int kBlock = 64;  // pixels

static inline __attribute__((always_inline)) std::int32_t byte_of(std::int32_t value) { return value < 0 ? 0 : value > 255 ? 255 : value; }

/// 0.2989 r + 0.587 g + 0.114 b, rounded down (torchvision's rgb_to_grayscale).
static inline __attribute__((always_inline)) std::int32_t grey_of(std::int32_t r, std::int32_t g, std::int32_t b) {
  return (19589 * r + 38470 * g + 7471 * b) >> 16;
}

static void scale(std::uint8_t* bytes, std::int64_t n, std::int32_t factor, std::int32_t add) {
  for (std::int64_t i = 0; i < n; ++i) bytes[i] = static_cast<std::uint8_t>(byte_of((factor * bytes[i] + add) >> kBlendBits));
}

/// change(r, g, b) of planes of kBlock numbers, for all pixels; what it leaves there is written back where kWrite.
template <bool kWrite, class Bytes, class Change>
static inline __attribute__((always_inline)) void by_planes(Bytes* bytes, std::int64_t pixels, const Change& change) {
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
      bytes, pixels, [factor](std::int32_t * r, std::int32_t * g, std::int32_t * b, int) __attribute__((always_inline)) {
        for (int i = 0; i < kBlock; ++i) {
          const std::int32_t grey = ((1 << kBlendBits) - factor) * grey_of(r[i], g[i], b[i]);
          r[i] = byte_of((factor * r[i] + grey) >> kBlendBits);
          g[i] = byte_of((factor * g[i] + grey) >> kBlendBits);
          b[i] = byte_of((factor * b[i] + grey) >> kBlendBits);
        }
      });
}

static std::int64_t grey_sum(const std::uint8_t* bytes, std::int64_t pixels) {
  std::int64_t sum = 0;
  by_planes<false>(
      bytes, pixels, [&sum](const std::int32_t* r, const std::int32_t* g, const std::int32_t* b, int count) __attribute__((always_inline)) {
        std::int32_t part = 0;
        for (int i = 0; i < count; ++i) part += grey_of(r[i], g[i], b[i]);
        sum += part;
      });
  return sum;
}

static void sharpen(const std::uint8_t* above, const std::uint8_t* row, const std::uint8_t* below, std::int64_t n, std::int64_t channels,
                    std::int32_t factor, std::uint8_t* out) {
  const std::int32_t rest = (1 << kBlendBits) - factor;
  for (std::int64_t i = channels; i < n - channels; ++i) {
    const std::int64_t left = i - channels, right = i + channels;
    const std::int32_t sum =
        above[left] + above[i] + above[right] + row[left] + 5 * row[i] + row[right] + below[left] + below[i] + below[right];
    const std::int32_t mean = ((sum + 6) * 20165) >> 18;  // (sum + 6) / 13, of sums up to 13 · 255
    out[i] = static_cast<std::uint8_t>(byte_of((factor * row[i] + rest * mean) >> kBlendBits));
  }
}

static inline __attribute__((always_inline)) std::int32_t turned(float hue, float most, float chroma) {
  hue = hue >= 6.0F ? hue - 6.0F : hue;
  hue = hue >= 6.0F ? hue - 6.0F : hue;
  float share = hue < 4.0F - hue ? hue : 4.0F - hue;
  share = share < 0.0F ? 0.0F : share > 1.0F ? 1.0F : share;
  return static_cast<std::int32_t>((most - chroma * share) * (255.999F / 255.0F));
}

static void turn_hue(std::uint8_t* bytes, std::int64_t pixels, float sixths) {
  // Of a pixel's hue h in sixths of a circle, its largest number m and its chroma c, a channel is m - c · clamp(min(k, 4 - k), 0, 1) with
  // k = h + 5, 3 or 1 modulo 6 for red, green and blue: the hexcone model of HSV, both ways.
  by_planes<true>(
      bytes, pixels, [sixths](std::int32_t * r, std::int32_t * g, std::int32_t * b, int) __attribute__((always_inline)) {
        for (int i = 0; i < kBlock; ++i) {
          const std::int32_t more = r[i] > g[i] ? r[i] : g[i], less = r[i] < g[i] ? r[i] : g[i];
          const std::int32_t most = more > b[i] ? more : b[i], least = less < b[i] ? less : b[i], chroma = most - least;
          const bool red = most == r[i], green = most == g[i];
          const std::int32_t difference = red ? g[i] - b[i] : green ? b[i] - r[i] : r[i] - g[i];
          const float at = static_cast<float>(difference) / static_cast<float>(chroma > 0 ? chroma : 1) +
                           (red     ? 0.0F
                            : green ? 2.0F
                                    : 4.0F) +
                           sixths;
          const auto m = static_cast<float>(most), c = static_cast<float>(chroma);
          r[i] = turned(at + 5.0F, m, c);
          g[i] = turned(at + 3.0F, m, c);
          b[i] = turned(at + 1.0F, m, c);
        }
      });
}

static void invert_and_mask(std::uint8_t* bytes, std::int64_t n, std::int32_t threshold, std::int32_t mask) {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t value = bytes[i];
    bytes[i] = static_cast<std::uint8_t>((value >= threshold ? 255 - value : value) & mask);
  }
}

}  // namespace

const PixelKernels& pixels_copy() {
  static constexpr PixelKernels copy{scale, blend_grey, grey_sum, sharpen, turn_hue, invert_and_mask};
  return copy;
}

}  // namespace starling::cpu::STARLING_ISA
