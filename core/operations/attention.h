#pragma once

#include <compare>
#include <cstdint>

#include "core/operations/accesses.h"
#include "core/operations/rotary_frequencies.h"
#include "core/tensor.h"
#include "core/view.h"

// Attention and rotary position embedding.
namespace starling {

/// Which keys a query may see by its place alone.
struct AttentionMask {
  AttentionMask(bool causal_ = false, std::int64_t window_ = 0)
      : causal(causal_), window(window_) {}
  bool causal;          ///< query i: keys j <= i
  std::int64_t window;  ///< with `causal` query i: keys j > i - window; 0: any

  auto operator<=>(const AttentionMask&) const = default;
};

/// Common arguments of both passes of scaled dot product attention. q[N,H,T,D]; k, v[N,Hkv,S,D],
/// each head of which is shared by H/Hkv heads of q; mask (optional) [N,H,T,S] is added to the
/// scaled scores. The last dimension must be contiguous; other strides are arbitrary, the mask's
/// may be 0. `positions` (optional, with `causal` and T = S), int32 [N,T]: the place of each token
/// in its document; query i sees keys j >= i - positions[i] alone. Documents follow one another, so
/// i - positions[i] does not fall from one i to the next. Weights are dropped with probability p,
/// like a Dropout of all weights [N,H,T,S] with this key and counter. A query whose keys are all
/// masked (-infinity) gives zeros and zero gradients. Additional memory is linear in T and S. In
/// low precision all tensors but lse have that dtype.
struct Attention : AttentionMask {
  View q, k, v, mask;
  Tensor positions;
  double scale = 1.0;
  double p = 0.0;
  std::uint64_t key = 0, counter = 0;
};

/// y[N,H,T,D] = softmax(scale · q·kᵀ + mask) · v, and for the backward pass lse[N,H,T], the
/// log-sum-exp of the scores in fp64 or fp32.
struct AttentionForward : Attention {
  View y;
  Tensor lse;
  Accesses accesses() const;
};

/// The gradients dq, dk, dv, which may be views of one tensor. The bits do not depend on the run or
/// the number of threads.
struct AttentionBackward : Attention {
  View y, dy;
  Tensor lse;
  View dq, dk, dv;
  Accesses accesses() const;
};

/// Rotary position embedding (Su et al. 2021, arXiv 2104.09864). Rotates pair i of a row, which is
/// elements i and i + D/2, or with `interleaved` 2i and 2i + 1, by position times its frequency;
/// with `inverse` by the negative angle, which gives the gradient. Angles are computed in fp64. x
/// and y are [R,D]; row r has position number (r / repeat) modulo places(). Positions are int32, or
/// if empty first, first + 1, …, `count` of them. y may be x.
struct Rotary {
  Tensor x, positions, y;
  std::int64_t first = 0, count = 0;
  RotaryFrequencies frequencies = {};
  std::int64_t repeat = 1;
  bool interleaved = false, inverse = false;
  /// The number of positions.
  std::int64_t places() const { return positions ? positions.elements() : count; }
  Accesses accesses() const { return Accesses().read({x, positions}).write({y}); }
};

}  // namespace starling
