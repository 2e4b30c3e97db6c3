#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/config.h"
#include "core/operations/updates.h"
#include "core/registry.h"

namespace starling {

/// Throws Error(kInternal) if the arguments do not fit the rule or each other. Every backend's
/// update begins with it.
void check_update(const OptimizerRule& rule, const UpdateArgs& args);

/// The fixed order of summation of a layer's squares, which does not depend on threads or buckets:
/// a piece has kLayerPiece elements, element i adds to lane i mod kLayerLanes, and lanes are summed
/// pairwise. Piece j adds to chain j mod kLayerChains, and chains are summed in order.
inline constexpr std::int64_t kLayerPiece = 16384;
inline constexpr std::int64_t kLayerLanes = 1024;
inline constexpr std::int64_t kLayerChains = 32;

/// Makes the tables for a bucket (or part of one) of `elements`, with adjacent layers starting at
/// 0. Waits until they are on the device.
UpdateLayers make_update_layers(Backend& backend, const std::vector<LayerExtent>& layers,
                                std::int64_t elements);
/// Adds the extents of layers and matrices, and a workspace (OptimizerRule::workspace()), if the
/// rule needs them. `shared`: a workspace that consecutive updates share.
void add_matrices(Backend& backend, const OptimizerRule& rule, DType dtype,
                  const std::vector<LayerExtent>& layers, UpdateLayers& tables,
                  const Tensor& shared = {});
/// Rounds up to a multiple of kDecayBlock.
constexpr std::int64_t whole_blocks(std::int64_t elements) {
  return (elements + kDecayBlock - 1) / kDecayBlock * kDecayBlock;
}
/// Elements of a layer in each state: the rule's state_elements(), or those of the layer.
std::int64_t state_elements_of(const OptimizerRule& rule, const LayerExtent& layer);
/// Bytes of the tables for a layer of `elements`.
std::int64_t update_layer_bytes(std::int64_t elements);

/// Part of a bucket's update on a CPU: `n` elements; offset and n are multiples of 32.
template <class T>
struct UpdateSpan {
  const T* x = nullptr;
  T* x_out = nullptr;
  const T* gradient = nullptr;
  T* states[4] = {};
  const T* const* received = nullptr;
  const T* weights = nullptr;
  int terms = 0;
  T self_weight = 1;
  T gradient_scale = 1;
  const std::uint8_t* decay = nullptr;
  /// For rules that measure layers: the layer of each 32 elements
  const std::int32_t* owner = nullptr;
  const double* factors = nullptr;  ///< by layer: the rule's factor
  std::int64_t n = 0;
};

/// One step of a rule on the CPU, made once per update and run on spans by all threads.
template <class T>
struct CpuStep {
  std::function<void(const UpdateSpan<T>&)> update;
  /// For rules that measure layers: for each element i of the span, at most kLayerLanes of them,
  /// adds the square of c to squares[i] and that of the measured value to squares[kLayerLanes + i].
  /// Does not write states.
  std::function<void(const UpdateSpan<T>&, double* squares)> measure;
  /// A layer's factor from the two sums of squares. `weight`: has two or more dimensions; `decays`:
  /// weight decay applies; `numbers`: the number of squares.
  std::function<double(double parameter, double measured, bool weight, bool decays,
                       std::int64_t numbers)>
      layer_factor;
};

/// The model that is tested and written at the end: p + weight · states[state].
struct EvaluatedModel {
  int state = -1;  ///< -1: p itself
  double weight = 0.0;
};

/// Properties of a rule.
struct RuleFacts {
  /// Names of the state tensors in checkpoints, at most 4: "exp_avg", "exp_avg_sq".
  std::vector<std::string> states = {};
  /// The period after which updates are the same, apart from coefficients. Above 1 for rules whose
  /// step's type depends on s: a graph can only be launched for steps of the same phase.
  std::int64_t phases = 1;
  /// It corrects for the noise of a rank's own gradients, so it must not get means over all ranks.
  bool corrects_noise = false;
  /// Its formulas assume a constant learning rate: no schedule.
  bool needs_constant_rate = false;
  /// For rules whose model is not the parameters themselves, e.g. an average of them.
  EvaluatedModel evaluated = {};
  // Set by RuleKernel:
  /// Needs norms of whole parameters before the update (LARS, LAMB), and so UpdateArgs::layers.
  bool measures_layers = false;
  bool finishes_matrices = false;  ///< has finish_matrix()
  bool built_in = false;           ///< its GPU kernels are in the CUDA library
};

/// An optimizer's rule: how one step updates a parameter and its states. Immutable, apart from
/// know_ranks(); the state tensors are in the buckets. RuleKernel (kernels/math/update_loop.h)
/// makes one from a struct of settings and a host-device function.
class OptimizerRule {
 public:
  explicit OptimizerRule(RuleFacts facts) : facts_(std::move(facts)) {}
  virtual ~OptimizerRule() = default;
  const RuleFacts& facts() const { return facts_; }
  /// Step s = 1, 2, … on the CPU with learning rate lr; T is float or double.
  template <class T>
  CpuStep<T> step(double lr, std::int64_t s) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return step_fp32(lr, s);
    } else {
      return step_fp64(lr, s);
    }
  }
  /// Memory traffic of a step per parameter in bytes, without mixing (AdamW fp32: 28).
  virtual int bytes_per_parameter(int element_size) const = 0;
  /// Called before the first update with the number of ranks, for rules with a setting "ranks".
  virtual void know_ranks(int) {}
  /// Elements of a parameter's states (a multiple of 32), if they are not as large as the
  /// parameter: Adafactor's averages over rows and columns. 0: as large as the parameter, including
  /// padding.
  virtual std::int64_t state_elements(const LayerExtent&) const { return 0; }
  /// Elements of scratch memory for issue() with a bucket of these layers, or finish_matrix() with
  /// one of them.
  virtual std::int64_t workspace(const std::vector<LayerExtent>&) const { return 0; }
  /// The update of a bucket, issued to the current stream: by default backend.update(), then
  /// finish_matrix() for each matrix. States have the sizes of state_elements(); otherwise as in
  /// UpdateArgs.
  virtual void issue(Backend& backend, const UpdateArgs& args) const;
  /// Work on a whole matrix after backend.update() (Muon's products), issued to the current stream.
  /// `args` is the matrix's part of the update, with x_out and states updated, including padding;
  /// control, if given, is {1, skip}.
  virtual void finish_matrix(Backend& backend, const UpdateArgs& args, const LayerExtent& layer,
                             const Tensor& workspace) const;

 protected:
  RuleFacts facts_;

 private:
  virtual CpuStep<float> step_fp32(double lr, std::int64_t s) const = 0;
  virtual CpuStep<double> step_fp64(double lr, std::int64_t s) const = 0;
};

/// OptimizerRule::issue().
void run_update(Backend& backend, const OptimizerRule& rule, const UpdateArgs& args);

/// Default of optimizer.lr, unless the rule has its own.
inline constexpr double kUsualRate = 1e-3;
/// Rules by name. A registered function reads the rule's keys (including `weight_decay`) but not
/// `type`, `lr` and `decay`, which the trainer reads.
class OptimizerRegistry : public Registry<std::unique_ptr<OptimizerRule>, ConfigSection&> {
 public:
  using Registry::Registry;
  void add(const std::string& name, Maker maker, std::string summary = {},
           double rate = kUsualRate);
  /// Default of optimizer.lr.
  double rate(const std::string& name) const;
  /// All defaults, for docs/config.md: "0.001, but 0.1 for `sgd`, 0.01 for `rmsprop`, …".
  std::string rates() const;

 private:
  std::vector<std::pair<std::string, double>> unusual_;  ///< in the order of add()
};
OptimizerRegistry& optimizers();
void register_builtin_optimizers();

}  // namespace starling
