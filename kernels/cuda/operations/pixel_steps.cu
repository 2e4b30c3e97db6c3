#include "core/operations/pictures.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/row_grid.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/resize_pictures.h"
#include "kernels/math/run_pixel_steps.h"

// Images' bytes: made of parts of pictures, and changed. For changes a block goes with an image
// through all of its steps, since some need sums or histograms of the whole image as it then is.
// Meanwhile the image lies in the second-level cache. Compiled without fused multiply-add, for the
// CPU's bits.
namespace starling::cuda {
namespace {

constexpr int kPixelThreads = 256;

/// The threads of a block, and memory that they share while they resize.
struct Block {
  static constexpr bool kWholeLines = false;
  math::PictureRoom& taps;

  template <class F>
  STARLING_HD void each(std::int64_t n, F&& f) const {
#if defined(__CUDA_ARCH__) || !defined(__CUDACC__)
    for (std::int64_t i = threadIdx.x; i < n; i += kPixelThreads) f(i);
#else
    (void)n, (void)f;
#endif
  }
  template <class F>
  STARLING_HD void share(std::int64_t n, F&& f) const {
    constexpr std::int64_t kRange = 4;
    each(n / kRange, [&](std::int64_t i) { f(kRange * i, kRange * i + kRange); });
    each(n % kRange, [&](std::int64_t i) { f(n - n % kRange + i, n - n % kRange + i + 1); });
  }
  template <class F>
  STARLING_HD void lines(std::int64_t height, std::int64_t n, F&& f) const {
    const auto across = static_cast<std::uint32_t>(n);
    each(height * n, [&](std::int64_t i) {
      const std::uint32_t y = static_cast<std::uint32_t>(i) / across,
                          x = static_cast<std::uint32_t>(i) - y * across;
      f(y, x, std::int64_t{x} + 1);
    });
  }
  template <class F>
  STARLING_HD void colours(std::int64_t pixels, const std::uint8_t* from, std::uint8_t* to,
                           F&& f) const {
    each(pixels, [&](std::int64_t i) {
      std::int32_t r = from[3 * i], g = from[3 * i + 1], b = from[3 * i + 2];
      f(r, g, b);
      if (to == nullptr) return;
      to[3 * i] = static_cast<std::uint8_t>(r);
      to[3 * i + 1] = static_cast<std::uint8_t>(g);
      to[3 * i + 2] = static_cast<std::uint8_t>(b);
    });
  }
  template <int kChannels>
  STARLING_HD void resize(const std::int32_t* part, std::int64_t height, std::int64_t width,
                          const std::uint8_t* from, std::uint8_t* to) const {
    CutPicture cut = CutPicture::whole(part[2], part[3]);
    cut.interpolation = part[4];
    const std::uint8_t* corner = from + (part[0] * width + part[1]) * kChannels;
    for (std::int64_t tile = 0; tile < math::picture_tiles(height, width); ++tile)
      math::resize_tile<kChannels>(*this, taps, cut, width * kChannels, tile, height, width, corner,
                                   to);
  }
  STARLING_HD void sync() const {
#if defined(__CUDA_ARCH__) || !defined(__CUDACC__)
    __syncthreads();
#endif
  }
  STARLING_HD bool leads() const {
#if defined(__CUDA_ARCH__) || !defined(__CUDACC__)
    return threadIdx.x == 0;
#else
    return true;
#endif
  }
  template <class N>
  STARLING_HD void add(N& to, N n) const {
#if defined(__CUDA_ARCH__) || !defined(__CUDACC__)
    atomicAdd(&to, n);
#else
    to += n;
#endif
  }
  STARLING_HD void most(std::uint32_t& to, std::uint32_t n) const {
#if defined(__CUDA_ARCH__) || !defined(__CUDACC__)
    atomicMax(&to, n);
#else
    to = n;
#endif
  }
};

__global__ void __launch_bounds__(kPixelThreads, 4)
    resize_pictures(Index images, Index height, Index width, const CutPicture* parts,
                    const std::uint8_t* x, std::uint8_t* y) {
  __shared__ math::PictureRoom room;
  const Index tiles = math::picture_tiles(height, width);
  for (Index work = blockIdx.x; work < images * tiles; work += gridDim.x) {
    const Quotient image = divide(work, tiles);
    const CutPicture cut = parts[image.whole];
    math::resize_tile<3>(Block{room}, room, cut, std::int64_t{3} * cut.width, image.rest, height,
                         width, x + cut.place, y + image.whole * height * width * 3);
  }
}

template <int kChannels>
__global__ void __launch_bounds__(kPixelThreads, 3)
    change_pixels(Index images, Index height, Index width, const PixelStep* steps, Index most,
                  const std::uint8_t* x, std::uint8_t* scratch, std::uint8_t* y) {
  __shared__ math::PixelRoom room;
  __shared__ math::PictureRoom taps;
  const Index size = height * width * kChannels;
  for (Index image = blockIdx.x; image < images; image += gridDim.x) {
    math::run_pixel_steps<kChannels>(Block{taps}, room, steps + image * most, most, height, width,
                                     x + image * size, scratch + image * size, y + image * size);
  }
}

}  // namespace

void CudaBackend::issue(const ResizePictures& args) {
  const Shape shape = args.y.shape();
  const auto* parts = reinterpret_cast<const CutPicture*>(args.parts.data<std::int32_t>());
  launch(cuda::resize_pictures,
         {{blocks_for(shape[0] * math::picture_tiles(shape[1], shape[2]), 1)},
          {kPixelThreads},
          handle()},
         shape[0], shape[1], shape[2], parts, args.x.data<std::uint8_t>(),
         args.y.data<std::uint8_t>());
}

void CudaBackend::issue(const ChangePixels& args) {
  const Shape shape = args.x.shape();
  const auto* steps = reinterpret_cast<const PixelStep*>(args.steps.data<std::int32_t>());
  with_channels(shape[3], [&]<int kChannels>() {
    launch(cuda::change_pixels<kChannels>, {{blocks_for(shape[0], 1)}, {kPixelThreads}, handle()},
           shape[0], shape[1], shape[2], steps, args.steps.shape()[1], args.x.data<std::uint8_t>(),
           args.scratch.data<std::uint8_t>(), args.y.data<std::uint8_t>());
  });
}

}  // namespace starling::cuda
