#include "core/operations/pictures.h"
#include "kernels/cpu/cpu_backend_detail.h"
#include "kernels/math/resize_pictures.h"
#include "kernels/math/run_pixel_steps.h"

// Changes of images' bytes, as a device carries them out. A loader on the CPU has faster loops for
// each image it reads (apps/pictures), with the same bits. Compiled without contraction.
namespace starling {

static_assert(sizeof(PixelStep) == kPixelStepNumbers * sizeof(std::int32_t));
static_assert(sizeof(CutPicture) == kCutPictureNumbers * sizeof(std::int32_t));

namespace {

/// One thread.
struct Alone {
  template <class F>
  void each(std::int64_t n, F&& f) const {
    for (std::int64_t i = 0; i < n; ++i) f(i);
  }
  void sync() const {}
  bool leads() const { return true; }
  template <class N>
  void add(N& to, N n) const {
    to += n;
  }
  void most(std::uint32_t& to, std::uint32_t n) const { to = to < n ? n : to; }
};

}  // namespace

void CpuBackend::issue(const ResizePictures& args) {
  const Shape shape = args.y.shape();
  const std::int64_t size = shape[1] * shape[2] * shape[3],
                     tiles = math::picture_tiles(shape[1], shape[2]);
  const auto* parts = reinterpret_cast<const CutPicture*>(args.parts.data<std::int32_t>());
  threads_.parallel_for(shape[0], 1, [&](std::int64_t begin, std::int64_t end) {
    math::PictureRoom room;
    for (std::int64_t n = begin; n < end; ++n) {
      for (std::int64_t tile = 0; tile < tiles; ++tile) {
        math::resize_tile(Alone{}, room, parts[n], tile, shape[1], shape[2],
                          args.x.data<std::uint8_t>() + parts[n].place,
                          args.y.data<std::uint8_t>() + n * size);
      }
    }
  });
}

void CpuBackend::issue(const ChangePixels& args) {
  const Shape shape = args.x.shape();
  const std::int64_t size = shape[1] * shape[2] * shape[3], most = args.steps.shape()[1];
  const auto* steps = reinterpret_cast<const PixelStep*>(args.steps.data<std::int32_t>());
  with_channels(shape[3], [&]<int kChannels>() {
    threads_.parallel_for(shape[0], 1, [&](std::int64_t begin, std::int64_t end) {
      math::PixelRoom room;
      for (std::int64_t n = begin; n < end; ++n) {
        math::run_pixel_steps<kChannels>(Alone{}, room, steps + n * most, most, shape[1], shape[2],
                                         args.x.data<std::uint8_t>() + n * size,
                                         args.scratch.data<std::uint8_t>() + n * size,
                                         args.y.data<std::uint8_t>() + n * size);
      }
    });
  });
}

}  // namespace starling
