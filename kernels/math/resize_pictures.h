#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "kernels/math/pixel_steps.h"
#include "kernels/math/resize_taps.h"

namespace starling {

/// The pixels that one image is made of, cut out of a picture, and how: a row of
/// ResizePictures::parts. Rows of red, green and blue lie without gaps. The box is resized in the
/// pixels' own coordinates; then the turn makes the image of it. Packed, as numbers of 32 bits lie
/// at any multiple of 4 bytes, and a GPU stops at a double at such an address.
struct __attribute__((packed, aligned(4))) CutPicture {
  std::int64_t place = 0;                                           ///< of the first byte
  double box_top = 0, box_left = 0, box_height = 0, box_width = 0;  ///< inside of the pixels
  std::int32_t height = 0, width = 0;                               ///< in pixels
  std::int32_t interpolation = 0;                                   ///< an Interpolation
  std::int32_t turn = 0;                                            ///< bits of those below

  /// Rows and columns are swapped, then each is mirrored
  static constexpr std::int32_t kTransposed = 1, kMirrorY = 2, kMirrorX = 4;
  /// Pixels of a line that become one, at most
  static constexpr double kMostShrink = 4.0;

  /// An image that is made already.
  STARLING_HD static CutPicture whole(std::int64_t height, std::int64_t width) {
    CutPicture cut;
    cut.box_height = static_cast<double>(height);
    cut.box_width = static_cast<double>(width);
    cut.height = static_cast<std::int32_t>(height);
    cut.width = static_cast<std::int32_t>(width);
    cut.interpolation = static_cast<std::int32_t>(Interpolation::kBilinear);
    return cut;
  }
};

namespace math {

/// What one output of a line is made of.
template <int kMost>
struct LineTaps {
  std::int32_t first;
  std::int16_t weights[kMost];  ///< 0 behind the last
};

template <int kMost>
STARLING_HD void make_line_taps(std::int64_t inputs, double begin, double step, std::int64_t i,
                                Interpolation interpolation, LineTaps<kMost>& taps) {
  const int count =
      resize_taps(inputs, begin, step, i, interpolation, kMost, taps.first, taps.weights);
  for (int t = count; t < kMost; ++t) taps.weights[t] = 0;
}

/// One pixel of kChannels bytes, of rows `stride` bytes apart: the bits of the CPU's two passes.
/// No line has more than row_taps or column_taps weights.
template <int kChannels, int kMost>
STARLING_HD void resized_pixel(const LineTaps<kMost>& row, int row_taps,
                               const LineTaps<kMost>& column, int column_taps,
                               const std::uint8_t* from, std::int64_t stride, std::uint8_t* to) {
  const std::uint8_t* corner = from + row.first * stride + std::int64_t{column.first} * kChannels;
  std::int32_t sums[kChannels];
  for (int c = 0; c < kChannels; ++c) sums[c] = kColumnHalf;
  for (int t = 0; t < column_taps; ++t) {
    if (column.weights[t] == 0) continue;
    std::int32_t between[kChannels];
    for (int c = 0; c < kChannels; ++c) between[c] = kRowHalf;
    for (int s = 0; s < row_taps; ++s) {
      if (row.weights[s] == 0) continue;
      const std::uint8_t* pixel = corner + s * stride + t * kChannels;
      for (int c = 0; c < kChannels; ++c) between[c] += row.weights[s] * pixel[c];
    }
    for (int c = 0; c < kChannels; ++c)
      sums[c] += column.weights[t] * static_cast<std::int16_t>(between[c] >> kRowShift);
  }
  for (int c = 0; c < kChannels; ++c)
    to[c] = static_cast<std::uint8_t>(byte_of(sums[c] >> kColumnShift));
}

constexpr int kPictureTile = 32;  ///< outputs a side whose weights lie in shared memory
constexpr int kPictureTaps = 18;  ///< of a bicubic filter that makes four pixels one

/// Memory that a team's threads share.
struct PictureRoom {
  LineTaps<kPictureTaps> rows[kPictureTile], columns[kPictureTile];
};

/// Tiles of an image of that size, whichever way it is turned.
STARLING_HD std::int64_t picture_tiles(std::int64_t height, std::int64_t width) {
  return (height + kPictureTile - 1) / kPictureTile * ((width + kPictureTile - 1) / kPictureTile);
}

/// One tile of one image of height × width × kChannels bytes, of pixels whose rows are `stride`
/// bytes apart. By a device's team as kernels/math/run_pixel_steps.h describes it, with each(n, f)
/// that calls f(i) for each i below n.
template <int kChannels, class Team>
STARLING_HD void resize_tile(const Team& team, PictureRoom& room, const CutPicture& cut,
                             std::int64_t stride, std::int64_t tile, std::int64_t height,
                             std::int64_t width, const std::uint8_t* pixels, std::uint8_t* image) {
  const bool transposed = (cut.turn & CutPicture::kTransposed) != 0;
  const std::int64_t rows = transposed ? width : height, columns = transposed ? height : width;
  const std::int64_t across = (columns + kPictureTile - 1) / kPictureTile;
  const std::int64_t top = tile / across * kPictureTile, left = tile % across * kPictureTile;
  const auto interpolation = static_cast<Interpolation>(cut.interpolation);
  const double step_y = cut.box_height / static_cast<double>(rows),
               step_x = cut.box_width / static_cast<double>(columns);
  team.sync();
  team.each(2 * kPictureTile, [&](std::int64_t i) {
    const std::int64_t row = top + i, column = left + i - kPictureTile;
    if (i < kPictureTile) {
      if (row < rows)
        make_line_taps(cut.height, cut.box_top, step_y, row, interpolation, room.rows[i]);
    } else if (column < columns) {
      make_line_taps(cut.width, cut.box_left, step_x, column, interpolation,
                     room.columns[i - kPictureTile]);
    }
  });
  team.sync();
  const auto most = [&](double step) {
    const int taps = 2 * static_cast<int>(filter_reach(interpolation, step)) + 3;
    return taps < kPictureTaps ? taps : kPictureTaps;
  };
  const int row_taps = most(step_y), column_taps = most(step_x);
  team.each(kPictureTile * kPictureTile, [&](std::int64_t i) {
    const std::int64_t row = top + i / kPictureTile, column = left + i % kPictureTile;
    if (row >= rows || column >= columns) return;
    const std::int64_t seen_y = transposed ? column : row, seen_x = transposed ? row : column;
    const std::int64_t y = (cut.turn & CutPicture::kMirrorY) != 0 ? height - 1 - seen_y : seen_y;
    const std::int64_t x = (cut.turn & CutPicture::kMirrorX) != 0 ? width - 1 - seen_x : seen_x;
    resized_pixel<kChannels>(room.rows[i / kPictureTile], row_taps, room.columns[i % kPictureTile],
                             column_taps, pixels, stride, image + (y * width + x) * kChannels);
  });
}

}  // namespace math
}  // namespace starling
