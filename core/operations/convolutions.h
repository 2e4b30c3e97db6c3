#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/operations/accesses.h"
#include "core/tensor.h"

// Convolutions and poolings: windows over images.
namespace starling {

/// Geometry of a 2-D convolution or pooling: {height, width} of each.
struct Window2d {
  std::array<std::int64_t, 2> kernel{1, 1};
  std::array<std::int64_t, 2> stride{1, 1};
  std::array<std::int64_t, 2> padding{0, 0};
  std::array<std::int64_t, 2> dilation{1, 1};
  std::int64_t groups = 1;

  /// Output height (axis 0) or width (axis 1) for an input of `size`: floor((size + 2p - d(k-1) -
  /// 1)/s) + 1.
  std::int64_t output(int axis, std::int64_t size) const {
    const auto i = static_cast<std::size_t>(axis);
    return (size + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) / stride[i] + 1;
  }
};

/// The sizes that a transposed convolution gives images of `size`: the smallest that the window
/// makes such of, and `more` pixels, fewer than its stride.
inline std::array<std::int64_t, 2> transposed_output(const std::array<std::int64_t, 2>& size,
                                                     const Window2d& window,
                                                     const std::array<std::int64_t, 2>& more) {
  std::array<std::int64_t, 2> result{};
  for (std::size_t i = 0; i < 2; ++i) {
    result[i] = (size[i] - 1) * window.stride[i] - 2 * window.padding[i] +
                window.dilation[i] * (window.kernel[i] - 1) + more[i] + 1;
  }
  return result;
}

/// y[N,P,Q,O] = x[N,H,W,C] * weight[O,kH,kW,C/groups] (+ bias[O], optional).
struct Conv2dForward {
  Tensor x, weight, bias, y;
  Window2d window;
  Accesses accesses() const {
    return Accesses().read({x, weight, bias}).write({y}).convolves(y, weight);
  }
};

/// dx from dy and the weight.
struct Conv2dBackwardData {
  Tensor dy, weight, dx;
  Window2d window;
  Accesses accesses() const {
    return Accesses().read({dy, weight}).write({dx}).convolves(dy, weight);
  }
};

/// dweight (and dbias, optional) from x and dy.
struct Conv2dBackwardWeights {
  Tensor x, dy, dweight, dbias;
  Window2d window;
  bool accumulate = false;
  Accesses accesses() const {
    return Accesses().read({x, dy}).output(accumulate, {dweight, dbias}).convolves(dy, dweight);
  }
};

enum class Pooling : std::uint8_t { kMax, kAverage, kBlur };

/// The longest side of a blur's window: up to here its weights are exact in every floating type.
inline constexpr std::int64_t kLongestBlur = 7;

/// y[N,P,Q,C] from x[N,H,W,C]. Max pooling writes `index` (int32, shape of y, optional in
/// inference): the flat h·W + w of the first maximum; padding counts as -infinity. Average pooling
/// divides by the window's whole size, padding included, as PyTorch does by default. A blur (Zhang
/// 2019, arXiv 1904.11486) weighs the pixel in row i and column j of a kH×kW window by the binomial
/// filter (kH-1 over i)·(kW-1 over j)/2^(kH+kW-2), [1 2 1]⊗[1 2 1]/16 for 3×3; padding counts as
/// zeros. Without dilation.
struct Pool2dForward {
  Pooling kind = Pooling::kMax;
  Tensor x, y, index;
  Window2d window;
  Accesses accesses() const {
    return Accesses().read({x}).write({y, index}).blurs(kind, y, window);
  }
};

struct Pool2dBackward {
  Pooling kind = Pooling::kMax;
  Tensor dy, index, dx;
  Window2d window;
  Accesses accesses() const {
    return Accesses().read({dy, index}).write({dx}).blurs(kind, dy, window);
  }
};

/// The filters of a blur as a convolution of every channel alone has them, [channels][kH·kW], the
/// same for each channel: one channel's. Error(kInternal) for a window that is longer than
/// kLongestBlur or has a dilation.
std::vector<double> blur_filter(const Window2d& window);

}  // namespace starling
