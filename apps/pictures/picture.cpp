#include "apps/pictures/picture.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "apps/pictures/codec.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/registry.h"
#include "kernels/cpu/resize.h"
#include "kernels/cpu/resize_kernels.h"

namespace starling {
namespace {

constexpr std::array<std::pair<const char*, Interpolation>, 3> kFilters{
    {{"nearest", Interpolation::kNearest},
     {"bilinear", Interpolation::kBilinear},
     {"bicubic", Interpolation::kBicubic}}};

/// The effect of an EXIF orientation: rows and columns are swapped first, then each is mirrored.
struct Turn {
  std::int32_t bits = 0;  ///< CutPicture::turn
  bool transposed() const { return (bits & CutPicture::kTransposed) != 0; }
  bool mirror_y() const { return (bits & CutPicture::kMirrorY) != 0; }
  bool mirror_x() const { return (bits & CutPicture::kMirrorX) != 0; }
};

Turn turn_of(int orientation) {
  constexpr std::int32_t t = CutPicture::kTransposed, y = CutPicture::kMirrorY,
                         x = CutPicture::kMirrorX;
  constexpr std::array<std::int32_t, 9> kTurns{0, 0, x, y | x, y, t, t | x, t | y | x, t | y};
  return {kTurns[static_cast<std::size_t>(orientation)]};
}

/// Converts a part from displayed to stored coordinates.
PicturePart stored_part(PicturePart part, const PictureSize& seen, const Turn& turn) {
  if (turn.mirror_y()) {
    part.top = seen.height - part.top - part.height;
    part.box_top = static_cast<double>(seen.height) - part.box_top - part.box_height;
  }
  if (turn.mirror_x()) {
    part.left = seen.width - part.left - part.width;
    part.box_left = static_cast<double>(seen.width) - part.box_left - part.box_width;
  }
  if (turn.transposed()) {
    std::swap(part.top, part.left);
    std::swap(part.height, part.width);
    std::swap(part.box_top, part.box_left);
    std::swap(part.box_height, part.box_width);
  }
  return part;
}

void check_part(const PicturePart& part, const PictureSize& seen, const std::string& source) {
  constexpr double kSlack = 1e-6;  // rounding error of computed boxes
  const bool window = part.top >= 0 && part.left >= 0 && part.height > 0 && part.width > 0 &&
                      part.top + part.height <= seen.height && part.left + part.width <= seen.width;
  const auto inside = [&](double begin, double length, std::int64_t from, std::int64_t size) {
    return length > 0 && begin >= static_cast<double>(from) - kSlack &&
           begin + length <= static_cast<double>(from + size) + kSlack;
  };
  require(window && inside(part.box_top, part.box_height, part.top, part.height) &&
              inside(part.box_left, part.box_width, part.left, part.width),
          "picture", "{}: a crop outside of its {}×{} pixels", source, seen.height, seen.width);
}

/// Writes one row of the image; adjacent pixels of 4 bytes are `step` bytes apart.
void write_row(const std::uint8_t* from, std::int64_t step, std::int64_t pixels,
               std::int64_t channels, std::uint8_t* out) {
  if (channels == 1) {  // ITU-R 601, in Pillow's rounding
    for (std::int64_t x = 0; x < pixels; ++x, from += step)
      out[x] = static_cast<std::uint8_t>(
          (19595 * from[0] + 38470 * from[1] + 7471 * from[2] + 0x8000) >> 16);
    return;
  }
  if (step == 4) return cpu::resize_kernels().narrow(from, pixels, out);
  // Copies four bytes at a time; the next pixel overwrites the last of them.
  for (std::int64_t x = 0; x + 1 < pixels; ++x, from += step) std::memcpy(out + 3 * x, from, 4);
  std::memcpy(out + 3 * (pixels - 1), from, 3);
}

struct ImageSize {
  std::int64_t height = 0, width = 0, channels = 0;
};

/// Writes an oriented image from stored pixels of 4 bytes; rows are `stride` pixels apart.
void write_oriented(const Turn& turn, const std::uint8_t* pixels, std::int64_t stride,
                    const ImageSize& image, std::uint8_t* out) {
  const auto& [height, width, channels] = image;
  const std::int64_t next = 4 * (turn.transposed() ? stride : 1) * (turn.mirror_x() ? -1 : 1);
  for (std::int64_t y = 0; y < height; ++y) {
    const std::int64_t from_y = turn.mirror_y() ? height - 1 - y : y,
                       from_x = turn.mirror_x() ? width - 1 : 0;
    const std::uint8_t* from =
        pixels + 4 * (turn.transposed() ? from_x * stride + from_y : from_y * stride + from_x);
    write_row(from, next, width, channels, out + y * width * channels);
  }
}

PictureSize seen_size(const StoredPicture& stored) {
  return turn_of(stored.orientation).transposed() ? PictureSize{stored.width, stored.height}
                                                  : PictureSize{stored.height, stored.width};
}

/// Which part of a picture becomes an image, in stored coordinates.
struct Plan {
  Turn turn;
  ImageSize image;
  std::int64_t rows, columns;  ///< of the resized part, before orientation
  PicturePart part;

  Plan(const PictureSize& seen, const Turn& turned, const PartChoice& choose,
       const std::string& source, const ImageSize& wanted_image)
      : turn(turned),
        image(wanted_image),
        rows(turn.transposed() ? image.width : image.height),
        columns(turn.transposed() ? image.height : image.width) {
    require((image.channels == 1 || image.channels == 3) && image.height > 0 && image.width > 0,
            "picture", "{}×{}×{} was asked for", image.height, image.width, image.channels);
    const PicturePart asked = choose(seen);
    check_part(asked, seen, source);
    part = stored_part(asked, seen, turn);
  }

  /// The scale factor: pixels of the picture per pixel of the image.
  double shrink() const {
    return std::min(part.box_height / static_cast<double>(rows),
                    part.box_width / static_cast<double>(columns));
  }

  /// The pixels that the resize filter reads: the box plus the filter's support, clipped to the
  /// window.
  StoredRegion wanted() const {
    const auto span_of = [&](double begin, double length, std::int64_t outputs, std::int64_t from,
                             std::int64_t size) {
      const double reach = 2.0 * std::max(1.0, length / static_cast<double>(outputs)) + 1.0;
      const std::int64_t first =
          std::max(from, static_cast<std::int64_t>(std::floor(begin - reach)));
      const std::int64_t end =
          std::min(from + size, static_cast<std::int64_t>(std::ceil(begin + length + reach)));
      return std::pair{first, end - first};
    };
    StoredRegion region;
    std::tie(region.top, region.height) =
        span_of(part.box_top, part.box_height, rows, part.top, part.height);
    std::tie(region.left, region.width) =
        span_of(part.box_left, part.box_width, columns, part.left, part.width);
    return region;
  }

  /// Top and left of the part if its pixels are those of the image, so that no resizing is needed.
  std::optional<std::pair<std::int64_t, std::int64_t>> whole_pixels() const {
    if (part.box_height != static_cast<double>(rows) ||
        part.box_width != static_cast<double>(columns))
      return std::nullopt;
    const auto top = static_cast<std::int64_t>(part.box_top),
               left = static_cast<std::int64_t>(part.box_left);
    if (static_cast<double>(top) != part.box_top || static_cast<double>(left) != part.box_left)
      return std::nullopt;
    return std::pair{top, left};
  }
};

}  // namespace

PicturePart PicturePart::window(std::int64_t top, std::int64_t left, std::int64_t height,
                                std::int64_t width) {
  return {top,
          left,
          height,
          width,
          static_cast<double>(top),
          static_cast<double>(left),
          static_cast<double>(height),
          static_cast<double>(width)};
}

PicturePart PicturePart::centre(const PictureSize& picture, std::int64_t resize,
                                std::int64_t height, std::int64_t width) {
  const std::int64_t shorter = std::min(picture.height, picture.width);
  // The sides of the resized picture, at least those of the crop.
  std::int64_t tall = resize * picture.height / shorter, wide = resize * picture.width / shorter;
  if (tall < height || wide < width) {
    const double more = std::max(static_cast<double>(height) / static_cast<double>(tall),
                                 static_cast<double>(width) / static_cast<double>(wide));
    tall =
        std::max(height, static_cast<std::int64_t>(std::floor(static_cast<double>(tall) * more)));
    wide = std::max(width, static_cast<std::int64_t>(std::floor(static_cast<double>(wide) * more)));
  }
  PicturePart part = window(0, 0, picture.height, picture.width);
  const double step_y = static_cast<double>(picture.height) / static_cast<double>(tall),
               step_x = static_cast<double>(picture.width) / static_cast<double>(wide);
  // torchvision's CenterCrop rounds half to even, as Python does.
  part.box_top = std::nearbyint(static_cast<double>(tall - height) / 2.0) * step_y;
  part.box_left = std::nearbyint(static_cast<double>(wide - width) / 2.0) * step_x;
  part.box_height = static_cast<double>(height) * step_y;
  part.box_width = static_cast<double>(width) * step_x;
  return part;
}

std::vector<std::string> interpolation_names() {
  std::vector<std::string> names;
  for (const auto& [name, filter] : kFilters) names.emplace_back(name);
  return names;
}

Interpolation interpolation_of(std::string_view name) {
  for (const auto& [known, filter] : kFilters) {
    if (known == name) return filter;
  }
  fail(ExitCode::kUsage, "picture",
       "there is no interpolation '{}'{}; known: nearest, bilinear, bicubic", name,
       suggestion(std::string(name), interpolation_names()));
}

struct PictureDecoder::State {
  PictureSettings settings;
  DecodedRegion region;
  cpu::Resizer resizer;
  std::vector<std::uint8_t> resized;

  StoredPicture header(std::span<const std::uint8_t> file, const std::string& source) const {
    if (file.empty()) fail(ExitCode::kUsage, "picture", "{}: is empty", source);
    const bool jpeg = is_jpeg(file);
    if (!jpeg && !is_png(file))
      fail(ExitCode::kUsage, "picture", "{}: is neither JPEG nor PNG by its first bytes", source);
    const StoredPicture picture = jpeg ? jpeg_header(file, source) : png_header(file, source);
    if (picture.height * picture.width > settings.max_pixels) {
      fail(ExitCode::kUsage, "picture",
           "{}: is {}×{} pixels, more than the {} that max_pixels allows", source, picture.height,
           picture.width, settings.max_pixels);
    }
    return picture;
  }

  /// The pixels of a part: `region` of the picture at scale 1/denominator.
  struct PartPixels {
    const std::uint8_t* first = nullptr;  ///< of the region's first pixel
    std::int64_t top = 0, left = 0, height = 0, width = 0;
    std::int64_t stride = 0, channels = 4;  ///< bytes per row; bytes per pixel
    std::int64_t denominator = 1;
  };
  PartPixels decoded(std::int64_t denominator) const {
    return {.first = region.pixels.data(),
            .top = region.top,
            .left = region.left,
            .height = region.height,
            .width = region.width,
            .stride = 4 * region.width,
            .denominator = denominator};
  }

  /// Makes the image from the decoded region.
  void deliver(const Plan& plan, std::int64_t denominator, std::uint8_t* out) {
    if (const auto corner = plan.whole_pixels(); corner && denominator == 1) {
      const std::uint8_t* pixels =
          region.pixels.data() +
          4 * ((corner->first - region.top) * region.width + corner->second - region.left);
      return write_oriented(plan.turn, pixels, region.width, plan.image, out);
    }
    resized.resize(static_cast<std::size_t>(4 * plan.rows * plan.columns));
    resize(plan, decoded(denominator), resized.data());
    write_oriented(plan.turn, resized.data(), plan.columns, plan.image, out);
  }

  void resize(const Plan& plan, const PartPixels& from, std::uint8_t* out) {
    const auto [window, box] = window_of(plan.part, from);
    resizer.resize(window, box, settings.interpolation, plan.rows, plan.columns, out);
  }

  /// Stores the part's pixels in `target` without resizing. Returns false if they shrink by too
  /// much, or there is no memory.
  bool store_unresized(const Plan& plan, const PartPixels& from, CutTarget& target) const {
    const auto [window, box] = window_of(plan.part, from);
    const auto shrinks = [](double length, std::int64_t outputs) {
      return length / static_cast<double>(outputs);
    };
    if (std::max(shrinks(box.height, plan.rows), shrinks(box.width, plan.columns)) >
        CutPicture::kMostShrink)
      return false;
    std::uint8_t* to = target.take(3 * window.height * window.width);
    if (!to) return false;
    if (window.channels == 3) {
      cpu::resize_kernels().copy_rows(window.pixels, window.stride, 3 * window.width, window.height,
                                      to);
    } else {
      for (std::int64_t y = 0; y < window.height; ++y) {
        cpu::resize_kernels().narrow(window.pixels + y * window.stride, window.width,
                                     to + 3 * y * window.width);
      }
    }
    target.cut = {.box_top = box.top,
                  .box_left = box.left,
                  .box_height = box.height,
                  .box_width = box.width,
                  .height = static_cast<std::int32_t>(window.height),
                  .width = static_cast<std::int32_t>(window.width),
                  .interpolation = static_cast<std::int32_t>(settings.interpolation),
                  .turn = plan.turn.bits};
    return true;
  }
  /// Stores the pixels, or if that fails, calls deliver(memory for the resized image).
  template <class Deliver>
  void store_or_resize(const Plan& plan, const PartPixels& from, CutTarget& target,
                       const Deliver& deliver) const {
    if (store_unresized(plan, from, target)) return;
    const auto& [height, width, channels] = plan.image;
    deliver(target.take(height * width * channels));
    target.cut = CutPicture::whole(height, width);
  }

  /// The window within the decoded pixels, and the box within it. In a scaled picture the window
  /// includes pixels that it covers only partly.
  static std::pair<cpu::PixelWindow, cpu::PixelBox> window_of(const PicturePart& part,
                                                              const PartPixels& from) {
    const std::int64_t denominator = from.denominator;
    const auto scale = static_cast<double>(denominator);
    const auto place = [&](std::int64_t begin, std::int64_t length, std::int64_t region_begin,
                           std::int64_t region_length) {
      const std::int64_t first = std::max(begin / denominator, region_begin);
      const std::int64_t end =
          std::min((begin + length + denominator - 1) / denominator, region_begin + region_length);
      return std::pair{first, std::max<std::int64_t>(end - first, 1)};
    };
    const auto [top, tall] = place(part.top, part.height, from.top, from.height);
    const auto [left, wide] = place(part.left, part.width, from.left, from.width);
    return {
        {.pixels = from.first + (top - from.top) * from.stride + from.channels * (left - from.left),
         .stride = from.stride,
         .height = tall,
         .width = wide,
         .channels = from.channels},
        {.top = part.box_top / scale - static_cast<double>(top),
         .left = part.box_left / scale - static_cast<double>(left),
         .height = part.box_height / scale,
         .width = part.box_width / scale}};
  }

  /// Decodes what the image needs. Returns the denominator of the scale.
  std::int64_t read(std::span<const std::uint8_t> file, const std::string& source,
                    const Plan& plan) {
    StoredRegion wanted = plan.wanted();
    if (is_jpeg(file) && settings.scaled_decoding &&
        settings.interpolation != Interpolation::kNearest) {
      while (wanted.denominator < 8 && plan.shrink() >= 2.0 * wanted.denominator)
        wanted.denominator *= 2;
    }
    decode(file, source, wanted);
    return wanted.denominator;
  }
  void decode(std::span<const std::uint8_t> file, const std::string& source,
              const StoredRegion& wanted) {
    (is_jpeg(file) ? decode_jpeg : decode_png)(file, source, wanted, region);
  }
  Plan plan_of(std::span<const std::uint8_t> file, const std::string& source,
               const PartChoice& choose, const ImageSize& image) const {
    const StoredPicture stored = header(file, source);
    return {seen_size(stored), turn_of(stored.orientation), choose, source, image};
  }

  /// The pixels of a part, of a picture that is in memory.
  static PartPixels in_memory(const PixelRows& picture, const Plan& plan) {
    const StoredRegion wanted = plan.wanted();
    const std::int64_t stride = 3 * picture.width;
    return {.first = picture.pixels + wanted.top * stride + 3 * wanted.left,
            .top = wanted.top,
            .left = wanted.left,
            .height = wanted.height,
            .width = wanted.width,
            .stride = stride,
            .channels = 3};
  }
  void cut(const PixelRows& picture, const Plan& plan, std::uint8_t* out) {
    const auto& [height, width, channels] = plan.image;
    const std::int64_t stride = 3 * picture.width;
    if (const auto corner = plan.whole_pixels()) {
      cpu::resize_kernels().copy_rows(picture.pixels + corner->first * stride + 3 * corner->second,
                                      stride, 3 * width, height, out);
    } else {
      resize(plan, in_memory(picture, plan), out);
    }
  }
};

PictureDecoder::PictureDecoder(const PictureSettings& settings)
    : state_(std::make_unique<State>()) {
  state_->settings = settings;
}
PictureDecoder::~PictureDecoder() = default;
PictureDecoder::PictureDecoder(PictureDecoder&&) noexcept = default;
PictureDecoder& PictureDecoder::operator=(PictureDecoder&&) noexcept = default;

void PictureDecoder::use(const PictureSettings& settings) { state_->settings = settings; }

PictureSize PictureDecoder::size(std::span<const std::uint8_t> file, const std::string& source) {
  return seen_size(state_->header(file, source));
}

void PictureDecoder::decode(std::span<const std::uint8_t> file, const std::string& source,
                            const PartChoice& choose, std::int64_t height, std::int64_t width,
                            std::int64_t channels, std::uint8_t* out) {
  const Plan plan = state_->plan_of(file, source, choose, {height, width, channels});
  const std::int64_t denominator = state_->read(file, source, plan);
  state_->deliver(plan, denominator, out);
}

void PictureDecoder::decode(std::span<const std::uint8_t> file, const std::string& source,
                            const PartChoice& choose, std::int64_t height, std::int64_t width,
                            CutTarget& target) {
  const Plan plan = state_->plan_of(file, source, choose, {height, width, 3});
  const std::int64_t denominator = state_->read(file, source, plan);
  state_->store_or_resize(plan, state_->decoded(denominator), target,
                          [&](std::uint8_t* out) { state_->deliver(plan, denominator, out); });
}

void PictureDecoder::cut(const PixelRows& picture, const std::string& source,
                         const PartChoice& choose, std::int64_t height, std::int64_t width,
                         std::uint8_t* out) {
  state_->cut(picture,
              {{picture.height, picture.width}, Turn{}, choose, source, {height, width, 3}}, out);
}

void PictureDecoder::cut(const PixelRows& picture, const std::string& source,
                         const PartChoice& choose, std::int64_t height, std::int64_t width,
                         CutTarget& target) {
  const Plan plan({picture.height, picture.width}, Turn{}, choose, source, {height, width, 3});
  state_->store_or_resize(plan, State::in_memory(picture, plan), target,
                          [&](std::uint8_t* out) { state_->cut(picture, plan, out); });
}

void PictureDecoder::check(std::span<const std::uint8_t> file, const std::string& source) {
  const StoredPicture stored = state_->header(file, source);
  state_->decode(file, source, {0, 0, stored.height, stored.width, 1});
}

std::vector<std::uint8_t> read_picture_file(const std::string& path, std::int64_t max_bytes) {
  const auto refuse = [&](const std::string& reason) {
    fail(ExitCode::kUsage, "picture", "{}: cannot be read: {}", path, reason);
  };
  const RegularFile file(path);
  if (!file.fault().empty()) refuse(file.fault());
  const auto too_large = [&] {
    fail(ExitCode::kUsage, "picture", "{}: has more than {} bytes, which is no picture", path,
         max_bytes);
  };
  if (file.bytes() > static_cast<std::uint64_t>(max_bytes)) too_large();
  // Reads one byte more to detect the end, since some file systems report a wrong size.
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(file.bytes()) + 1);
  for (std::size_t done = 0;;) {
    const ssize_t count = ::read(file.descriptor(), bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse(std::strerror(errno));
    done += static_cast<std::size_t>(count);
    if (static_cast<std::int64_t>(done) > max_bytes) too_large();
    if (count == 0) {
      bytes.resize(done);
      return bytes;
    }
    if (done == bytes.size()) bytes.resize(done + std::max<std::size_t>(1 << 16, done / 2));
  }
}

}  // namespace starling
