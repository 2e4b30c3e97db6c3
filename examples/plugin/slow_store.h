#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <thread>

#include <starling/data.h>

namespace mine {

/// Pictures as they come from a slow store: each is a file of its own size, most of them small and
/// a few large, and reading it takes as long as its bytes take to arrive. What one finds in it is a
/// square in a corner that the class decides, under noise: made from (seed, sample), so nothing is
/// stored. For trying data.sampler and data.cache.
class SlowStore final : public starling::ImageDataset {
 public:
  SlowStore(starling::ConfigSection& section, std::uint64_t seed) : seed_(seed) {
    using starling::Range;
    const std::int64_t size = section.integer("image_size", 16, Range::closed(4, 1024),
                                              "height and width of a picture, in pixels");
    info_.image = starling::Shape{size, size, 1};
    info_.classes = 4;
    info_.train_samples =
        section.integer("limit", 1024, Range::at_least(1), "number of training pictures");
    info_.test_samples =
        section.integer("test_limit", 128, Range::at_least(1), "number of test pictures");
    info_.mean = {0.5};
    info_.std = {0.25};
    info_.complexity = "bytes of the file";
    kilobytes_ = section.number("kilobytes", 20.0, Range::positive(), "of the median file");
    spread_ = section.number("spread", 1.0, Range::closed(0.0, 5.0),
                             "of a file's size: the deviation of its logarithm; 0: all alike");
    bytes_per_second_ = 1e6 / 8.0 *
                        section.number("mbit_per_s", 100.0, Range::positive(),
                                       "at which a rank reads, in 10^6 bits a second");
  }

  starling::ImageInfo images() const override { return info_; }
  void open() override {}
  std::int64_t label(Split split, std::int64_t index) const override {
    return bits(split, index).v[0] % 4;
  }
  void image(Split split, std::int64_t index, std::uint8_t* out) const override {
    std::this_thread::sleep_for(
        std::chrono::duration<double>(complexity(split, index) / bytes_per_second_));
    const std::int64_t size = info_.image[0], corner = label(split, index), half = size / 2;
    std::uint32_t noise = bits(split, index).v[1];
    for (std::int64_t y = 0; y < size; ++y) {
      for (std::int64_t x = 0; x < size; ++x) {
        noise = noise * 1664525u + 1013904223u;
        const bool inside = (y < half) == (corner < 2) && (x < half) == (corner % 2 == 0);
        *out++ = static_cast<std::uint8_t>((inside ? 100u : 60u) + (noise >> 25));
      }
    }
  }
  /// The size of the file: log-normal, by the sum of twelve uniform numbers.
  double complexity(Split split, std::int64_t index) const override {
    double normal = -6.0;
    for (std::uint64_t draw = 1; draw <= 3; ++draw) {
      for (const std::uint32_t word : bits(split, index, draw).v)
        normal += starling::uniform_double(word, 0);
    }
    return 1e3 * kilobytes_ * std::exp(spread_ * normal);
  }

 private:
  starling::Philox4x32 bits(Split split, std::int64_t index, std::uint64_t draw = 0) const {
    return starling::random_bits(seed_, starling::RandomStream::kSynthetic,
                                 split == Split::kTrain ? 1 : 2,
                                 (draw << 40) | static_cast<std::uint64_t>(index));
  }
  std::uint64_t seed_;
  starling::ImageInfo info_;
  double kilobytes_, spread_, bytes_per_second_;
};

}  // namespace mine
