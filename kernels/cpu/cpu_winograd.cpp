#include <algorithm>

#include "kernels/cpu/winograd.h"

namespace starling::cpu {

namespace {

/// Outputs whose filters are at the points at a time: with 512 inputs they take 9 MiB.
constexpr Index kPartOutputs = 128;
/// Some 1 MiB at the points with 64 channels
constexpr Index kBlockTiles = 48;

Index tiles_of(const Geometry& g) { return g.images * winograd_across(g) * winograd_down(g); }

/// Parts of `outputs` channels, in blocks of tiles that every thread has some of.
template <class F>
void each_part(const Geometry& g, bool backward, Index outputs, int threads, F&& run) {
  const Index tiles = std::min(kBlockTiles, (tiles_of(g) + threads - 1) / threads);
  for (Index first = 0; first < outputs; first += kPartOutputs)
    run(WinogradPart{g, backward, first, std::min(kPartOutputs, outputs - first), tiles});
}

}  // namespace

bool suits_winograd(const Geometry& g) {
  const Index tiles = winograd_across(g) * winograd_down(g);
  return g.kernel_h == 3 && g.kernel_w == 3 && g.stride_h == 1 && g.stride_w == 1 && g.pad_h == 1 &&
         g.pad_w == 1 && g.dilation_h == 1 && g.dilation_w == 1 && g.groups == 1 &&
         g.channels % kWinogradPanel == 0 && g.out_channels % kWinogradPanel == 0 &&
         16 * tiles <= 2 * g.height * g.width && g.images * tiles >= 16;
}

void Winograd::convolve(const Geometry& g, bool backward, const float* x, const float* weight,
                        const float* bias, float* y) const {
  const Index outputs = backward ? g.channels : g.out_channels;
  each_part(g, backward, outputs, threads_.count(), [&](const WinogradPart& part) {
    const Index scratch = kWinogradPoints * (part.inputs_plane() + part.outputs_plane());
    const Workspace<float> filters(allocator_, kWinogradPoints * part.filters_plane()),
        tiles(allocator_, threads_.count() * scratch);
    threads_.parallel_for(part.outputs / kWinogradPanel, 1, [&](Index first, Index last) {
      kernels_.filters(part, weight, first, last, filters.data());
    });
    threads_.parallel_blocks(tiles_of(g), part.tiles, [&](Index thread, Index first, Index count) {
      kernels_.convolve(part, x, filters.data(), bias, y, first, first + count,
                        tiles.data() + thread * scratch);
    });
  });
}

void Winograd::backward_weights(const Geometry& g, const float* x, const float* dy, float* dweight,
                                bool accumulate) const {
  each_part(g, false, g.out_channels, 1, [&](const WinogradPart& part) {
    const Workspace<float> v(allocator_, kWinogradPoints * part.inputs_plane()),
        z(allocator_, kWinogradPoints * part.outputs_plane()),
        du(allocator_, kWinogradPoints * part.filters_plane());
    for (Index first = 0; first < tiles_of(g); first += part.tiles) {
      const Index count = std::min(part.tiles, tiles_of(g) - first);
      threads_.parallel_for(count, 1, [&](Index begin, Index end) {
        kernels_.spread(part, x, dy, first, first + begin, first + end, v.data(), z.data());
      });
      threads_.parallel_for(kWinogradPoints, 1, [&](Index begin, Index end) {
        kernels_.products(part, v.data(), z.data(), count, first > 0, begin, end, du.data());
      });
    }
    threads_.parallel_for(part.outputs, 1, [&](Index begin, Index end) {
      kernels_.taps(part, du.data(), accumulate, begin, end, dweight);
    });
  });
}

}  // namespace starling::cpu
