#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"
#include "kernels/math/pixel_steps.h"
#include "tests/cuda/compare.h"
#include "tests/cuda/support.h"

namespace starling::tests {

TEST_CASE("cuda/image: the option-A shortcut and its gradient") {
  struct Case {
    Shape large;
    std::int64_t stride, channels, pad_before;
  };
  in_every_order([] {
    for (const Case& s : {Case{{2, 8, 8, 16}, 2, 32, 8}, Case{{2, 7, 5, 3}, 2, 6, 1}, Case{{1, 9, 4, 8}, 3, 24, 8},
                          Case{{3, 4, 4, 16}, 1, 16, 0}, Case{{1, 1, 1, 1}, 2, 1, 0}, Case{{2, 5, 6, 16}, 2, 40, 4}}) {
      CAPTURE(s.large.text());
      const Shape small{s.large[0], (s.large[1] + s.stride - 1) / s.stride, (s.large[2] + s.stride - 1) / s.stride, s.channels};
      compare({.in = {random_given(s.large, 1)},
               .out = {random_given(small, 2)},
               .call =
                   [&](Backend& b, const auto& in, const auto& out) {
                     b.subsample_pad_forward({in[0], out[0], s.stride, s.pad_before});
                   },
               .agreement = Agreement::kBits});
      compare({.in = {random_given(small, 3)},
               .out = {random_given(s.large, 4)},
               .call =
                   [&](Backend& b, const auto& in, const auto& out) {
                     b.subsample_pad_backward({in[0], out[0], s.stride, s.pad_before});
                   },
               .agreement = Agreement::kBits});
    }
  });
}

TEST_CASE("cuda/image: flattening in PyTorch's order, and back") {
  in_every_order([] {
    for (const Shape& shape : {Shape{3, 4, 5, 7}, Shape{1, 1, 1, 1}, Shape{2, 8, 8, 64}, Shape{2, 3, 11, 33}, Shape{1, 6, 6, 70}}) {
      CAPTURE(shape.text());
      const Shape flat{shape[0], shape.elements() / shape[0]};
      compare({.in = {random_given(shape, 1)},
               .out = {zeros(flat)},
               .call =
                   [](Backend& b, const auto& in, const auto& out) {
                     b.flatten_channels_first({in[0], out[0], false});
                   },
               .agreement = Agreement::kBits});
      compare({.in = {random_given(flat, 2)},
               .out = {zeros(shape)},
               .call =
                   [](Backend& b, const auto& in, const auto& out) {
                     b.flatten_channels_first({in[0], out[0], true});
                   },
               .agreement = Agreement::kBits});
    }
  });
}

TEST_CASE("cuda/image: crop, flip and normalisation give the CPU's bits") {
  in_every_order([] {
    for (const Shape& shape :
         {Shape{3, 8, 8, 3}, Shape{5, 7, 5, 3}, Shape{2, 4, 8, 1}, Shape{2, 6, 4, 2}, Shape{2, 5, 16, 4}, Shape{1, 1, 1, 3}}) {
      CAPTURE(shape.text());
      std::vector<std::uint8_t> pixels(static_cast<std::size_t>(shape.elements()));
      for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 37 + i / 11);
      std::vector<std::int32_t> params;
      for (std::int32_t n = 0; n < shape[0]; ++n) params.insert(params.end(), {(n * 3) % 9, (n * 5 + 1) % 9, n % 2});
      for (const auto& [augmented, offset] :
           std::vector<std::pair<bool, std::int64_t>>{{false, 0}, {true, 0}, {true, 1}, {false, 3}, {true, 5}}) {
        CAPTURE(augmented);
        CAPTURE(offset);
        const auto start = static_cast<std::size_t>(offset);  // of pixels and parameters in their memory
        compare({.out = {zeros(shape)},
                 .call =
                     [&](Backend& b, const auto&, const auto& out) {
                       const Tensor x = Tensor(b, {offset + shape.elements()}, DType::kUInt8).slice(offset, shape);
                       b.copy_from_host(pixels.data(), x);
                       AugmentImages args{.x = x, .y = out[0], .crop_padding = 4};
                       std::vector<std::int32_t> shifted(start, -1);
                       shifted.insert(shifted.end(), params.begin(), params.end());
                       const auto all = static_cast<std::int64_t>(shifted.size());
                       if (augmented) args.params = int_tensor(b, shifted, {all}).slice(offset, {shape[0], 3});
                       args.mean = {0.485, 0.456, 0.406, 0.5};
                       args.std = {0.229, 0.224, 0.225, 0.3};
                       b.augment_images(args);
                     },
                 .agreement = Agreement::kBits});
      }
    }
  });
}

TEST_CASE("cuda/image: erasing and mixing give the CPU's bits") {
  in_every_order([] {
    for (const Shape& shape : {Shape{3, 8, 8, 3}, Shape{5, 7, 5, 3}, Shape{2, 4, 8, 1}, Shape{2, 5, 16, 4}, Shape{1, 3, 3, 2}}) {
      CAPTURE(shape.text());
      std::vector<std::uint8_t> pixels(static_cast<std::size_t>(shape.elements()));
      for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 37 + i / 11);
      const auto height = static_cast<std::int32_t>(shape[1]), width = static_cast<std::int32_t>(shape[2]);
      std::vector<std::int32_t> params, boxes;
      for (std::int32_t n = 0; n < shape[0]; ++n) {
        params.insert(params.end(), {(n * 3) % 9, (n * 5 + 1) % 9, n % 2});
        boxes.insert(boxes.end(), {0, 0, 0, 0, n % 2, 1, height, width - n % 2});  // the first of two is empty
      }
      for (const std::vector<std::int32_t>& mix : std::vector<std::vector<std::int32_t>>{{},
                                                                                         {1 << 24, 0, 0, 0, 0},
                                                                                         {12345678, 0, 0, 0, 0},
                                                                                         {1 << 24, 1, 0, height, width - 1},
                                                                                         {0, 0, 0, 0, 0},
                                                                                         {1 << 22, 0, 1, 2, 2}}) {
        compare({.out = {zeros(shape)},
                 .call =
                     [&](Backend& b, const auto&, const auto& out) {
                       const Tensor x(b, shape, DType::kUInt8);
                       b.copy_from_host(pixels.data(), x);
                       AugmentImages args{.x = x, .params = int_tensor(b, params, {shape[0], 3}), .y = out[0], .crop_padding = 4};
                       args.mean = {0.485, 0.456, 0.406, 0.5};
                       args.std = {0.229, 0.224, 0.225, 0.3};
                       args.boxes = int_tensor(b, boxes, {shape[0], 2, 4});
                       args.values = {3.0, -0.75};
                       if (!mix.empty()) args.mix = int_tensor(b, mix, {5});
                       b.augment_images(args);
                     },
                 .agreement = Agreement::kBits});
      }
    }
  });
}

TEST_CASE("cuda/image: changed bytes are the CPU's") {
  using C = PixelChange;
  const std::int32_t half_turn = 0x3F000000, most_turn = 0x40B00000;  // 0.5 and 5.5 as fp32
  const std::vector<PixelStep> each{{C::kWindow, {2, -1, 1, 0}},
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
    for (const Shape& image : {Shape{8, 6, 3}, Shape{5, 7, 3}, Shape{40, 70, 3}, Shape{4, 4, 1}, Shape{5, 16, 4}, Shape{4, 3, 2}}) {
      CAPTURE(image.text());
      // Each change alone, then all of them one after another, forwards and backwards, and an image that stays as it is.
      constexpr std::int64_t kMost = 18;
      REQUIRE(each.size() == kMost);
      const auto images = static_cast<std::int64_t>(each.size()) + 3;
      const Shape shape{images, image[0], image[1], image[2]};
      std::vector<std::uint8_t> pixels(static_cast<std::size_t>(shape.elements()));
      for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(20 + (i * 37 + i / 11) % 200);
      std::vector<PixelStep> steps(static_cast<std::size_t>(images * kMost));
      for (std::size_t i = 0; i < each.size(); ++i) {
        steps[i * kMost] = each[i];
        steps[kMost * kMost + i] = each[i];
        steps[(kMost + 1) * kMost + i] = each[each.size() - 1 - i];
      }
      std::vector<std::int32_t> numbers(steps.size() * kPixelStepNumbers);
      std::memcpy(numbers.data(), steps.data(), numbers.size() * sizeof(std::int32_t));
      const auto changed = [&](Backend& b) {
        const Tensor x(b, shape, DType::kUInt8), scratch(b, shape, DType::kUInt8), y(b, shape, DType::kUInt8);
        b.copy_from_host(pixels.data(), x);
        b.change_pixels({x, int_tensor(b, numbers, {images, kMost, kPixelStepNumbers}), scratch, y});
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
      // The last is as it was, and the others are not; half of them at least, as images of few pixels or channels stay the same.
      std::size_t same = 0;
      for (std::size_t n = 0; n < static_cast<std::size_t>(images); ++n)
        same += std::memcmp(found.data() + n * one, pixels.data() + n * one, one) == 0;
      CHECK(std::memcmp(found.data() + (found.size() - one), pixels.data() + (found.size() - one), one) == 0);
      CHECK(same <= each.size() / 2);
    }
  });
}

TEST_CASE("cuda/image: shapes that do not belong together are refused") {
  const auto tensor = [](const Shape& shape, DType dtype = DType::kFloat32) { return Tensor(gpu(), shape, dtype); };
  CHECK_THROWS_AS(gpu().subsample_pad_forward({tensor({1, 4, 4, 2}), tensor({1, 2, 3, 2}), 2, 0}), Error);
  CHECK_THROWS_AS(gpu().subsample_pad_forward({tensor({1, 4, 4, 2}), tensor({1, 2, 2, 3}), 2, 2}), Error);
  CHECK_THROWS_AS(gpu().subsample_pad_forward({tensor({1, 4, 4, 2}), Tensor(), 2, 0}), Error);
  CHECK_THROWS_AS(gpu().subsample_pad_backward({tensor({1, 2, 2, 3}), tensor({1, 4, 4, 2}), 0, 0}), Error);
  CHECK_THROWS_AS(gpu().flatten_channels_first({tensor({4, 4}), tensor({4, 4}), false}), Error);
  CHECK_THROWS_AS(gpu().flatten_channels_first({tensor({1, 2, 2, 2}), tensor({1, 9}), false}), Error);
  CHECK_THROWS_AS(gpu().augment_images({.x = tensor({1, 4, 4, 5}, DType::kUInt8), .y = tensor({1, 4, 4, 5})}), Error);
  CHECK_THROWS_AS(gpu().augment_images({.x = tensor({1, 4, 4, 3}), .y = tensor({1, 4, 4, 3})}), Error);
  CHECK_THROWS_AS(
      gpu().augment_images({.x = tensor({1, 4, 4, 3}, DType::kUInt8), .params = tensor({2}, DType::kInt32), .y = tensor({1, 4, 4, 3})}),
      Error);
  AugmentImages args{.x = tensor({2, 4, 4, 3}, DType::kUInt8), .y = tensor({2, 4, 4, 3})};
  args.boxes = tensor({2, 5, 4}, DType::kInt32);  // more than there are values for
  CHECK_THROWS_AS(gpu().augment_images(args), Error);
  const Tensor bytes = tensor({2, 4, 4, 3}, DType::kUInt8), steps = tensor({2, 1, 9}, DType::kInt32);
  CHECK_THROWS_AS(gpu().change_pixels({bytes, steps, bytes, tensor({2, 4, 3, 4}, DType::kUInt8)}), Error);
  CHECK_THROWS_AS(gpu().change_pixels({bytes, steps, Tensor(), bytes}), Error);
  CHECK_THROWS_AS(gpu().change_pixels({bytes, tensor({2, 1, 8}, DType::kInt32), bytes, bytes}), Error);
  CHECK_THROWS_AS(gpu().change_pixels({bytes, tensor({1, 1, 9}, DType::kInt32), bytes, bytes}), Error);
  args.boxes = {};
  args.mix = tensor({5});
  CHECK_THROWS_AS(gpu().augment_images(args), Error);
}

}  // namespace starling::tests
