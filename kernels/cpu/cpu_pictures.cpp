#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/operations/pictures.h"
#include "kernels/cpu/cpu_backend_detail.h"
#include "kernels/cpu/pixels.h"
#include "kernels/cpu/resize.h"
#include "kernels/math/pixel.h"
#include "kernels/math/resize_pictures.h"

STARLING_DECLARE_PER_ISA(void change_image(const ImageSteps& image);)

// Images of bytes. Several threads may issue these operations, as those of a loader do.
namespace starling {

static_assert(sizeof(PixelStep) == kPixelStepNumbers * sizeof(std::int32_t));
static_assert(sizeof(CutPicture) == kCutPictureNumbers * sizeof(std::int32_t));

void cpu::change_image(const ImageSteps& image, Isa isa) {
  select_isa(isa, &scalar::change_image, &avx2::change_image, &avx512::change_image)(image);
}

void CpuBackend::issue(const ResizePictures& args) {
  const Shape shape = args.y.shape();
  const auto* parts = reinterpret_cast<const CutPicture*>(args.parts.data<std::int32_t>());
  threads_.parallel_for(shape[0], 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      cpu::resize_cut(parts[n], args.x.data<std::uint8_t>() + parts[n].place, shape[1], shape[2],
                      args.y.data<std::uint8_t>() + n * shape[1] * shape[2] * shape[3]);
    }
  });
}

void CpuBackend::issue(const ChangePixels& args) {
  const Shape shape = args.x.shape();
  const std::int64_t size = shape[1] * shape[2] * shape[3], most = args.steps.shape()[1];
  const auto* steps = reinterpret_cast<const PixelStep*>(args.steps.data<std::int32_t>());
  threads_.parallel_for(shape[0], 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      cpu::change_image({.height = shape[1],
                         .width = shape[2],
                         .channels = shape[3],
                         .steps = steps + n * most,
                         .most = most,
                         .x = args.x.data<std::uint8_t>() + n * size,
                         .scratch = args.scratch.data<std::uint8_t>() + n * size,
                         .y = args.y.data<std::uint8_t>() + n * size},
                        isa_);
    }
  });
}

namespace {

/// What each byte of each channel becomes.
template <class T>
struct PixelTable {
  std::array<double, 4> mean{std::numeric_limits<double>::quiet_NaN()}, deviation{};
  std::array<std::array<T, 256>, 4> numbers{};
};

/// The calling thread's, which is made again where another scale is asked for.
template <class T>
const PixelTable<T>& table_of(const AugmentImages& args) {
  thread_local PixelTable<T> table;
  if (table.mean == args.mean && table.deviation == args.std) return table;
  table.mean = args.mean;
  table.deviation = args.std;
  for (std::size_t c = 0; c < table.numbers.size(); ++c) {
    for (std::size_t v = 0; v < table.numbers[c].size(); ++v)
      table.numbers[c][v] = cpu::narrow<T>(math::normalized_pixel<Compute<T>>(
          static_cast<std::uint8_t>(v), args.mean[c], args.std[c]));
  }
  return table;
}

/// The numbers of a batch's images before they are mixed.
template <class T>
class AugmentedRows {
 public:
  explicit AugmentedRows(const AugmentImages& args)
      : x_(args.x.data<std::uint8_t>()),
        params_(cpu::optional<std::int32_t>(args.params)),
        boxes_(cpu::optional<std::int32_t>(args.boxes)),
        boxes_each_(args.boxes_each()),
        padding_(args.crop_padding),
        height_(args.x.shape()[1]),
        width_(args.x.shape()[2]),
        channels_(args.x.shape()[3]),
        table_(table_of<T>(args).numbers) {
    for (std::size_t k = 0; k < values_.size(); ++k)
      values_[k] = cpu::narrow<T>(static_cast<Compute<T>>(args.values[k]));
  }

  /// Writes the width × channels numbers of image n's row y.
  void write(std::int64_t n, std::int64_t y, T* out) const {
    const std::int32_t* window = params_ ? params_ + 3 * n : nullptr;
    const std::int64_t from_y = y + (window ? window[0] - padding_ : 0),
                       shift = window ? window[1] - padding_ : 0;
    // Columns of the window that lie inside the image.
    const std::int64_t begin = std::clamp<std::int64_t>(-shift, 0, width_),
                       end = std::clamp(width_ - shift, begin, width_);
    const bool inside = from_y >= 0 && from_y < height_;
    const std::uint8_t* from =
        x_ + ((n * height_ + (inside ? from_y : 0)) * width_ + begin + shift) * channels_;
    if (!inside) {
      fill(out, 0, width_);
    } else if (window && window[2] != 0) {
      fill(out, 0, width_ - end);
      convert_mirrored(from, end - begin, out + (width_ - end) * channels_);
      fill(out, width_ - begin, width_);
    } else {
      fill(out, 0, begin);
      convert(from, end - begin, out + begin * channels_);
      fill(out, end, width_);
    }
    for (std::int64_t k = 0; k < boxes_each_; ++k) {
      const std::int32_t* box = boxes_ + (n * boxes_each_ + k) * 4;
      if (y < box[0] || y >= box[2]) continue;
      const std::int64_t left = std::clamp<std::int64_t>(box[1], 0, width_),
                         right = std::clamp<std::int64_t>(box[3], left, width_);
      std::fill(out + left * channels_, out + right * channels_,
                values_[static_cast<std::size_t>(k)]);
    }
  }

 private:
  void fill(T* row, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t x = begin; x < end; ++x) {
      for (std::int64_t c = 0; c < channels_; ++c)
        row[x * channels_ + c] = table_[static_cast<std::size_t>(c)][0];
    }
  }

  void convert(const std::uint8_t* from, std::int64_t pixels, T* out) const {
    const auto& [first, second, third, fourth] = table_;
    if (channels_ == 3) {
      for (std::int64_t i = 0; i < pixels; ++i) {
        out[3 * i] = first[from[3 * i]];
        out[3 * i + 1] = second[from[3 * i + 1]];
        out[3 * i + 2] = third[from[3 * i + 2]];
      }
    } else if (channels_ == 1) {
      for (std::int64_t i = 0; i < pixels; ++i) out[i] = first[from[i]];
    } else {
      for (std::int64_t i = 0; i < pixels * channels_; ++i)
        out[i] = table_[static_cast<std::size_t>(i % channels_)][from[i]];
    }
  }

  void convert_mirrored(const std::uint8_t* from, std::int64_t pixels, T* out) const {
    const auto& [first, second, third, fourth] = table_;
    const std::uint8_t* last = from + (pixels - 1) * channels_;
    if (channels_ == 3) {
      for (std::int64_t i = 0; i < pixels; ++i) {
        out[3 * i] = first[last[-3 * i]];
        out[3 * i + 1] = second[last[1 - 3 * i]];
        out[3 * i + 2] = third[last[2 - 3 * i]];
      }
    } else if (channels_ == 1) {
      for (std::int64_t i = 0; i < pixels; ++i) out[i] = first[last[-i]];
    } else {
      for (std::int64_t i = 0; i < pixels; ++i)
        convert(last - i * channels_, 1, out + i * channels_);
    }
  }

  const std::uint8_t* x_;
  const std::int32_t *params_, *boxes_;
  std::int64_t boxes_each_, padding_, height_, width_, channels_;
  const std::array<std::array<T, 256>, 4>& table_;
  std::array<T, 4> values_;
};

template <class T>
void blend(Compute<T> share, std::span<const Compute<T>> own, std::span<const Compute<T>> neighbour,
           T* out) {
  for (std::size_t i = 0; i < own.size(); ++i)
    out[i] = cpu::narrow<T>(math::mixed_pixel(share, own[i], neighbour[i]));
}

}  // namespace

void CpuBackend::issue(const AugmentImages& args) {
  const Shape shape = args.x.shape();
  const std::int64_t images = shape[0], height = shape[1], channels = shape[3],
                     row_size = shape[2] * channels;
  const std::int32_t* mix = cpu::optional<std::int32_t>(args.mix);
  dispatch_floating(args.y.dtype(), [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    const AugmentedRows<T> rows(args);
    const AugmentedRows<C> wide(args);  // before numbers are rounded
    const C share = mix ? static_cast<C>(mix[0]) / static_cast<C>(math::kWholeShare) : C(1);
    T* y = args.y.data<T>();
    threads_.parallel_for(images, 1, [&](std::int64_t begin, std::int64_t end) {
      const auto mixed = static_cast<std::size_t>(mix ? row_size : 0);
      std::vector<C> own(mixed), neighbour(mixed);
      std::vector<T> whole(mixed);
      for (std::int64_t n = begin; n < end; ++n) {
        const std::int64_t other = n > 0 ? n - 1 : images - 1;
        T* to = y + n * height * row_size;
        for (std::int64_t h = 0; h < height; ++h, to += row_size) {
          if (share == C(1)) {
            rows.write(n, h, to);
          } else {
            wide.write(n, h, own.data());
            wide.write(other, h, neighbour.data());
            blend<T>(share, own, neighbour, to);
          }
          if (!mix || h < mix[1] || h >= mix[3]) continue;
          rows.write(other, h, whole.data());
          const std::int64_t left = std::clamp<std::int64_t>(mix[2], 0, shape[2]),
                             right = std::clamp<std::int64_t>(mix[4], left, shape[2]);
          std::copy(whole.begin() + left * channels, whole.begin() + right * channels,
                    to + left * channels);
        }
      }
    });
  });
}

}  // namespace starling
