#include "core/operations/pictures.h"
#include "core/operations/pointwise.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/row_grid.h"
#include "kernels/math/pixel.h"
#include "kernels/math/pixel_steps.h"

// The option-A shortcut, flattening and the augmentation of images.
namespace starling::cuda {
namespace {

/// The sizes of the option-A shortcut between a large image and a small one with more channels;
/// channels in packs.
struct Shortcut {
  Index images, height, width, channels;            ///< of the large image
  Index small_height, small_width, small_channels;  ///< of the small one
  Index stride, pad_before;
};

/// Rows of the small image; items are its pixels' packs.
template <class T, int kCount>
__global__ void subsample_forward(Shortcut s, const T* x, T* y) {
  for_items(
      s.images * s.small_height, s.small_width * s.small_channels, [&](Index row, Index item) {
        const Quotient image = divide(row, s.small_height), pixel = divide(item, s.small_channels);
        const Index channel = pixel.rest - s.pad_before;
        T values[kCount];
        if (channel >= 0 && channel < s.channels) {
          const Index from =
              (image.whole * s.height + image.rest * s.stride) * s.width + pixel.whole * s.stride;
          load<kCount>(x + (from * s.channels + channel) * kCount, values);
        } else {
#pragma unroll
          for (int i = 0; i < kCount; ++i) values[i] = T(0.0f);
        }
        store<kCount>(values, y + (row * s.small_width * s.small_channels + item) * kCount);
      });
}

/// Rows of the large image; items are its pixels' packs.
template <class T, int kCount>
__global__ void subsample_backward(Shortcut s, const T* dy, T* dx) {
  for_items(s.images * s.height, s.width * s.channels, [&](Index row, Index item) {
    const Quotient image = divide(row, s.height), pixel = divide(item, s.channels);
    const Quotient line = divide(image.rest, s.stride), column = divide(pixel.whole, s.stride);
    T values[kCount];
    if (line.rest == 0 && column.rest == 0) {
      const Index from = (image.whole * s.small_height + line.whole) * s.small_width + column.whole;
      load<kCount>(dy + (from * s.small_channels + s.pad_before + pixel.rest) * kCount, values);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = T(0.0f);
    }
    store<kCount>(values, dx + (row * s.width * s.channels + item) * kCount);
  });
}

/// Checks the shapes, and calls run.template operator()<elements in a pack>(sizes).
template <class T, class Run>
void with_shortcut(const Tensor& large, const Tensor& small, Index stride, Index pad_before,
                   Run run) {
  const Shape from = large.shape(), to = small.shape();
  Shortcut s{from[0], from[1], from[2], from[3], to[1], to[2], to[3], stride, pad_before};
  const auto in_packs = [&]<int kCount>() {
    s.channels /= kCount;
    s.small_channels /= kCount;
    s.pad_before /= kCount;
    run.template operator()<kCount>(s);
  };
  // A pack's size, a power of two, divides all three where it divides this.
  with_packs<T>(s.channels | s.small_channels | s.pad_before, in_packs, large.data<T>(),
                small.data<T>());
}

constexpr int kImageTile = 32, kImageTileRows = 8;

/// y[image][c][r] = x[image][r][c], through tiles in shared memory, so that both sides' threads
/// touch neighbouring addresses.
template <class T>
__global__ void transpose(const T* x, T* y, Index images, Index rows, Index columns) {
  // One column more: a column of the tile lies in as many banks
  __shared__ T tile[kImageTile][kImageTile + 1];
  const Index column_tiles = (columns + kImageTile - 1) / kImageTile,
              tiles = (rows + kImageTile - 1) / kImageTile * column_tiles;
  const int tx = static_cast<int>(threadIdx.x), ty = static_cast<int>(threadIdx.y);
  for (Index work = blockIdx.x; work < images * tiles; work += gridDim.x) {
    const Quotient image = divide(work, tiles), place = divide(image.rest, column_tiles);
    const Index row = place.whole * kImageTile, column = place.rest * kImageTile,
                offset = image.whole * rows * columns;
    for (int i = ty; i < kImageTile; i += kImageTileRows) {
      if (row + i < rows && column + tx < columns)
        tile[i][tx] = x[offset + (row + i) * columns + column + tx];
    }
    __syncthreads();
    for (int i = ty; i < kImageTile; i += kImageTileRows) {
      if (column + i < columns && row + tx < rows)
        y[offset + (column + i) * rows + row + tx] = tile[tx][i];
    }
    __syncthreads();
  }
}

template <class C>
struct Augmentation {
  Index images, height, width, crop_padding;
  C mean[4], deviation[4];  ///< per channel
  C values[4];              ///< per box
  const std::uint8_t* x;
  const std::int32_t* params;       ///< null: images as they are
  const std::int32_t *boxes, *mix;  ///< null: nothing is erased, or mixed
  Index boxes_each;
};
/// The number values[i]; an index that is known at run time only would put the array into memory.
template <int kChannels, class C>
STARLING_HD C picked(const C (&values)[4], int i) {
  C result = values[0];
#pragma unroll
  for (int c = 1; c < kChannels; ++c) result = i == c ? values[c] : result;
  return result;
}

/// kCount numbers of a row of one image, before they are mixed.
template <int kChannels, int kCount, class C>
STARLING_HD void augmented(const Augmentation<C>& a, Index image, Index h, Index first,
                           C (&values)[kCount]) {
  const Index row_size = a.width * kChannels;
  Index top = 0, left = 0;
  bool flip = false;
  if (a.params != nullptr) {
    const std::int32_t* own = a.params + 3 * image;
    top = Index{own[0]} - a.crop_padding;
    left = Index{own[1]} - a.crop_padding;
    flip = own[2] != 0;
  }
  const Index from_h = h + top;
  const bool line_inside = from_h >= 0 && from_h < a.height;
  const std::uint8_t* line = a.x + (image * a.height + (line_inside ? from_h : 0)) * row_size;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const Quotient pixel = divide(first + i, kChannels);
    const Index w = (flip ? a.width - 1 - pixel.whole : pixel.whole) + left;
    const bool inside = line_inside && w >= 0 && w < a.width;
    const std::uint8_t value = inside ? line[w * kChannels + pixel.rest] : std::uint8_t{0};
    const int channel = static_cast<int>(pixel.rest);
    values[i] = math::normalized_pixel<C>(value, picked<kChannels>(a.mean, channel),
                                          picked<kChannels>(a.deviation, channel));
    const std::int32_t* box = a.boxes + image * a.boxes_each * 4;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k < a.boxes_each && math::in_box(box + 4 * k, h, pixel.whole)) values[i] = a.values[k];
    }
  }
}

/// Rows of images; items are kCount numbers of a row.
template <class T, int kChannels, int kCount>
__global__ void augment(Augmentation<Compute<T>> a, T* y) {
  using C = Compute<T>;
  const Index row_size = a.width * kChannels;
  for_items(a.images * a.height, row_size / kCount, [&](Index row, Index item) {
    const Quotient image = divide(row, a.height);
    C values[kCount];
    augmented<kChannels, kCount>(a, image.whole, image.rest, item * kCount, values);
    if (a.mix != nullptr) {
      C own[kCount];
      bool whole = true;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        own[i] = math::own_share<C>(a.mix, image.rest, divide(item * kCount + i, kChannels).whole);
        whole = whole && own[i] == C(1);
      }
      if (!whole) {
        C neighbour[kCount];
        augmented<kChannels, kCount>(a, (image.whole > 0 ? image.whole : a.images) - 1, image.rest,
                                     item * kCount, neighbour);
#pragma unroll
        for (int i = 0; i < kCount; ++i)
          values[i] = math::mixed_pixel(own[i], values[i], neighbour[i]);
      }
    }
    store_narrow<kCount>(values, y + row * row_size + item * kCount);
  });
}

template <class T, int kChannels>
void launch_augment(StreamHandle stream, const Augmentation<Compute<T>>& a, T* y) {
  const Index rows = a.images * a.height, row_size = a.width * kChannels;
  const auto run = [&]<int kCount>() {
    launch(augment<T, kChannels, kCount>, over_rows(rows, row_size / kCount, stream), a, y);
  };
  with_packs<T>(row_size, run, y);
}

}  // namespace

void CudaBackend::issue(const SubsamplePadForward& args) {
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    T* y = args.y.data<T>();
    with_shortcut<T>(
        args.x, args.y, args.stride, args.pad_before, [&]<int kCount>(const Shortcut& s) {
          launch(subsample_forward<T, kCount>,
                 over_rows(s.images * s.small_height, s.small_width * s.small_channels, handle()),
                 s, args.x.data<T>(), y);
        });
  });
}

void CudaBackend::issue(const SubsamplePadBackward& args) {
  floating(args.dy, [&](auto type) {
    using T = decltype(type);
    T* dx = args.dx.data<T>();
    with_shortcut<T>(args.dx, args.dy, args.stride, args.pad_before,
                     [&]<int kCount>(const Shortcut& s) {
                       launch(subsample_backward<T, kCount>,
                              over_rows(s.images * s.height, s.width * s.channels, handle()), s,
                              args.dy.data<T>(), dx);
                     });
  });
}

void CudaBackend::issue(const FlattenChannelsFirst& args) {
  const Shape image = (args.inverse ? args.y : args.x).shape();
  const Index pixels = image[1] * image[2], channels = image[3];
  const Index rows = args.inverse ? channels : pixels, columns = args.inverse ? pixels : channels;
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    T* y = args.y.data<T>();
    const Index tiles = image[0] * ((rows + kImageTile - 1) / kImageTile) *
                        ((columns + kImageTile - 1) / kImageTile);
    launch(transpose<T>, {{blocks_for(tiles, 1)}, {kImageTile, kImageTileRows}, handle()},
           args.x.data<T>(), y, image[0], rows, columns);
  });
}

void CudaBackend::issue(const AugmentImages& args) {
  const Shape shape = args.x.shape();
  const std::int32_t* params = optional<std::int32_t>(args.params);
  const std::int32_t* boxes = optional<std::int32_t>(args.boxes);
  const std::int32_t* mix = optional<std::int32_t>(args.mix);
  floating(args.y, [&](auto type) {
    using T = decltype(type);
    Augmentation<Compute<T>> a{shape[0], shape[1], shape[2], args.crop_padding,
                               {},       {},       {},       args.x.data<std::uint8_t>(),
                               params,   boxes,    mix,      args.boxes_each()};
    for (std::size_t c = 0; c < 4; ++c) {
      a.mean[c] = static_cast<Compute<T>>(args.mean[c]);
      a.deviation[c] = static_cast<Compute<T>>(args.std[c]);
      a.values[c] = static_cast<Compute<T>>(args.values[c]);
    }
    with_channels(shape[3], [&]<int kChannels>() {
      launch_augment<T, kChannels>(handle(), a, args.y.data<T>());
    });
  });
}

}  // namespace starling::cuda
