// Generated images: each class has a pattern of a few long waves; an image is its class's pattern,
// slightly shifted, plus noise. All is computed from (seed, split, index), so that only the
// patterns are stored.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "apps/data/builtin.h"
#include "core/random.h"

namespace starling {
namespace {

// "Epochs" of the stream kSynthetic: one for the patterns, one for each split.
constexpr std::uint32_t kPatterns = 0, kTrainImages = 1, kTestImages = 2;
constexpr int kWaves = 3;
/// Patterns are stored at most this fine; larger images repeat pixels
constexpr std::int64_t kMaxGrid = 32;

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014):
/// cheap noise from a Philox seed.
struct SplitMix64 {
  std::uint64_t state;
  std::uint64_t operator()() {
    std::uint64_t z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
};

class Synthetic final : public BuiltinDataset {
 public:
  Synthetic(ConfigSection& section, std::uint64_t seed)
      : BuiltinDataset(
            Shape{section.integer("image_size", 32, Range::closed(1, 4096),
                                  "height and width of an image, in pixels"),
                  0, section.integer("channels", 3, Range::closed(1, 4), "channels of an image")},
            section.integer("classes", 10, Range::closed(1, 65536), "number of classes")),
        seed_(seed) {
    info_.image[1] = info_.image[0];
    const auto channels = static_cast<std::size_t>(info_.image[2]);
    info_.train_samples =
        section.integer("limit", 10000, Range::at_least(1), "number of training images");
    info_.test_samples =
        section.integer("test_limit", 2000, Range::at_least(1), "number of test images");
    read_normalize(section, std::vector<double>(channels, 0.5),
                   std::vector<double>(channels, 0.25));
  }

  void open() override {
    if (patterns_.empty()) make_patterns();
  }

  std::int64_t label(Split split, std::int64_t index) const override {
    return static_cast<std::int64_t>(
        (std::uint64_t{bits(split, index).v[0]} * static_cast<std::uint64_t>(info_.classes)) >> 32);
  }

  void image(Split split, std::int64_t index, std::uint8_t* out) const override {
    const std::int64_t size = info_.image[0], channels = info_.image[2], grid = grid_size();
    const Philox4x32 random = bits(split, index);
    // A cyclic shift by up to an eighth of the image each way.
    const std::int64_t reach = 2 * (grid / 8) + 1;
    const std::int64_t dy = random.v[1] % reach, dx = (random.v[1] >> 16) % reach;
    SplitMix64 noise{(std::uint64_t{random.v[2]} << 32) | random.v[3]};
    const std::uint8_t* pattern = patterns_.data() + label(split, index) * grid * grid * channels;

    // The column of the pattern that each pixel comes from
    std::vector<std::int64_t> columns(static_cast<std::size_t>(size));
    for (std::int64_t x = 0; x < size; ++x)
      columns[static_cast<std::size_t>(x)] = (x * grid / size + dx) % grid * channels;
    const std::int64_t row_bytes = size * channels;
    const std::uint8_t* row_above = nullptr;
    for (std::int64_t y = 0; y < size; ++y) {
      const std::uint8_t* from = pattern + (y * grid / size + dy) % grid * grid * channels;
      std::uint8_t* row = out + y * row_bytes;
      if (from == row_above) {
        std::memcpy(row, row - row_bytes, static_cast<std::size_t>(row_bytes));
      } else if (channels == 3) {
        for (std::int64_t x = 0; x < size; ++x)
          std::memcpy(row + 3 * x, from + columns[static_cast<std::size_t>(x)], 3);
      } else {
        for (std::int64_t x = 0; x < size; ++x) {
          for (std::int64_t c = 0; c < channels; ++c)
            row[x * channels + c] = from[columns[static_cast<std::size_t>(x)] + c];
        }
      }
      row_above = from;
    }
    // Patterns and noise are at most 127, so the bytes of a word can be added without a carry.
    const auto add_noise = [&](std::uint8_t* at, std::size_t count) {
      std::uint64_t word = 0;
      std::memcpy(&word, at, count);
      word += (noise() >> 1) & 0x7f7f7f7f7f7f7f7full;
      std::memcpy(at, &word, count);
    };
    const std::int64_t bytes = size * row_bytes, whole = bytes / 8 * 8;
    for (std::int64_t i = 0; i < whole; i += 8) add_noise(out + i, 8);
    if (whole < bytes) add_noise(out + whole, static_cast<std::size_t>(bytes - whole));
  }

 private:
  std::int64_t grid_size() const { return std::min(info_.image[0], kMaxGrid); }

  Philox4x32 bits(Split split, std::int64_t index) const {
    return random_bits(seed_, RandomStream::kSynthetic,
                       split == Split::kTrain ? kTrainImages : kTestImages,
                       static_cast<std::uint64_t>(index));
  }

  void make_patterns() {
    const std::int64_t grid = grid_size(), channels = info_.image[2];
    std::vector<double> sine(static_cast<std::size_t>(grid));
    for (std::int64_t i = 0; i < grid; ++i) {
      sine[static_cast<std::size_t>(i)] =
          std::sin(2.0 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(grid));
    }
    std::vector<std::uint8_t> patterns(
        static_cast<std::size_t>(info_.classes * grid * grid * channels));
    for (std::int64_t k = 0; k < info_.classes; ++k) {
      for (std::int64_t c = 0; c < channels; ++c) {
        // Vertical frequency, horizontal frequency, phase
        std::array<std::array<std::int64_t, 3>, kWaves> waves{};
        for (int w = 0; w < kWaves; ++w) {
          const Philox4x32 random =
              random_bits(seed_, RandomStream::kSynthetic, kPatterns,
                          static_cast<std::uint64_t>((k * channels + c) * kWaves + w));
          waves[static_cast<std::size_t>(w)] = {random.v[0] % 4, random.v[1] % 4,
                                                random.v[2] % grid};
        }
        for (std::int64_t y = 0; y < grid; ++y) {
          for (std::int64_t x = 0; x < grid; ++x) {
            double sum = 0.0;
            for (const auto& [down, across, phase] : waves)
              sum += sine[static_cast<std::size_t>((down * y + across * x + phase) % grid)];
            patterns[static_cast<std::size_t>(((k * grid + y) * grid + x) * channels + c)] =
                static_cast<std::uint8_t>(63.5 + 63.0 * sum / kWaves);
          }
        }
      }
    }
    patterns_ = std::move(patterns);
  }

  std::uint64_t seed_;
  std::vector<std::uint8_t> patterns_;  ///< [classes, grid, grid, channels]
};

}  // namespace

void register_synthetic(DatasetRegistry& registry) {
  add_dataset<Synthetic>(registry, "synthetic", "made in memory, learnable, no files");
}

}  // namespace starling
