#include "core/operations/pictures.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/row_grid.h"
#include "kernels/math/pixel.h"
#include "kernels/math/pixel_steps.h"

// The augmentation of images.
namespace starling::cuda {
namespace {

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
