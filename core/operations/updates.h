#pragma once

#include <cstdint>
#include <vector>

#include "core/operations/accesses.h"
#include "core/operations/codecs.h"
#include "core/tensor.h"

// The update of a bucket, and its control values on the device.
namespace starling {

/// Computes an update's control values from squared norms of gradients, on the device. norm = scale
/// · sqrt(Σ totals[first … first + count - 1]); control (fp64 [2]) = {clip factor, skip}. The
/// factor is min(1, clip / (norm + 1e-6)), or 1 if clip is 0 or norm is NaN; skip is 1 if
/// check_finite is set and the norm is not finite, otherwise 0.
struct GradientControl {
  Tensor totals;  ///< fp64
  std::int64_t first = 0, count = 0;
  double scale = 1.0, clip = 0.0;
  bool check_finite = false;
  Tensor control;
  Accesses accesses() const {
    return Accesses().read({totals.slice(first, Shape{count})}).write({control});
  }
};

class OptimizerRule;  // kernels/optimizer.h

/// Elements per entry of UpdateArgs::decay.
inline constexpr std::int64_t kDecayBlock = 32;

/// The entry's value if weight decay applies; otherwise 0.
inline constexpr std::uint8_t kDecays = 1;

/// A parameter's range in a bucket, in multiples of 32 elements, including padding, which is zero
/// in all of a bucket's tensors.
struct LayerExtent {
  std::int64_t first = 0, elements = 0;
  bool weight = true;  ///< has two or more dimensions
  /// As a matrix: the first dimension, and the product of the others
  std::int64_t rows = 0, columns = 0;
  std::int64_t padding = 0;  ///< elements of padding
  /// In UpdateLayers::extents: offset of its states
  std::int64_t state_first = 0;
};

/// Tables for rules that need norms of whole parameters (OptimizerRule::measures_layers), made by
/// make_update_layers() (kernels/optimizer.h). A *layer* is a parameter, a *piece* a part of it
/// whose squares are summed together.
struct UpdateLayers {
  Tensor owner;   ///< int32, one per 32 elements: the layer that they belong to
  Tensor pieces;  ///< int32 [pieces, 2]: range in `owner`: first, count
  /// int32 [layers, 4]: range of pieces: first, count; first entry of `owner`; 2·padding + (has two
  /// or more dimensions)
  Tensor layers;
  /// fp64 [pieces, 2], scratch: sums of squares of c and of what the rule measures
  Tensor sums;
  Tensor factors;  ///< fp64 [layers], scratch: the rule's factor from the two norms
  /// On the host: weights that the rule processes as matrices after the update, see run_update()
  /// (kernels/optimizer.h).
  std::vector<LayerExtent> matrices;
  std::vector<LayerExtent> extents;  ///< on the host: all layers, if the rule has a workspace
  Tensor workspace;                  ///< for one matrix at a time, or for the rule's issue()
  Tensor matrix_control;             ///< fp64 [2], UpdateArgs::control of the matrices' updates
  /// UpdateArgs::decay of zeros, for as many elements as the bucket or a state has
  Tensor no_decay;
};

/// The fused update of a bucket (semantics.md section 2) in one pass over memory: mix, scale and
/// clip, decay, rule.
///     c = self_weight · x + Σ_k weights[k] · received[k]     (c = x if received is empty)
///     c = self_weight · x + weights[0] · (received[0] + received[1] + …)     (if sum_received)
///     g = gradient_scale · control[0] · gradient          (control[0] = 1 if control is empty)
///     x_out, states = rule(c, g, states)     (x_out = c, states unchanged, if control[1] is not 0)
///     low = x_out rounded                    (if given)
/// Other tensors have the same number of elements (a multiple of 32) and dtype.
struct UpdateArgs {
  Tensor x;         ///< read
  Tensor x_out;     ///< written; may be x
  Tensor gradient;  ///< read
  /// One per name in the rule's state_names(); zero before the first step
  std::vector<Tensor> states;
  std::vector<Tensor> received;  ///< from neighbours
  std::vector<double> weights;   ///< of `received`
  /// `received` are summed in order first; weights has one entry. On GPUs only if encoded
  bool sum_received = false;
  EncodedTerms encoded;  ///< with sum_received: `received` are encoded messages
  double self_weight = 1.0;
  double gradient_scale = 1.0;  ///< 1/(loss scale) times, e.g., all-reduce's 1/n
  /// gradient_scale includes 1/(loss scale), which a graph replaces by that of each launch
  bool unscales = true;
  /// Optional, fp64 [2] on the device: {factor, skip}, see GradientControl
  Tensor control;
  Tensor low;  ///< optional, bf16 or fp16: receives x_out
  /// Optional, fp64 [1], on CPUs only: set to the sum of squares of `gradient`, without scaling and
  /// clipping
  Tensor squares;
  /// uint8, one entry per 32 elements: kDecays where weight decay applies
  Tensor decay;
  UpdateLayers layers;    ///< for rules that measure layers; otherwise ignored
  double lr = 0.0;        ///< of this update
  std::int64_t step = 1;  ///< the optimizer's s = 1, 2, …
};

/// An update by a rule, as an operation.
struct Update {
  const OptimizerRule& rule;
  const UpdateArgs& args;
  Accesses accesses() const {
    Accesses result = Accesses()
                          .read({args.x, args.gradient, args.control, args.decay})
                          .write({args.x_out, args.low, args.squares});
    for (const Tensor& state : args.states) result.change({state});
    for (const Tensor& received : args.received) result.read({received});
    if (args.layers.owner) {
      result.read({args.layers.owner, args.layers.pieces, args.layers.layers})
          .change({args.layers.sums, args.layers.factors});
    }
    return result;
  }
};

}  // namespace starling
