#include "apps/pictures/resize.h"

#include <algorithm>
#include <cmath>

#include "apps/pictures/resize_kernels.h"

STARLING_DECLARE_PER_ISA(const ResizeKernels& resize_copy();)

namespace starling {

const cpu::ResizeKernels& cpu::resize_kernels() {
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
      std::fill_n(to, 4, cpu::weight_pair(own[2 * t], own[2 * t + 1]));
    }
  }
  return static_cast<std::int64_t>(pairs);
}

}  // namespace

void Resizer::resize(const PixelWindow& window, const PixelBox& box, Interpolation interpolation,
                     std::int64_t height, std::int64_t width, std::uint8_t* out) {
  const cpu::ResizeKernels& kernels = cpu::resize_kernels();
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
  cpu::ResizeColumns columns{
      .width = width, .channels = window.channels, .first = columns_.first.data()};
  columns.taps = make_weights(columns_, columns_.first.size(), column_weights_);
  columns.weights = column_weights_.data();
  const std::int64_t numbers = window.channels * (end - begin);
  row_.resize(static_cast<std::size_t>(numbers + 2 * columns.taps * window.channels +
                                       cpu::ResizeColumns::kBehind));
  for (std::int64_t y = 0; y < height; ++y) {
    const auto row = static_cast<std::size_t>(y);
    kernels.mix_rows(window.pixels + rows_.first[row] * window.stride + window.channels * begin,
                     window.stride,
                     rows_.weights.data() + row * static_cast<std::size_t>(rows_.most),
                     rows_.count[row], numbers, row_.data());
    kernels.mix_columns(row_.data(), columns, out + window.channels * y * width);
  }
}

}  // namespace starling
