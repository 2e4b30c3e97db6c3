// The pictures of `starling-prepare example`.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <system_error>
#include <vector>

#include "apps/data/shards/in_order.h"
#include "apps/data/shards/prepare_images.h"
#include "core/error.h"
#include "core/random.h"
#include "core/safetensors.h"

namespace starling {
namespace {

namespace fs = std::filesystem;
using Colour = std::array<double, 3>;

constexpr int kQuality = 90;
constexpr std::int64_t kShapes = 4;

/// A sequence of random numbers for one picture.
class Draws {
 public:
  Draws(std::uint64_t seed, std::int64_t picture)
      : seed_(seed), picture_(static_cast<std::uint32_t>(picture)) {}
  /// Random number in [0, 1).
  double unit() {
    return static_cast<double>(
               random_bits(seed_, RandomStream::kSynthetic, picture_, next_++).v[0]) *
           0x1p-32;
  }
  double between(double low, double high) { return low + (high - low) * unit(); }

 private:
  std::uint64_t seed_, next_ = 0;
  std::uint32_t picture_;
};

/// A colour with the given hue in [0, 1).
Colour colour_of(double hue, double light) {
  Colour colour{};
  for (std::size_t c = 0; c < 3; ++c)
    colour[c] =
        light *
        (0.5 + 0.5 * std::cos(2.0 * std::numbers::pi * (hue - static_cast<double>(c) / 3.0)));
  return colour;
}

/// What the pictures of a class have in common. Adjacent classes differ in more than the hue.
struct ClassLook {
  std::int64_t shape;
  double hue, ground_hue, stripes, angle;  ///< stripes: number along the longer side
  ClassLook(std::int64_t number, std::int64_t classes)
      : shape(number % kShapes),
        hue(static_cast<double>(number) / static_cast<double>(classes)),
        ground_hue(std::fmod(0.618034 * static_cast<double>(number), 1.0)),
        stripes(4.0 + 4.0 * static_cast<double>(number % 5)),
        angle(std::numbers::pi * static_cast<double>(number % 7) / 7.0) {}
};

/// Whether a point is inside a shape of size 1 around the origin: disk, square, ring, cross.
bool inside(std::int64_t shape, double x, double y) {
  const double square = std::max(std::abs(x), std::abs(y)), round = x * x + y * y;
  switch (shape) {
    case 0: return round < 1.0;
    case 1: return square < 0.9;
    case 2: return round < 1.0 && round > 0.3;
    default: return square < 1.0 && std::min(std::abs(x), std::abs(y)) < 0.3;
  }
}

std::vector<std::uint8_t> draw_picture(const ClassLook& look, Draws draws, std::int64_t width,
                                       std::int64_t height) {
  const double side = static_cast<double>(std::min(width, height)),
               longer = static_cast<double>(std::max(width, height));
  const double size = side * draws.between(0.2, 0.45), turn = draws.between(-0.4, 0.4);
  const double middle_x = draws.between(size, static_cast<double>(width) - size),
               middle_y = draws.between(size, static_cast<double>(height) - size);
  const double angle = look.angle + draws.between(-0.1, 0.1),
               phase = draws.between(0.0, 2.0 * std::numbers::pi);
  const double step = 2.0 * std::numbers::pi * look.stripes / longer;
  const Colour object =
      colour_of(look.hue + draws.between(-0.02, 0.02), draws.between(170.0, 250.0));
  const Colour ground =
      colour_of(look.ground_hue + draws.between(-0.02, 0.02), draws.between(90.0, 200.0));
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(3 * width * height));
  std::uint32_t noise = static_cast<std::uint32_t>(draws.unit() * 0x1p32) | 1U;
  std::uint8_t* pixel = pixels.data();
  for (std::int64_t row = 0; row < height; ++row) {
    for (std::int64_t column = 0; column < width; ++column, pixel += 3) {
      const auto x = static_cast<double>(column), y = static_cast<double>(row);
      const double dx = (x - middle_x) / size, dy = (y - middle_y) / size;
      const bool is_object = inside(look.shape, std::cos(turn) * dx + std::sin(turn) * dy,
                                    std::cos(turn) * dy - std::sin(turn) * dx);
      const double wave = std::sin(step * (std::cos(angle) * x + std::sin(angle) * y) + phase);
      const double light = is_object ? 1.0 - 0.2 * dy : 0.65 + 0.35 * wave;
      noise = noise * 1664525U + 1013904223U;
      for (std::size_t c = 0; c < 3; ++c) {
        const double grain = static_cast<double>((noise >> (8 + 8 * c)) & 15U) - 7.5;
        const double value = (is_object ? object : ground)[c] * light + grain;
        pixel[c] = static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0));
      }
    }
  }
  return pixels;
}

struct DrawnPicture {
  std::string path;
  std::vector<std::uint8_t> file;
};

}  // namespace

PrepareReport write_example_tree(const ExampleTree& tree, const PrepareWatch& watch) {
  std::error_code error;
  if (fs::exists(tree.destination, error) &&
      !(fs::is_directory(tree.destination, error) && fs::is_empty(tree.destination, error)))
    fail(ExitCode::kUsage, "prepare", {.file = tree.destination},
         "is there already, and no empty folder; name one that is empty or new");
  const auto class_name = [&](std::int64_t number) { return fmt::format("class_{:03}", number); };
  for (const char* split : {"train", "val"}) {
    for (std::int64_t number = 0; number < tree.classes; ++number) {
      const std::string folder =
          fmt::format("{}/{}/{}", tree.destination, split, class_name(number));
      if (!fs::create_directories(folder, error) && error)
        fail(ExitCode::kOutput, "prepare", {.file = folder},
             "cannot be made: {}; name a folder that can be written", error.message());
    }
  }
  const std::int64_t each = tree.train + tree.val, total = tree.classes * each;
  if (watch.begins) watch.begins(total, 0);
  PrepareReport report;
  in_order<DrawnPicture>(
      tree.threads, total,
      [&](std::int64_t item) {
        const std::int64_t number = item / each, picture = item % each;
        const bool val = picture >= tree.train, stands = item % 3 == 2;
        DrawnPicture drawn;
        drawn.path = fmt::format("{}/{}/{}/{:05}.jpg", tree.destination, val ? "val" : "train",
                                 class_name(number), val ? picture - tree.train : picture);
        const std::int64_t width = stands ? tree.height : tree.width,
                           height = stands ? tree.width : tree.height;
        const std::vector<std::uint8_t> pixels =
            draw_picture(ClassLook(number, tree.classes), Draws(tree.seed, item), width, height);
        drawn.file = encode_jpeg({pixels.data(), height, width}, drawn.path, kQuality);
        return drawn;
      },
      [&](std::int64_t item, DrawnPicture&& drawn) {
        write_file_atomically(drawn.path, drawn.file.data(), drawn.file.size());
        ++report.pictures;
        report.bytes += drawn.file.size();
        if (watch.goes_on) watch.goes_on(item + 1);
        report.stopped = watch.stop && watch.stop() && item + 1 < total;
        return !report.stopped;
      });
  return report;
}

}  // namespace starling
