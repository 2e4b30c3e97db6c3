#pragma once

#include <cstdint>

#include "core/operations/accesses.h"
#include "core/tensor.h"
#include "core/view.h"

// Attention, and the rotation of its queries and keys by their places.
namespace starling {

/// What both passes of scaled dot product attention take. q[N,H,T,D]; k, v[N,Hkv,S,D], whose heads
/// are shared by groups of H/Hkv heads of q; mask (optional) [N,H,T,S], is added to the scaled
/// scores. The D numbers of a place lie side by side in memory, all other strides are free, and the
/// mask's may be 0 too. `causal` leaves query i the keys j <= i. Weights are dropped with
/// probability p, as a Dropout of all weights [N,H,T,S] with this key and counter does. A query
/// whose keys are all masked (-infinity) has zeros and zero gradients. Memory beside the tensors is
/// linear in T and S. Low precision: all tensors but lse have it.
struct Attention {
  View q, k, v, mask;
  bool causal = false;
  double scale = 1.0;
  double p = 0.0;
  std::uint64_t key = 0, counter = 0;
};

/// y[N,H,T,D] = softmax(scale · q·kᵀ + mask) · v, and lse[N,H,T], the logarithm of the
/// exponentials' sum, fp64 or fp32, for the backward pass.
struct AttentionForward : Attention {
  View y;
  Tensor lse;
  Accesses accesses() const;
};

/// The gradients dq, dk, dv from that of y. They may be parts of one tensor. The same bits in every
/// run and with any number of threads.
struct AttentionBackward : Attention {
  View y, dy;
  Tensor lse;
  View dq, dk, dv;
  Accesses accesses() const;
};

/// Rotary position embedding (Su et al. 2021, arXiv 2104.09864). Pair i of the D numbers of a row,
/// which are numbers i and i + D/2, or `interleaved` 2i and 2i + 1, is turned by position ·
/// base^(-2i/D); with `inverse` back, which is the gradient. Angles are computed in fp64. x and y
/// are [R,D]; row r has position r / repeat modulo their number, an int32; without positions these
/// are first, first + 1, …, `count` of them. y may be x.
struct Rotary {
  Tensor x, positions, y;
  std::int64_t first = 0, count = 0;
  double base = 10000.0;
  std::int64_t repeat = 1;
  bool interleaved = false, inverse = false;
  /// How many positions there are.
  std::int64_t places() const { return positions ? positions.elements() : count; }
  Accesses accesses() const { return Accesses().read({x, positions}).write({y}); }
};

}  // namespace starling
