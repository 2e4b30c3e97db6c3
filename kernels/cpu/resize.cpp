#include "kernels/cpu/resize.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/pixels.h"
#include "kernels/cpu/resize_kernels.h"

STARLING_DECLARE_PER_ISA(const ResizeKernels& resize_copy();)

namespace starling::cpu {

const ResizeKernels& resize_kernels() {
  static const ResizeKernels& chosen =
      select_isa(detected_isa(), scalar::resize_copy(), avx2::resize_copy(), avx512::resize_copy());
  return chosen;
}

namespace {

/// Weights of `outputs` numbers made of a box [begin, begin + length) among `inputs`.
void make_taps(Resizer::Taps& taps, std::int64_t inputs, double begin, double length,
               std::int64_t outputs, Interpolation interpolation) {
  const double step = length / static_cast<double>(outputs);
  const auto count = static_cast<std::size_t>(outputs);
  taps.first.resize(count);
  taps.count.resize(count);
  taps.most =
      interpolation == Interpolation::kNearest
          ? 2
          : static_cast<std::int64_t>(std::ceil(math::filter_reach(interpolation, step))) * 2 + 2;
  taps.weights.assign(count * static_cast<std::size_t>(taps.most), 0);
  for (std::size_t i = 0; i < count; ++i) {
    taps.count[i] =
        math::resize_taps(inputs, begin, step, static_cast<std::int64_t>(i), interpolation,
                          static_cast<int>(taps.most), taps.first[i],
                          taps.weights.data() + i * static_cast<std::size_t>(taps.most));
  }
}

constexpr std::size_t kFour = 4;  // outputs at a time

/// Makes the weights for each four outputs and pair of taps, each four times. Returns the number of
/// pairs an output.
std::int64_t make_weights(const Resizer::Taps& taps, std::size_t outputs,
                          std::vector<std::int32_t>& weights) {
  const auto pairs =
      static_cast<std::size_t>((*std::max_element(taps.count.begin(), taps.count.end()) + 1) / 2);
  weights.assign(outputs * pairs * 4, 0);
  for (std::size_t x = 0; x < taps.count.size(); ++x) {
    const std::int32_t* own = taps.weights.data() + x * static_cast<std::size_t>(taps.most);
    for (std::size_t t = 0; t < pairs; ++t) {
      std::int32_t* to = weights.data() + ((x / kFour * pairs + t) * kFour + x % kFour) * 4;
      std::fill_n(to, 4, weight_pair(own[2 * t], own[2 * t + 1]));
    }
  }
  return static_cast<std::int64_t>(pairs);
}

}  // namespace

void Resizer::resize(const PixelWindow& window, const PixelBox& box, Interpolation interpolation,
                     std::int64_t height, std::int64_t width, std::uint8_t* out) {
  const ResizeKernels& kernels = resize_kernels();
  make_taps(rows_, window.height, box.top, box.height, height, interpolation);
  make_taps(columns_, window.width, box.left, box.width, width, interpolation);
  // Columns outside of what the box needs are left out of the first pass.
  std::int64_t begin = window.width, end = 0;
  for (std::size_t x = 0; x < columns_.first.size(); ++x) {
    begin = std::min<std::int64_t>(begin, columns_.first[x]);
    end = std::max<std::int64_t>(end, columns_.first[x] + columns_.count[x]);
  }
  for (std::int32_t& first : columns_.first) first -= static_cast<std::int32_t>(begin);
  const std::int32_t last = columns_.first.back();
  columns_.first.resize((columns_.first.size() + kFour - 1) / kFour * kFour, last);
  ResizeColumns columns{
      .width = width, .channels = window.channels, .first = columns_.first.data()};
  columns.taps = make_weights(columns_, columns_.first.size(), column_weights_);
  columns.weights = column_weights_.data();
  const std::int64_t numbers = window.channels * (end - begin);
  row_.resize(static_cast<std::size_t>(numbers + 2 * columns.taps * window.channels +
                                       ResizeColumns::kBehind));
  for (std::int64_t y = 0; y < height; ++y) {
    const auto row = static_cast<std::size_t>(y);
    kernels.mix_rows(window.pixels + rows_.first[row] * window.stride + window.channels * begin,
                     window.stride,
                     rows_.weights.data() + row * static_cast<std::size_t>(rows_.most),
                     rows_.count[row], numbers, row_.data());
    kernels.mix_columns(row_.data(), columns, out + window.channels * y * width);
  }
}

void resize_cut(const CutPicture& cut, const std::uint8_t* pixels, std::int64_t height,
                std::int64_t width, std::uint8_t* out) {
  const bool transposed = (cut.turn & CutPicture::kTransposed) != 0;
  const std::int64_t rows = transposed ? width : height, columns = transposed ? height : width;
  thread_local Resizer resizer;
  thread_local std::vector<std::uint8_t> lying;
  lying.resize(cut.turn == 0 ? 0 : static_cast<std::size_t>(3 * rows * columns));
  resizer.resize(
      {pixels, std::int64_t{3} * cut.width, cut.height, cut.width, 3},
      {.top = cut.box_top, .left = cut.box_left, .height = cut.box_height, .width = cut.box_width},
      static_cast<Interpolation>(cut.interpolation), rows, columns,
      cut.turn == 0 ? out : lying.data());
  if (cut.turn == 0) return;
  for (std::int64_t i = 0; i < height * width; ++i, out += 3) {
    const std::int64_t y = (cut.turn & CutPicture::kMirrorY) != 0 ? height - 1 - i / width
                                                                  : i / width,
                       x = (cut.turn & CutPicture::kMirrorX) != 0 ? width - 1 - i % width
                                                                  : i % width;
    std::copy_n(lying.data() + 3 * (transposed ? x * columns + y : y * columns + x), 3, out);
  }
}

void enlarge(const std::int32_t* part, std::int64_t height, std::int64_t width,
             std::int64_t channels, const std::uint8_t* from, std::uint8_t* to) {
  thread_local Resizer resizer;
  thread_local std::vector<std::uint8_t> wide, resized;
  // Of one or two channels the resizer takes pixels of four.
  const std::int64_t taken = channels < 3 ? 4 : channels, pixels = height * width;
  std::uint8_t* made = to;
  if (channels < 3) {
    wide.resize(static_cast<std::size_t>(4 * pixels));
    resized.resize(wide.size());
    for (std::int64_t i = 0; i < pixels; ++i)
      std::copy_n(from + channels * i, channels, wide.data() + 4 * i);
    from = wide.data();
    made = resized.data();
  }
  const auto length = [](std::int32_t of) { return static_cast<double>(of); };
  resizer.resize(
      {from + taken * (part[0] * width + part[1]), taken * width, part[2], part[3], taken},
      {0, 0, length(part[2]), length(part[3])}, static_cast<Interpolation>(part[4]), height, width,
      made);
  for (std::int64_t i = 0; channels < 3 && i < pixels; ++i)
    std::copy_n(made + 4 * i, channels, to + channels * i);
}

}  // namespace starling::cpu
