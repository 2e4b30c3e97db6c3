#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/operations/accesses.h"
#include "core/tensor.h"

// Elementwise operations, and squared norms.
namespace starling {

enum class Activation : std::uint8_t { kNone, kRelu, kGelu, kSilu, kRelu6 };

/// y = x · mask / (1 - p); element i is kept where the Philox number of (key, counter, i) is >= p.
/// The backward pass calls it again on the gradient with the same key and counter, so no mask is
/// stored. y may be x.
struct Dropout {
  Tensor x, y;
  double p = 0.5;
  std::uint64_t key = 0;
  std::uint64_t counter = 0;  ///< distinct per layer use, step, micro-batch and rank
  Accesses accesses() const { return Accesses().read({x}).write({y}); }
};

/// y = cast of x, which may be uint8 or int32, to y's dtype.
struct Cast {
  Tensor x, y;
  Accesses accesses() const { return Accesses().read({x}).write({y}); }
};

/// out = Σ_k weight_k · in_k, of at most 8 terms; `accumulate` adds to out, otherwise out may be a
/// term.
struct WeightedSum {
  std::array<Tensor, 8> in;
  std::array<double, 8> weight{};
  int terms = 0;
  Tensor out;
  bool accumulate = false;
  Accesses accesses() const {
    Accesses result;
    for (int i = 0; i < terms; ++i) result.read({in[static_cast<std::size_t>(i)]});
    return result.output(accumulate, {out});
  }
};

/// totals[first + i] (fp64, on the device) = Σ x[i]², with the same bits as
/// Reduce::squared_distance() of each tensor. The tensors are all fp32 or all fp64. One call for
/// all gradients of a step, since launching a kernel for each would take longer than the sums.
struct SquaredNorms {
  std::vector<Tensor> x;
  Tensor totals;
  std::int64_t first = 0;
  Tensor results() const { return totals.slice(first, Shape{static_cast<std::int64_t>(x.size())}); }
  Accesses accesses() const {
    Accesses result;
    for (const Tensor& tensor : x) result.read({tensor});
    return result.write({results()});
  }
};

}  // namespace starling
