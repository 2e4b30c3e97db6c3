#include "kernels/cpu/pixels.h"
#include "kernels/math/run_pixel_steps.h"

// Plain loops that compilers turn into vectors. Colours are taken apart into planes, a block at a
// time, since loads of every third byte are not vectorised well. Compiled without contraction, so
// that the bits are the same on every instruction set.
namespace starling::cpu::STARLING_ISA {
namespace {

/// A team of one thread.
struct SingleThread {
  static constexpr bool kWholeLines = true;

  template <class F>
  [[gnu::always_inline]] void share(std::int64_t n, const F& f) const {
    f(std::int64_t{0}, n);
  }
  template <class F>
  [[gnu::always_inline]] void lines(std::int64_t height, std::int64_t n, const F& f) const {
    for (std::int64_t y = 0; y < height; ++y) f(y, std::int64_t{0}, n);
  }
  template <class F>
  [[gnu::always_inline]] void colours(std::int64_t pixels, const std::uint8_t* from,
                                      std::uint8_t* to, const F& f) const {
    constexpr int kBlock = 64;  // pixels
    std::int32_t r[kBlock], g[kBlock], b[kBlock];
    for (std::int64_t begin = 0; begin < pixels; begin += kBlock) {
      const int count = pixels - begin < kBlock ? static_cast<int>(pixels - begin) : kBlock;
      const std::uint8_t* own = from + 3 * begin;
      for (int i = 0; i < count; ++i) {
        r[i] = own[3 * i];
        g[i] = own[3 * i + 1];
        b[i] = own[3 * i + 2];
      }
      for (int i = count; i < kBlock; ++i) r[i] = g[i] = b[i] = 0;
      for (int i = 0; i < kBlock; ++i) f(r[i], g[i], b[i]);
      if (to == nullptr) continue;
      std::uint8_t* out = to + 3 * begin;
      for (int i = 0; i < count; ++i) {
        out[3 * i] = static_cast<std::uint8_t>(r[i]);
        out[3 * i + 1] = static_cast<std::uint8_t>(g[i]);
        out[3 * i + 2] = static_cast<std::uint8_t>(b[i]);
      }
    }
  }
  template <int kChannels>
  void resize(const std::int32_t* part, std::int64_t height, std::int64_t width,
              const std::uint8_t* from, std::uint8_t* to) const {
    enlarge(part, height, width, kChannels, from, to);
  }
  void sync() const {}
  bool leads() const { return true; }
  template <class N>
  [[gnu::always_inline]] void add(N& to, N n) const {
    to += n;
  }
  [[gnu::always_inline]] void most(std::uint32_t& to, std::uint32_t n) const {
    to = to < n ? n : to;
  }
};

}  // namespace

void change_image(const ImageSteps& image) {
  with_channels(image.channels, [&]<int kChannels>() {
    math::PixelRoom room;
    math::run_pixel_steps<kChannels>(SingleThread{}, room, image.steps, image.most, image.height,
                                     image.width, image.x, image.scratch, image.y);
  });
}

}  // namespace starling::cpu::STARLING_ISA
