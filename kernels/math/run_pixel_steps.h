#pragma once

#include <cstdint>
#include <cstring>

#include "core/host_device.h"
#include "kernels/math/pixel_steps.h"

// The steps of one image, carried out by a team of threads: a block of a device, or one thread of
// the CPU. A team has
//   share(n, f)            calls f(first, last) for ranges that make up [0, n), shared out among
//                          its threads; one range on the CPU, so that loops over it become vectors
//   lines(height, n, f)    calls f(y, first, last) for ranges of each of `height` lines of n
//   colours(n, from, to, f)  calls f(r, g, b), which changes a pixel, for n pixels of 3 bytes; `to`
//                          may be null
//   resize<channels>(...)  enlarges a part of the image, by kernels/math/resize_taps.h
//   sync()                 waits until all have come so far, and see what the others wrote
//   leads()                is true on one thread
//   add(to, n), most(to, n)  change numbers that all threads see
//   kWholeLines            whether a range of lines() is a whole line
namespace starling::math {

/// Memory that a team's threads share.
struct PixelRoom {
  std::uint32_t counts[4][256];
  std::uint8_t levels[4][256];
  std::uint32_t darkness[4], most[4];  ///< darkness: 255 less the least byte
  unsigned long long sum;
};

/// Where the pixels of an image come from: (x, y) from (x + xx·column + xy·row, y + yx·column +
/// yy·row) / 2^16; outside of the image zeros, or with `reflect` the image mirrored at its rim.
struct PixelPlaces {
  static constexpr std::int64_t kUnit = 1 << 16;
  std::int64_t xx, xy, yx, yy, x, y;
  bool reflect;
};

template <int kChannels, class Team>
STARLING_HD void gather(const Team& team, std::int64_t height, std::int64_t width,
                        const std::uint8_t* from, std::uint8_t* to, const PixelPlaces& places) {
  team.lines(height, width, [=](std::int64_t line, std::int64_t first, std::int64_t last) {
    const PixelPlaces p = places;
    std::uint8_t* const out = to + line * width * kChannels;
    const auto one_by_one = [&](std::int64_t i, std::int64_t behind) {
      std::int64_t at_x = p.x + p.xx * i + p.xy * line, at_y = p.y + p.yx * i + p.yy * line;
      for (; i < behind; ++i, at_x += p.xx, at_y += p.yx) {
        std::int64_t row = at_y >> 16, column = at_x >> 16;
        if (p.reflect) row = reflected(row, height), column = reflected(column, width);
        const bool inside =
            static_cast<std::uint64_t>(column) < static_cast<std::uint64_t>(width) &&
            static_cast<std::uint64_t>(row) < static_cast<std::uint64_t>(height);
        const std::uint8_t* own = from + (inside ? (row * width + column) * kChannels : 0);
        for (int c = 0; c < kChannels; ++c)
          out[i * kChannels + c] = inside ? own[c] : std::uint8_t{0};
      }
    };
    std::int64_t begin = last, end = last;  // of what is copied as it lies, or mirrored
    if constexpr (Team::kWholeLines) {
      std::int64_t row = (p.y + p.yy * line) >> 16;
      const std::int64_t column = (p.x + p.xy * line) >> 16;  // of the line's first
      if (p.reflect) row = reflected(row, height);
      const auto within = [&](std::int64_t i) { return i < 0 ? 0 : i > width ? width : i; };
      if (p.yx == 0 && row >= 0 && row < height) {
        const std::uint8_t* own = from + (row * width + column) * kChannels;
        if (p.xx == PixelPlaces::kUnit) {
          begin = within(-column), end = within(width - column);
          if (begin < end)
            std::memcpy(out + begin * kChannels, own + begin * kChannels,
                        static_cast<std::size_t>((end - begin) * kChannels));
        } else if (p.xx == -PixelPlaces::kUnit) {
          begin = within(column - width + 1), end = within(column + 1);
          for (std::int64_t i = begin; i < end; ++i) {
            for (int c = 0; c < kChannels; ++c) out[i * kChannels + c] = own[c - i * kChannels];
          }
        }
      }
    }
    one_by_one(first, begin);
    one_by_one(end, last);
  });
}

/// One step, from one place to another; or in place, unless it moves().
template <int kChannels, class Team>
STARLING_HD void run_pixel_step(const Team& team, PixelRoom& room, const PixelStep& step,
                                std::int64_t height, std::int64_t width, const std::uint8_t* from,
                                std::uint8_t* to) {
  constexpr std::int64_t kUnit = PixelPlaces::kUnit;
  const std::int64_t pixels = height * width;
  const std::int32_t* n = step.numbers;
  const std::int32_t factor = n[0];
  // v = change(v) of each byte.
  const auto by_byte = [&](const auto& change) {
    team.share(pixels * kChannels, [=](std::int64_t first, std::int64_t last) {
#if defined(__GNUC__) && !defined(__CUDACC__)
#pragma GCC ivdep  // in place or apart
#endif
      for (std::int64_t i = first; i < last; ++i)
        to[i] = static_cast<std::uint8_t>(change(from[i]));
    });
  };
  // Calls see(byte, channel) for each byte of a thread's pixels.
  const auto look = [&](const auto& see) {
    team.share(pixels, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        for (int c = 0; c < kChannels; ++c) see(from[i * kChannels + c], c);
      }
    });
  };
  // v = room.levels[channel][v].
  const auto by_level = [&] {
    team.sync();
    team.share(pixels, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        for (int c = 0; c < kChannels; ++c)
          to[i * kChannels + c] = room.levels[c][from[i * kChannels + c]];
      }
    });
  };
  switch (step.change) {
    case PixelChange::kWindow:
      return gather<kChannels>(team, height, width, from, to,
                               {.xx = n[2] != 0 ? -kUnit : kUnit,
                                .xy = 0,
                                .yx = 0,
                                .yy = kUnit,
                                .x = (n[1] + (n[2] != 0 ? width - 1 : 0)) * kUnit,
                                .y = n[0] * kUnit,
                                .reflect = n[3] != 0});
    case PixelChange::kTransform:
      return gather<kChannels>(team, height, width, from, to,
                               {n[0], n[1], n[2], n[3], joined(n + 4), joined(n + 6), false});
    case PixelChange::kResize: return team.template resize<kChannels>(n, height, width, from, to);
    case PixelChange::kScale:
      return by_byte([=](std::int32_t v) { return scaled_byte(v, factor, 0); });
    case PixelChange::kContrast: {
      if (team.leads()) room.sum = 0;
      team.sync();
      unsigned long long own = 0;
      if constexpr (kChannels == 3) {
        constexpr std::int64_t kPart = 1 << 24;  // pixels whose greys' sum has 32 bits
        for (std::int64_t begin = 0; begin < pixels; begin += kPart) {
          std::uint32_t sum = 0;
          team.colours(begin + kPart < pixels ? kPart : pixels - begin, from + 3 * begin, nullptr,
                       [&](std::int32_t r, std::int32_t g, std::int32_t b) {
                         sum += static_cast<std::uint32_t>(grey_of(r, g, b));
                       });
          own += sum;
        }
      } else {
        look([&](std::uint32_t v, int) { own += v; });
      }
      team.add(room.sum, own);
      team.sync();
      const std::int32_t add = contrast_add(factor, static_cast<std::int64_t>(room.sum),
                                            kChannels == 3 ? pixels : pixels * kChannels);
      return by_byte([=](std::int32_t v) { return scaled_byte(v, factor, add); });
    }
    case PixelChange::kSaturation:  // NOLINT(bugprone-branch-clone): of one channel alone
      if constexpr (kChannels == 3) {
        return team.colours(pixels, from, to,
                            [=](std::int32_t& r, std::int32_t& g, std::int32_t& b) {
                              const std::int32_t grey = grey_of(r, g, b);
                              r = blended_byte(r, grey, factor);
                              g = blended_byte(g, grey, factor);
                              b = blended_byte(b, grey, factor);
                            });
      }
      break;
    case PixelChange::kHue:
      if constexpr (kChannels == 3) {
        float sixths = 0.0F;
        std::memcpy(&sixths, n, sizeof sixths);
        return team.colours(
            pixels, from, to,
            [=](std::int32_t& r, std::int32_t& g, std::int32_t& b) { turn_hue(r, g, b, sixths); });
      }
      break;
    case PixelChange::kSharpness:
      if (height <= 2 || width <= 2) break;
      return team.lines(height, width, [=](std::int64_t y, std::int64_t first, std::int64_t last) {
        const std::int64_t line = width * kChannels;
        const std::uint8_t *row = from + y * line, *above = row - line, *below = row + line;
        std::uint8_t* out = to + y * line;
        std::int64_t begin = first > 0 ? first : 1, end = last < width ? last : width - 1;
        if (y == 0 || y == height - 1 || begin > end) begin = end = last;
        for (std::int64_t i = first * kChannels; i < begin * kChannels; ++i) out[i] = row[i];
        for (std::int64_t i = begin * kChannels; i < end * kChannels; ++i) {
          const std::int64_t left = i - kChannels, right = i + kChannels;
          const std::int32_t sum = above[left] + above[i] + above[right] + row[left] + 5 * row[i] +
                                   row[right] + below[left] + below[i] + below[right];
          out[i] = static_cast<std::uint8_t>(blended_byte(row[i], smooth_mean(sum), factor));
        }
        for (std::int64_t i = end * kChannels; i < last * kChannels; ++i) out[i] = row[i];
      });
    case PixelChange::kInvert: {
      const std::int32_t mask = n[1];
      return by_byte([=](std::int32_t v) { return inverted_byte(v, factor, mask); });
    }
    case PixelChange::kAutoContrast: {
      if (team.leads()) {
        for (int c = 0; c < 4; ++c) room.darkness[c] = room.most[c] = 0;
      }
      team.sync();
      std::uint32_t darkness[kChannels] = {}, most[kChannels] = {};
      look([&](std::uint32_t v, int c) {
        darkness[c] = 255 - v > darkness[c] ? 255 - v : darkness[c];
        most[c] = v > most[c] ? v : most[c];
      });
      for (int c = 0; c < kChannels; ++c)
        team.most(room.darkness[c], darkness[c]), team.most(room.most[c], most[c]);
      team.sync();
      team.share(kChannels * 256, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) {
          const std::int64_t c = i / 256, v = i % 256;
          room.levels[c][v] = static_cast<std::uint8_t>(stretched_byte(
              static_cast<std::int32_t>(v), 255 - static_cast<std::int32_t>(room.darkness[c]),
              static_cast<std::int32_t>(room.most[c])));
        }
      });
      return by_level();
    }
    case PixelChange::kEqualize:
      team.share(kChannels * 256, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) room.counts[i / 256][i % 256] = 0;
      });
      team.sync();
      look([&](std::uint32_t v, int c) { team.add(room.counts[c][v], 1U); });
      team.sync();
      team.share(kChannels, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t c = first; c < last; ++c)
          even_levels(room.counts[c], pixels, room.levels[c]);
      });
      return by_level();
    default: break;
  }
  by_byte([](std::int32_t v) { return v; });
}

/// Whether a step makes a pixel of others, so that it cannot be done in place.
STARLING_HD bool moves(const PixelStep& step) {
  return step.change == PixelChange::kWindow || step.change == PixelChange::kTransform ||
         step.change == PixelChange::kResize || step.change == PixelChange::kSharpness;
}

/// All steps of an image, x → y. `scratch` is as large, and is not needed for one step.
template <int kChannels, class Team>
STARLING_HD void run_pixel_steps(const Team& team, PixelRoom& room, const PixelStep* steps,
                                 std::int64_t most, std::int64_t height, std::int64_t width,
                                 const std::uint8_t* x, std::uint8_t* scratch, std::uint8_t* y) {
  std::int64_t count = 0, ways = 1;  // ways: how often pixels go from one place to another
  for (; count < most && steps[count].change != PixelChange::kNone; ++count)
    ways += count > 0 && moves(steps[count]);
  if (count == 0) return run_pixel_step<kChannels>(team, room, PixelStep{}, height, width, x, y);
  std::uint8_t* to = nullptr;
  for (std::int64_t k = 0; k < count; ++k) {
    if (k == 0 || moves(steps[k])) to = ways-- % 2 == 1 ? y : scratch;  // at last to y
    team.sync();
    run_pixel_step<kChannels>(team, room, steps[k], height, width, x, to);
    x = to;
  }
}

}  // namespace starling::math
