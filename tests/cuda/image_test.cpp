#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/operations/pictures.h"
#include "kernels/math/pixel_steps.h"
#include "tests/cuda/compare.h"
#include "tests/cuda/support.h"

namespace starling::tests {

TEST_CASE("cuda/image: changed bytes are the CPU's") {
  using C = PixelChange;
  const std::int32_t half_turn = 0x3F000000, most_turn = 0x40B00000;  // 0.5 and 5.5 as fp32
  const std::vector<PixelStep> each{
      {C::kWindow, {2, -1, 1, 0}},
      {C::kWindow, {-1, 2, 0, 1}},
      {C::kTransform, {60000, -26000, 26000, 60000, 200000, 0, -90000, -1}},
      {C::kResize, {1, 0, 2, 3, 1}},
      {C::kResize, {0, 1, 3, 2, 2}},
      {C::kResize, {1, 1, 1, 1, 0}},
      {C::kScale, {21000}},
      {C::kContrast, {25000}},
      {C::kContrast, {9000}},
      {C::kSaturation, {29000}},
      {C::kHue, {half_turn}},
      {C::kHue, {most_turn}},
      {C::kSharpness, {30000}},
      {C::kSharpness, {2000}},
      {C::kInvert, {128, 255}},
      {C::kInvert, {256, 0xE0}},
      {C::kAutoContrast},
      {C::kEqualize}};
  in_every_order([&] {
    for (const Shape& image : {Shape{8, 6, 3}, Shape{5, 7, 3}, Shape{40, 70, 3}, Shape{4, 4, 1},
                               Shape{5, 16, 4}, Shape{4, 3, 2}}) {
      CAPTURE(image.text());
      // Each change alone, then all of them one after another, forwards and backwards, and an image
      // that stays as it is.
      constexpr std::int64_t kMost = 18;
      REQUIRE(each.size() == kMost);
      const auto images = static_cast<std::int64_t>(each.size()) + 3;
      const Shape shape{images, image[0], image[1], image[2]};
      std::vector<std::uint8_t> pixels(static_cast<std::size_t>(shape.elements()));
      for (std::size_t i = 0; i < pixels.size(); ++i)
        pixels[i] = static_cast<std::uint8_t>(20 + (i * 37 + i / 11) % 200);
      std::vector<PixelStep> steps(static_cast<std::size_t>(images * kMost));
      for (std::size_t i = 0; i < each.size(); ++i) {
        steps[i * kMost] = each[i];
        steps[kMost * kMost + i] = each[i];
        steps[(kMost + 1) * kMost + i] = each[each.size() - 1 - i];
      }
      std::vector<std::int32_t> numbers(steps.size() * kPixelStepNumbers);
      std::memcpy(numbers.data(), steps.data(), numbers.size() * sizeof(std::int32_t));
      const auto changed = [&](Backend& b) {
        const Tensor x(b, shape, DType::kUInt8), scratch(b, shape, DType::kUInt8),
            y(b, shape, DType::kUInt8);
        b.copy_from_host(pixels.data(), x);
        const Tensor given(b, {images, kMost, kPixelStepNumbers}, DType::kInt32);
        b.copy_from_host(numbers.data(), given);
        b.change_pixels({x, given, scratch, y});
        std::vector<std::uint8_t> bytes(pixels.size()), kept(pixels.size());
        b.copy_to_host(y, bytes.data());
        b.copy_to_host(x, kept.data());
        CHECK(kept == pixels);
        return bytes;
      };
      const std::vector<std::uint8_t> found = changed(gpu()), expected = changed(plain_cpu());
      const auto one = static_cast<std::size_t>(image.elements());
      for (std::size_t n = 0; n < static_cast<std::size_t>(images); ++n) {
        CAPTURE(n);
        CHECK(std::memcmp(found.data() + n * one, expected.data() + n * one, one) == 0);
      }
      // The last is as it was, and the others are not; half of them at least, as images of few
      // pixels or channels stay the same.
      std::size_t same = 0;
      for (std::size_t n = 0; n < static_cast<std::size_t>(images); ++n)
        same += std::memcmp(found.data() + n * one, pixels.data() + n * one, one) == 0;
      CHECK(std::memcmp(found.data() + (found.size() - one), pixels.data() + (found.size() - one),
                        one) == 0);
      CHECK(same <= each.size() / 2);
    }
  });
}

}  // namespace starling::tests
