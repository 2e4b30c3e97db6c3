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
/// As many elements, or the next multiple of kDecayBlock.
constexpr std::int64_t whole_blocks(std::int64_t elements) {
  return (elements + kDecayBlock - 1) / kDecayBlock * kDecayBlock;
}
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

/// One step of a rule on the CPU, made once an update and run on spans by all threads.
template <class T>
struct CpuStep {
  std::function<void(const UpdateSpan<T>&)> update;
  /// Of a rule that measures layers: element i of the span, at most kLayerLanes of them, adds the
  /// square of c to squares[i] and that of what the rule measures to squares[kLayerLanes + i].
  /// States are read and not written.
  std::function<void(const UpdateSpan<T>&, double* squares)> measure;
  /// And a layer's factor, from the two sums of squares. `weight`: two or more dimensions;
  /// `decays`: weight decay applies; `numbers`: how many squares were summed.
  std::function<double(double parameter, double measured, bool weight, bool decays,
                       std::int64_t numbers)>
      layer_factor;
};

/// The model that is tested and written at the end, from the parameters p: p + weight ·
/// states[state].
struct EvaluatedModel {
  int state = -1;  ///< -1: p itself
  double weight = 0.0;
};

/// What is known of a rule before any step.
struct RuleFacts {
  /// Names of the state tensors, at most 4, as checkpoints call them: "exp_avg", "exp_avg_sq".
  std::vector<std::string> states = {};
  /// After how many steps an update does the same again but for its coefficients (a rule whose
  /// step's type depends on s says so): a graph's work serves steps of the same phase alone.
  std::int64_t phases = 1;
  /// A correction for the noise of a rank's own gradients is on: not for means over all ranks.
  bool corrects_noise = false;
  /// Its formulas hold for the same lr in all steps: no schedule.
  bool needs_constant_rate = false;
  /// Tests look at the parameters, unless the rule's steps only lead to what is meant as the model
  /// (an average of them).
  EvaluatedModel evaluated = {};
  // RuleKernel knows the rest by itself.
  /// Measures each parameter as a whole before it changes it (LARS, LAMB): its updates need
  /// UpdateArgs::layers.
  bool measures_layers = false;
  bool finishes_matrices = false;  ///< has finish_matrix()
  bool built_in = false;           ///< its kernels for GPUs are the CUDA library's
};

/// An optimizer's rule: what happens to a parameter, its gradient and its states in one step.
/// Immutable but for know_ranks(); its state tensors live in the buckets. RuleKernel
/// (kernels/math/update_loop.h) makes one from a struct of settings and a host-device function.
class OptimizerRule {
 public:
  explicit OptimizerRule(RuleFacts facts) : facts_(std::move(facts)) {}
  virtual ~OptimizerRule() = default;
  const RuleFacts& facts() const { return facts_; }
  /// Step s = 1, 2, … on the CPU, at the rate lr; T is float or double.
  template <class T>
  CpuStep<T> step(double lr, std::int64_t s) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return step_fp32(lr, s);
    } else {
      return step_fp64(lr, s);
    }
  }
  /// Bytes that one step moves per parameter without mixing (AdamW fp32: 28), for benchmarks.
  virtual int bytes_per_parameter(int element_size) const = 0;
  /// Before the first update: how many ranks there are, for rules with a setting that is "ranks".
  virtual void know_ranks(int) {}
  /// Elements that each state has for a parameter, where they are not one for each of its numbers
  /// (Adafactor's averages over rows and columns): a multiple of 32. 0: as many as the parameter
  /// has, with its padding.
  virtual std::int64_t state_elements(const LayerExtent&) const { return 0; }
  /// Elements of memory that issue() needs for a bucket of these layers beside its tensors, and
  /// finish_matrix() for one of them.
  virtual std::int64_t workspace(const std::vector<LayerExtent>&) const { return 0; }
  /// A bucket's whole update, by operations issued to the current stream: backend.update(), then
  /// what the rule finishes on each matrix. A rule may do it in other steps. States are as long as
  /// state_elements() says; all else is as in UpdateArgs.
  virtual void issue(Backend& backend, const UpdateArgs& args) const;
  /// What a rule does with a whole matrix after the pass (Muon's products), by operations issued to
  /// the current stream. `args` is the matrix's part of the update: x_out and the states as the
  /// pass left them, padding included; control, where given, is {1, skip}.
  virtual void finish_matrix(Backend& backend, const UpdateArgs& args, const LayerExtent& layer,
                             const Tensor& workspace) const;

 protected:
  RuleFacts facts_;

 private:
  virtual CpuStep<float> step_fp32(double lr, std::int64_t s) const = 0;
  virtual CpuStep<double> step_fp64(double lr, std::int64_t s) const = 0;
};

/// A bucket's whole update by the rule: OptimizerRule::issue().
void run_update(Backend& backend, const OptimizerRule& rule, const UpdateArgs& args);

/// optimizer.lr's default where a rule has none of its own.
inline constexpr double kUsualRate = 1e-3;
/// By name; a maker reads the rule's keys except `type`, `lr` and `decay`, which belong to the
/// trainer (`weight_decay` is the rule's).
class OptimizerRegistry : public Registry<std::unique_ptr<OptimizerRule>, ConfigSection&> {
 public:
  using Registry::Registry;
  void add(const std::string& name, Maker maker, std::string summary = {},
           double rate = kUsualRate);
  /// optimizer.lr's default.
  double rate(const std::string& name) const;
  /// "0.001, but 0.1 for `sgd`, 0.01 for `rmsprop`, …": all of them, as docs/config.md has them.
  std::string rates() const;

 private:
  std::vector<std::pair<std::string, double>> unusual_;  ///< in the order of add()
};
OptimizerRegistry& optimizers();
void register_builtin_optimizers();

}  // namespace starling
