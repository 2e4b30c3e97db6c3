#include <algorithm>
#include <cstdint>

#include "core/operations/resampling.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/row_grid.h"
#include "kernels/cuda/operations/plain.h"

// Images of another size. What each pixel of an axis is made of is found once; rows are lines of
// the result, items its packs of channels. The way back gathers too, so that sums have one order.
namespace starling::cuda {
namespace {

using PixelRange = ResampleAxis::PixelRange;

/// Of an axis: what each pixel of the result is made of, and each of the source a part of.
struct Table {
  const ResampleTaps* taps;
  const PixelRange* made;  ///< null: of no use

  __device__ PixelRange sources(int i) const {
    return made != nullptr ? made[i] : PixelRange{taps[i].first, taps[i].last};
  }
  __device__ double weight(int i, int source) const {
    return made != nullptr ? taps[source].of(i) : taps[i].of(source);
  }
};

__global__ void __launch_bounds__(kThreads)
    find_taps(ResampleAxis axis, ResampleTaps* taps, PixelRange* made) {
  const Index first = Index{blockIdx.x} * kThreads + threadIdx.x,
              step = Index{gridDim.x} * kThreads;
  for (Index p = first; p < axis.out; p += step) taps[p] = axis.taps(p);
  for (Index i = first; made != nullptr && i < axis.in; i += step) made[i] = axis.users_of(i);
}

struct ImageSizes {
  Index images, packs;
  int from[2], to[2];
};

template <class T, int kCount>
__global__ void resample_pixels(ImageSizes s, Table down, Table across, const T* x, T* y) {
  using C = Compute<T>;
  for_items(s.images * s.to[0], s.to[1] * s.packs, [&](Index row, Index item) {
    const Quotient line = divide(row, s.to[0]), pixel = divide(item, s.packs);
    const int p = static_cast<int>(line.rest), q = static_cast<int>(pixel.whole);
    const PixelRange rows = down.sources(p), columns = across.sources(q);
    C sum[kCount] = {};
    for (int h = rows.first; h <= rows.last; ++h) {
      const double weight = down.weight(p, h);
      for (int w = columns.first; w <= columns.last; ++w) {
        const C factor = static_cast<C>(weight * across.weight(q, w));
        C values[kCount];
        load_wide<kCount>(
            x + (((line.whole * s.from[0] + h) * s.from[1] + w) * s.packs + pixel.rest) * kCount,
            values);
#pragma unroll
        for (int i = 0; i < kCount; ++i) sum[i] += factor * values[i];
      }
    }
    store_narrow<kCount>(sum, y + (row * s.to[1] * s.packs + item) * kCount);
  });
}

}  // namespace

void CudaBackend::issue(const Resample& args) {
  if (args.y.elements() == 0) return;
  Tensor memory[2][2];
  Table tables[2];
  for (int i = 0; i < 2; ++i) {
    const ResampleAxis axis = args.axis(i);
    auto& [taps, made] = memory[i];
    static_assert(sizeof(ResampleTaps) == 3 * sizeof(double) && sizeof(PixelRange) == 8);
    taps = scratch(3 * axis.out, DType::kFloat64);
    made = args.transposed ? scratch(axis.in, DType::kFloat64) : Tensor();
    auto* const to = reinterpret_cast<ResampleTaps*>(taps.data<double>());
    auto* const back = made ? reinterpret_cast<PixelRange*>(made.data<double>()) : nullptr;
    const Index places = args.transposed ? std::max(axis.in, axis.out) : axis.out;
    launch(find_taps, {{blocks_for(places, kThreads)}, {kThreads}, handle()}, axis, to, back);
    tables[i] = {to, back};
  }
  const Shape &from = args.x.shape(), &to = args.y.shape();
  ImageSizes s{to[0],
               to[3],
               {static_cast<int>(from[1]), static_cast<int>(from[2])},
               {static_cast<int>(to[1]), static_cast<int>(to[2])}};
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    T* y = args.y.data<T>();
    const auto run = [&]<int kCount>() {
      s.packs /= kCount;
      launch(resample_pixels<T, kCount>, over_rows(s.images * s.to[0], s.to[1] * s.packs, handle()),
             s, tables[0], tables[1], x, y);
    };
    with_packs<T>(to[3], run, x, y);
  });
}

}  // namespace starling::cuda
