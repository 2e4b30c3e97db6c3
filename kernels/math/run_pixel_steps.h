#pragma once

#include <cstdint>
#include <cstring>

#include "core/host_device.h"
#include "kernels/math/pixel_steps.h"
#include "kernels/math/resize_pictures.h"
#include "kernels/math/resize_taps.h"

// The steps of one image, carried out by a team of threads: a block of a device, or one thread of
// the CPU. A team has
//   each(n, f)                calls f(i) for each i below n, shared out among its threads
//   sync()                    waits until all have come so far, and see what the others wrote
//   leads()                   is true on one thread
//   add(to, n), most(to, n)   change numbers that all threads see
namespace starling::math {

constexpr int kTapTile = 64;  ///< outputs a side whose weights lie in shared memory
constexpr int kMostTaps = 6;  ///< of a part that is made larger

/// Memory that a team's threads share.
struct PixelRoom {
  LineTaps<kMostTaps> rows[kTapTile], columns[kTapTile];
  std::uint32_t counts[4][256];
  std::uint8_t levels[4][256];
  std::uint32_t darkness[4], most[4];  ///< darkness: 255 less the least byte
  unsigned long long sum;
};

template <int kChannels, class Team>
STARLING_HD void enlarge(const Team& team, PixelRoom& room, const std::int32_t* part,
                         std::int64_t height, std::int64_t width, const std::uint8_t* from,
                         std::uint8_t* to) {
  const std::int64_t part_height = part[2], part_width = part[3];
  const auto interpolation = static_cast<Interpolation>(part[4]);
  const std::uint8_t* corner = from + (part[0] * width + part[1]) * kChannels;
  const auto step_of = [](std::int64_t inputs, std::int64_t outputs) {
    return static_cast<double>(inputs) / static_cast<double>(outputs);
  };
  for (std::int64_t top = 0; top < height; top += kTapTile) {
    for (std::int64_t left = 0; left < width; left += kTapTile) {
      team.sync();
      team.each(2 * kTapTile, [&](std::int64_t i) {
        const std::int64_t row = top + i, column = left + i - kTapTile;
        if (i < kTapTile) {
          if (row < height)
            make_line_taps(part_height, 0.0, step_of(part_height, height), row, interpolation,
                           room.rows[i]);
        } else if (column < width) {
          make_line_taps(part_width, 0.0, step_of(part_width, width), column, interpolation,
                         room.columns[i - kTapTile]);
        }
      });
      team.sync();
      team.each(kTapTile * kTapTile, [&](std::int64_t i) {
        const std::int64_t y = i / kTapTile, x = i % kTapTile;
        if (top + y >= height || left + x >= width) return;
        resized_pixel<kChannels>(room.rows[y], kMostTaps, room.columns[x], kMostTaps, corner,
                                 width * kChannels,
                                 to + ((top + y) * width + left + x) * kChannels);
      });
    }
  }
}

/// Calls place(row, column), which sets them to where that pixel of the image comes from, for each;
/// zeros where that is outside.
template <int kChannels, class Team, class Place>
STARLING_HD void gather(const Team& team, std::int64_t height, std::int64_t width,
                        const std::uint8_t* from, std::uint8_t* to, const Place& place) {
  const auto across = static_cast<std::uint32_t>(width);
  team.each(height * width, [&](std::int64_t i) {
    const std::uint32_t pixel = static_cast<std::uint32_t>(i), y = pixel / across;
    std::int64_t row = y, column = pixel - y * across;
    place(row, column);
    const bool inside = row >= 0 && row < height && column >= 0 && column < width;
    const std::uint8_t* own = from + (inside ? (row * width + column) * kChannels : 0);
    for (int c = 0; c < kChannels; ++c) to[i * kChannels + c] = inside ? own[c] : std::uint8_t{0};
  });
}

/// Histograms of the channels, and the level that each byte gets.
template <int kChannels, class Team>
STARLING_HD void find_levels(const Team& team, PixelRoom& room, std::int64_t pixels,
                             const std::uint8_t* from) {
  team.each(4 * 256, [&](std::int64_t i) { room.counts[i / 256][i % 256] = 0; });
  team.sync();
  team.each(pixels, [&](std::int64_t i) {
    for (int c = 0; c < kChannels; ++c) team.add(room.counts[c][from[i * kChannels + c]], 1U);
  });
  team.sync();
  team.each(kChannels,
            [&](std::int64_t c) { even_levels(room.counts[c], pixels, room.levels[c]); });
  team.sync();
}

/// Does a step of kSaturation or kHue.
template <class Team>
STARLING_HD void change_colours(const Team& team, const PixelStep& step, std::int64_t pixels,
                                const std::uint8_t* from, std::uint8_t* to) {
  const std::int32_t factor = step.numbers[0];
  float sixths = 0.0F;
  std::memcpy(&sixths, step.numbers, sizeof sixths);
  const bool turns = step.change == PixelChange::kHue;
  team.each(pixels, [&](std::int64_t i) {
    std::int32_t r = from[3 * i], g = from[3 * i + 1], b = from[3 * i + 2];
    if (turns) {
      turn_hue(r, g, b, sixths);
    } else {
      const std::int32_t grey = grey_of(r, g, b);
      r = blended_byte(r, grey, factor);
      g = blended_byte(g, grey, factor);
      b = blended_byte(b, grey, factor);
    }
    to[3 * i] = static_cast<std::uint8_t>(r);
    to[3 * i + 1] = static_cast<std::uint8_t>(g);
    to[3 * i + 2] = static_cast<std::uint8_t>(b);
  });
}

/// One step, from one place to another.
template <int kChannels, class Team>
STARLING_HD void run_pixel_step(const Team& team, PixelRoom& room, const PixelStep& step,
                                std::int64_t height, std::int64_t width, const std::uint8_t* from,
                                std::uint8_t* to) {
  const std::int64_t pixels = height * width;
  const std::int32_t* n = step.numbers;
  // v = change(v, channel, pixel) of each byte.
  const auto by_byte = [&](const auto& change) {
    team.each(pixels, [&](std::int64_t i) {
      for (int c = 0; c < kChannels; ++c)
        to[i * kChannels + c] = static_cast<std::uint8_t>(change(from[i * kChannels + c], c, i));
    });
  };
  switch (step.change) {
    case PixelChange::kWindow: {
      return gather<kChannels>(team, height, width, from, to,
                               [&](std::int64_t& row, std::int64_t& column) {
                                 row += n[0];
                                 column = (n[2] != 0 ? width - 1 - column : column) + n[1];
                                 if (n[3] != 0)
                                   row = reflected(row, height), column = reflected(column, width);
                               });
    }
    case PixelChange::kTransform: {
      const std::int64_t x = joined(n + 4), y = joined(n + 6);
      return gather<kChannels>(team, height, width, from, to,
                               [&](std::int64_t& row, std::int64_t& column) {
                                 const std::int64_t from_x = (x + n[0] * column + n[1] * row) >> 16,
                                                    from_y = (y + n[2] * column + n[3] * row) >> 16;
                                 row = from_y;
                                 column = from_x;
                               });
    }
    case PixelChange::kResize: return enlarge<kChannels>(team, room, n, height, width, from, to);
    case PixelChange::kScale:
      return by_byte([&](std::int32_t v, int, std::int64_t) { return scaled_byte(v, n[0], 0); });
    case PixelChange::kContrast: {
      if (team.leads()) room.sum = 0;
      team.sync();
      unsigned long long own = 0;
      team.each(pixels, [&](std::int64_t i) {
        const std::uint8_t* pixel = from + i * kChannels;
        if constexpr (kChannels == 3) {
          own += static_cast<unsigned long long>(grey_of(pixel[0], pixel[1], pixel[2]));
        } else {
          for (int c = 0; c < kChannels; ++c) own += pixel[c];
        }
      });
      team.add(room.sum, own);
      team.sync();
      const std::int32_t add = contrast_add(n[0], static_cast<std::int64_t>(room.sum),
                                            kChannels == 3 ? pixels : pixels * kChannels);
      return by_byte([&](std::int32_t v, int, std::int64_t) { return scaled_byte(v, n[0], add); });
    }
    case PixelChange::kSaturation:
    case PixelChange::kHue:
      if constexpr (kChannels == 3) return change_colours(team, step, pixels, from, to);
      break;
    case PixelChange::kSharpness: {
      if (height <= 2 || width <= 2) break;
      const auto across = static_cast<std::uint32_t>(width);
      const std::int64_t line = width * kChannels;
      return by_byte([&](std::int32_t v, int c, std::int64_t i) {
        const std::uint32_t pixel = static_cast<std::uint32_t>(i), y = pixel / across,
                            x = pixel - y * across;
        if (x == 0 || y == 0 || x + 1 == across || y + 1 == static_cast<std::uint32_t>(height))
          return v;
        std::int32_t sum = 4 * v;
        const std::uint8_t* at = from + i * kChannels + c;
        for (int down = -1; down <= 1; ++down) {
          for (int right = -1; right <= 1; ++right) sum += at[down * line + right * kChannels];
        }
        return blended_byte(v, smooth_mean(sum), n[0]);
      });
    }
    case PixelChange::kInvert:
      return by_byte(
          [&](std::int32_t v, int, std::int64_t) { return inverted_byte(v, n[0], n[1]); });
    case PixelChange::kAutoContrast: {
      team.each(4, [&](std::int64_t c) { room.darkness[c] = room.most[c] = 0; });
      team.sync();
      std::uint32_t darkness[kChannels] = {}, most[kChannels] = {};
      team.each(pixels, [&](std::int64_t i) {
        for (int c = 0; c < kChannels; ++c) {
          const std::uint32_t v = from[i * kChannels + c];
          darkness[c] = 255 - v > darkness[c] ? 255 - v : darkness[c];
          most[c] = v > most[c] ? v : most[c];
        }
      });
      for (int c = 0; c < kChannels; ++c)
        team.most(room.darkness[c], darkness[c]), team.most(room.most[c], most[c]);
      team.sync();
      return by_byte([&](std::int32_t v, int c, std::int64_t) {
        return stretched_byte(v, 255 - static_cast<std::int32_t>(room.darkness[c]),
                              static_cast<std::int32_t>(room.most[c]));
      });
    }
    case PixelChange::kEqualize: {
      find_levels<kChannels>(team, room, pixels, from);
      return by_byte(
          [&](std::int32_t v, int c, std::int64_t) { return std::int32_t{room.levels[c][v]}; });
    }
    default: break;
  }
  by_byte([](std::int32_t v, int, std::int64_t) { return v; });
}

/// All steps of an image, x → y. `scratch` is as large.
template <int kChannels, class Team>
STARLING_HD void run_pixel_steps(const Team& team, PixelRoom& room, const PixelStep* steps,
                                 std::int64_t most, std::int64_t height, std::int64_t width,
                                 const std::uint8_t* x, std::uint8_t* scratch, std::uint8_t* y) {
  std::int64_t count = 0;
  while (count < most && steps[count].change != PixelChange::kNone) ++count;
  if (count == 0) return run_pixel_step<kChannels>(team, room, PixelStep{}, height, width, x, y);
  for (std::int64_t k = 0; k < count; ++k) {
    std::uint8_t* to = (count - k) % 2 == 1 ? y : scratch;  // the last step's is y
    team.sync();
    run_pixel_step<kChannels>(team, room, steps[k], height, width, x, to);
    x = to;
  }
}

}  // namespace starling::math
