// The passes of resizing pictures on every instruction set, against the formula, of 3 and of 4
// bytes a pixel.
#include "kernels/cpu/resize.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/philox.h"
#include "kernels/cpu/resize_kernels.h"

STARLING_DECLARE_PER_ISA(const ResizeKernels& resize_copy();)

namespace starling::resize_tests {

constexpr std::uint8_t kUntouched = 0xA5;

/// Numbers from 0 to bound - 1.
class Random {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(philox(seed_, count_++, 0).v[0]) % bound;
  }

 private:
  std::uint64_t seed_, count_ = 0;
};

std::vector<const cpu::ResizeKernels*> copies() {
  const std::array all{&cpu::scalar::resize_copy(), &cpu::avx2::resize_copy(),
                       &cpu::avx512::resize_copy()};
  return {all.begin(), all.begin() + static_cast<int>(cpu::hardware_isa()) + 1};
}

TEST_CASE(
    "apps/resize: rows are mixed by the formula on every instruction set, and nothing behind them "
    "is written") {
  Random random(1);
  for (const std::int64_t n : {1, 15, 16, 31, 32, 33, 63, 64, 100, 200}) {
    for (std::int64_t taps = 1; taps <= 9; ++taps) {
      CAPTURE(n);
      CAPTURE(taps);
      const std::int64_t stride = n + random.below(5);
      std::vector<std::uint8_t> rows(static_cast<std::size_t>(stride * (taps - 1) + n));
      for (std::uint8_t& byte : rows)
        byte = static_cast<std::uint8_t>(random.below(4) == 0 ? 255 : random.below(256));
      std::vector<std::int32_t> weights(static_cast<std::size_t>(taps));
      for (std::int32_t& weight : weights)
        weight = static_cast<std::int32_t>(random.below(20000 / taps) - 2000 / taps);
      for (const cpu::ResizeKernels* copy : copies()) {
        std::vector<std::int16_t> made(static_cast<std::size_t>(n) + 4, 12345);
        copy->mix_rows(rows.data(), stride, weights.data(), taps, n, made.data());
        for (std::int64_t i = 0; i < n; ++i) {
          std::int32_t sum = math::kRowHalf;
          for (std::int64_t t = 0; t < taps; ++t)
            sum += weights[static_cast<std::size_t>(t)] *
                   rows[static_cast<std::size_t>(t * stride + i)];
          REQUIRE(made[static_cast<std::size_t>(i)] == sum >> math::kRowShift);
        }
        CHECK(std::all_of(made.begin() + n, made.end(),
                          [](std::int16_t number) { return number == 12345; }));
      }
    }
  }
}

TEST_CASE(
    "apps/resize: columns are mixed by the formula on every instruction set, and nothing behind "
    "them is written") {
  Random random(2);
  for (const std::int64_t channels : {3, 4}) {
    for (const std::int64_t width : {1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 64}) {
      for (std::int64_t taps = 1; taps <= 5; ++taps) {
        CAPTURE(channels);
        CAPTURE(width);
        CAPTURE(taps);
        const std::int64_t inputs = 2 * taps + width;
        const auto outputs = static_cast<std::size_t>((width + 3) / 4 * 4);
        std::vector<std::int32_t> first(outputs),
            weights(outputs * static_cast<std::size_t>(4 * taps));
        std::vector<std::int16_t> row(
            static_cast<std::size_t>((inputs + 2 * taps) * channels + cpu::ResizeColumns::kBehind),
            999);
        for (std::int64_t i = 0; i < inputs * channels; ++i)
          row[static_cast<std::size_t>(i)] = static_cast<std::int16_t>(random.below(16321));
        std::vector<std::array<std::int32_t, 10>> plain(outputs);
        for (std::size_t x = 0; x < outputs; ++x) {
          first[x] = static_cast<std::int32_t>(random.below(inputs - 2 * taps + 1));
          for (std::size_t t = 0; t < static_cast<std::size_t>(taps); ++t) {
            for (std::size_t k = 0; k < 2; ++k)
              plain[x][2 * t + k] =
                  static_cast<std::int32_t>(random.below(24000 / (2 * taps)) - 4000 / (2 * taps));
            for (std::size_t c = 0; c < 4; ++c)
              weights[((x / 4 * static_cast<std::size_t>(taps) + t) * 4 + x % 4) * 4 + c] =
                  cpu::weight_pair(plain[x][2 * t], plain[x][2 * t + 1]);
          }
        }
        const cpu::ResizeColumns columns{.width = width,
                                         .taps = taps,
                                         .channels = channels,
                                         .first = first.data(),
                                         .weights = weights.data()};
        for (const cpu::ResizeKernels* copy : copies()) {
          std::vector<std::uint8_t> made(static_cast<std::size_t>(width * channels) + 16,
                                         kUntouched);
          copy->mix_columns(row.data(), columns, made.data());
          for (std::int64_t x = 0; x < width; ++x) {
            for (std::int64_t c = 0; c < channels; ++c) {
              std::int32_t sum = math::kColumnHalf;
              for (std::int64_t t = 0; t < 2 * taps; ++t) {
                const std::int64_t from = (first[static_cast<std::size_t>(x)] + t) * channels + c;
                sum += plain[static_cast<std::size_t>(x)][static_cast<std::size_t>(t)] *
                       row[static_cast<std::size_t>(from)];
              }
              REQUIRE(made[static_cast<std::size_t>(x * channels + c)] ==
                      std::clamp(sum >> math::kColumnShift, 0, 255));
            }
          }
          CHECK(std::all_of(made.begin() + width * channels, made.end(),
                            [](std::uint8_t byte) { return byte == kUntouched; }));
        }
      }
    }
  }
}

TEST_CASE("apps/resize: pixels of 3 bytes become what those of 4 do, in any window of a picture") {
  Random random(3);
  cpu::Resizer resizer;
  for (int round = 0; round < 200; ++round) {
    const std::int64_t tall = 1 + random.below(40), wide = 1 + random.below(40),
                       height = 1 + random.below(50), width = 1 + random.below(50);
    const std::int64_t top = random.below(tall), left = random.below(wide);
    const auto way = static_cast<Interpolation>(random.below(3));
    std::vector<std::uint8_t> three(static_cast<std::size_t>(3 * tall * wide)),
        four(static_cast<std::size_t>(4 * tall * wide));
    for (std::size_t i = 0; i < three.size(); ++i)
      four[i / 3 * 4 + i % 3] = three[i] = static_cast<std::uint8_t>(random.below(256));
    const cpu::PixelBox box{0.25, 0.5, static_cast<double>(tall - top) - 0.25,
                            static_cast<double>(wide - left) - 0.5};
    std::vector<std::uint8_t> of_three(static_cast<std::size_t>(3 * height * width) + 16,
                                       kUntouched),
        of_four(static_cast<std::size_t>(4 * height * width));
    resizer.resize({three.data() + 3 * (top * wide + left), 3 * wide, tall - top, wide - left, 3},
                   box, way, height, width, of_three.data());
    resizer.resize({four.data() + 4 * (top * wide + left), 4 * wide, tall - top, wide - left, 4},
                   box, way, height, width, of_four.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(3 * height * width); ++i)
      REQUIRE(of_three[i] == of_four[i / 3 * 4 + i % 3]);
    CHECK(std::all_of(of_three.end() - 16, of_three.end(),
                      [](std::uint8_t byte) { return byte == kUntouched; }));
  }
}

}  // namespace starling::resize_tests
