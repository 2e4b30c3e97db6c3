#pragma once

#include <cstdint>
#include <vector>

#include "core/operations/accesses.h"
#include "core/operations/codecs.h"
#include "core/tensor.h"

// A bucket's update, and what it is given on the device.
namespace starling {

/// From squared norms of gradients to what an update needs, on the device, without a wait. norm =
/// scale · sqrt(Σ totals[first … first + count - 1]); control (fp64 [2]) becomes {clip factor,
/// skip}: the factor is min(1, clip / (norm + 1e-6)), or 1 where clip is 0 or norm is NaN; skip is
/// 1 where check_finite is set and the norm is not finite, otherwise 0.
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

/// Elements that share one entry of UpdateArgs::decay.
inline constexpr std::int64_t kDecayBlock = 32;

/// Such an entry where weight decay applies; 0 elsewhere.
inline constexpr std::uint8_t kDecays = 1;

/// A parameter's place in a bucket: multiples of 32 elements, its padding included, which is zero
/// in all of a bucket's tensors.
struct LayerExtent {
  std::int64_t first = 0, elements = 0;
  bool weight = true;  ///< has two or more dimensions
  /// Of a weight as a matrix: its first dimension, and the product of the others
  std::int64_t rows = 0, columns = 0;
  std::int64_t padding = 0;  ///< how many of `elements` are padding
  /// In UpdateLayers::extents: where its part of the states begins
  std::int64_t state_first = 0;
};

/// Which elements make a parameter, for rules that measure whole parameters first
/// (OptimizerRule::measures_layers): made by make_update_layers (kernels/optimizer.h). A *layer* is
/// one parameter, a *piece* a part of it whose squares are summed together.
struct UpdateLayers {
  Tensor owner;   ///< int32, one per 32 elements: the layer that they belong to
  Tensor pieces;  ///< int32 [pieces, 2]: the first entry of `owner`, and how many
  /// int32 [layers, 4]: the first piece, how many, the first entry of `owner`, and 2·padding + (two
  /// or more dimensions)
  Tensor layers;
  /// fp64 [pieces, 2], memory of the update: squares of c and of what the rule measures
  Tensor sums;
  Tensor factors;  ///< fp64 [layers], memory of the update: what the rule made of the two norms
  /// On the host: the weights that the rule works on as whole matrices after the update, see
  /// run_update() (kernels/optimizer.h).
  std::vector<LayerExtent> matrices;
  std::vector<LayerExtent> extents;  ///< on the host, all layers, where the rule has a workspace
  Tensor workspace;                  ///< of one matrix at a time, or of the rule's issue()
  Tensor matrix_control;             ///< fp64 [2], what their updates have for UpdateArgs::control
  /// UpdateArgs::decay of zeros, for updates of as many elements as the bucket or a state has
  Tensor no_decay;
};

/// One bucket's fused update, semantics.md section 2: mix, scale and clip, decay, rule, all in one
/// pass over memory.
///     c = self_weight · x + Σ_k weights[k] · received[k]     (c = x where received is empty)
///     c = self_weight · x + weights[0] · (received[0] + received[1] + …)     (where sum_received)
///     g = gradient_scale · control[0] · gradient          (control[0] = 1 where control is empty)
///     x_out, states = rule(c, g, states)     (x_out = c, states kept, where control[1] is not 0)
///     low = x_out rounded                    (where low is given)
/// All other tensors hold the same number of elements (a multiple of 32) of one dtype.
struct UpdateArgs {
  Tensor x;         ///< read
  Tensor x_out;     ///< written; may be x
  Tensor gradient;  ///< read
  /// As many as the rule's state_names(); all zero before the first step
  std::vector<Tensor> states;
  std::vector<Tensor> received;  ///< what the neighbours sent
  std::vector<double> weights;   ///< theirs, one each
  /// `received` are a sum's terms, added in this order; weights has one entry. As numbers, a CPU's
  /// update only
  bool sum_received = false;
  EncodedTerms encoded;  ///< of such a sum: `received` are messages
  double self_weight = 1.0;
  double gradient_scale = 1.0;  ///< 1/(loss scale) and all-reduce's 1/n, multiplied
  /// gradient_scale has 1/(loss scale) in it: it follows that of each step where a graph is run
  /// again
  bool unscales = true;
  /// Optional, fp64 [2] on the device: {factor, skip}, see GradientControl
  Tensor control;
  Tensor low;  ///< optional, bf16 or fp16: receives x_out
  /// Optional, fp64 [1], of a CPU's update: becomes the sum of the gradient's squares as it lies
  /// there, neither scaled nor clipped
  Tensor squares;
  /// uint8, one entry per 32 elements: kDecays where weight decay applies
  Tensor decay;
  UpdateLayers layers;    ///< for a rule that measures layers; otherwise not looked at
  double lr = 0.0;        ///< of this update
  std::int64_t step = 1;  ///< the optimizer's s = 1, 2, …
};

/// The update by a rule, an operation like the others.
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
