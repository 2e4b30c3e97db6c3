#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"
#include "core/config.h"
#include "core/operations/updates.h"
#include "core/registry.h"

namespace starling {

/// Throws Error(kInternal) where the arguments do not fit the rule or each other: what every
/// backend's update begins with.
void check_update(const OptimizerRule& rule, const UpdateArgs& args);

/// Elements of a piece (UpdateLayers), and lanes: a piece's element i adds to lane i mod
/// kLayerLanes, then the lanes are halved until one is left. A layer's piece j adds to chain j mod
/// kLayerChains, and chains are added in their order. So no bit depends on threads or buckets.
inline constexpr std::int64_t kLayerPiece = 16384;
inline constexpr std::int64_t kLayerLanes = 1024;
inline constexpr std::int64_t kLayerChains = 32;

/// The tables for a bucket (or a part of one) of `elements`, whose layers lie side by side from 0
/// on. Returns when they are on the device.
UpdateLayers make_update_layers(Backend& backend, const std::vector<LayerExtent>& layers,
                                std::int64_t elements);
/// Adds what the rule needs to know of layers and matrices beyond their sums
/// (OptimizerRule::workspace): their places, and memory of that many elements, or `shared`, which
/// updates that come one after another may have in common.
void add_matrices(Backend& backend, const OptimizerRule& rule, DType dtype,
                  const std::vector<LayerExtent>& layers, UpdateLayers& tables,
                  const Tensor& shared = {});
/// Elements of a layer's part of each state: the rule's number, or as many as the layer has.
std::int64_t state_elements_of(const OptimizerRule& rule, const LayerExtent& layer);
/// The memory of one layer of `elements` in these tables.
std::int64_t update_layer_bytes(std::int64_t elements);

/// The CPU's view of a piece of a bucket: `n` elements (a multiple of 32 from a multiple of 32).
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
  /// Of a rule that measures layers: the layer of each 32 elements,
  const std::int32_t* owner = nullptr;
  const double* factors = nullptr;  ///< and what the rule made of each layer's norms
  std::int64_t n = 0;
};

/// The model that is tested and written at the end, from the parameters p: p + weight ·
/// states[state].
struct EvaluatedModel {
  int state = -1;  ///< -1: p itself
  double weight = 0.0;
};

/// An optimizer's rule: what happens to a parameter, its gradient and its states in one step.
/// Immutable but for know_ranks(); its state tensors live in the buckets. A rule outside this tree
/// derives from it too (docs/extending.md); kernels/math/update_loop.h makes both update()
/// functions from one host-device function.
class OptimizerRule {
 public:
  virtual ~OptimizerRule() = default;
  /// Names of the state tensors, at most 4, as checkpoints call them: "exp_avg", "exp_avg_sq".
  virtual std::vector<std::string> state_names() const = 0;
  /// Updates a span on the CPU. lr and step as in UpdateArgs.
  virtual void update(const UpdateSpan<float>& span, double lr, std::int64_t step) const = 0;
  virtual void update(const UpdateSpan<double>& span, double lr, std::int64_t step) const = 0;
  /// True for a rule that measures each parameter as a whole before it changes it (LARS, LAMB): its
  /// updates need UpdateArgs::layers.
  virtual bool measures_layers() const { return false; }
  /// Of such a rule: element i of the span, at most kLayerLanes of them, adds the square of c to
  /// squares[i] and that of what the rule measures to squares[kLayerLanes + i]. States are read and
  /// not written.
  virtual void measure(const UpdateSpan<float>& span, double lr, std::int64_t step,
                       double* squares) const;
  virtual void measure(const UpdateSpan<double>& span, double lr, std::int64_t step,
                       double* squares) const;
  /// Of such a rule: a layer's factor, from the two sums of squares. `weight`: two or more
  /// dimensions; `decays`: weight decay applies; `numbers`: how many squares were summed.
  virtual double layer_factor(double parameter, double measured, bool weight, bool decays,
                              std::int64_t numbers) const;
  /// Elements of memory that finish_matrix() needs for a weight of this shape; 0: the rule has
  /// nothing to finish there.
  virtual std::int64_t matrix_workspace(std::int64_t rows, std::int64_t columns) const;
  /// What a rule does with a whole matrix after update() (Muon's products), by operations issued to
  /// the current stream. `args` is the matrix's part of the update: x_out and the states as
  /// update() left them, padding included; control, where given, is {1, skip}.
  virtual void finish_matrix(Backend& backend, const UpdateArgs& args, const LayerExtent& layer,
                             const Tensor& workspace) const;
  /// Elements that each state has for a parameter, where they are not one for each of its numbers
  /// (Adafactor's averages over rows and columns): a multiple of 32. 0: as many as the parameter
  /// has, with its padding.
  virtual std::int64_t state_elements(const LayerExtent& layer) const;
  /// Elements of memory that issue() needs for a bucket of these layers beside its tensors;
  /// otherwise the most of finish_matrix().
  virtual std::int64_t workspace(const std::vector<LayerExtent>& layers) const;
  /// A bucket's whole update, by operations issued to the current stream: backend.update(), then
  /// what the rule finishes on each matrix. A rule may do it in other steps. States are as long as
  /// state_elements() says; all else is as in UpdateArgs.
  virtual void issue(Backend& backend, const UpdateArgs& args) const;
  /// After how many steps an update does the same again but for its coefficients: a graph's work
  /// serves steps of the same phase alone.
  virtual std::int64_t phases() const { return 1; }
  /// Before the first update: how many ranks there are, for rules with a setting that is "ranks".
  virtual void know_ranks(int) {}
  /// A correction for the noise of a rank's own gradients is on: not for means over all ranks.
  virtual bool corrects_noise() const { return false; }
  /// Tests look at the parameters, unless the rule's steps only lead to what is meant as the model
  /// (an average of them).
  virtual EvaluatedModel evaluated() const { return {}; }
  /// Its formulas hold for the same lr in all steps: no schedule.
  virtual bool needs_constant_rate() const { return false; }
  /// Bytes that one step moves per parameter without mixing (AdamW fp32: 28), for benchmarks.
  virtual int bytes_per_parameter(int element_size) const = 0;
};

/// A bucket's whole update by the rule: OptimizerRule::issue().
void run_update(Backend& backend, const OptimizerRule& rule, const UpdateArgs& args);

using OptimizerRegistry = Registry<std::unique_ptr<OptimizerRule>, ConfigSection&>;
/// By name; a maker reads the rule's keys except `type`, `lr` and `decay`, which belong to the
/// trainer (`weight_decay` is the rule's).
OptimizerRegistry& optimizers();
void register_builtin_optimizers();

}  // namespace starling
