#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"
#include "core/config.h"
#include "core/registry.h"

namespace starling {

/// Throws Error(kInternal) where the arguments do not fit the rule or each other: what every backend's update begins with.
void check_update(const OptimizerRule& rule, const UpdateArgs& args);

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
  std::int64_t n = 0;
};

/// An optimizer's rule: what happens to a parameter, its gradient and its states in one step. Immutable but for know_ranks(); its
/// state tensors live in the buckets. A rule outside this tree derives from it too (docs/extending.md); kernels/math/update_loop.h makes
/// both update() functions from one host-device function.
class OptimizerRule {
 public:
  virtual ~OptimizerRule() = default;
  /// Names of the state tensors, at most 4, as checkpoints call them: "exp_avg", "exp_avg_sq".
  virtual std::vector<std::string> state_names() const = 0;
  /// Updates a span on the CPU. lr and step as in UpdateArgs.
  virtual void update(const UpdateSpan<float>& span, double lr, std::int64_t step) const = 0;
  virtual void update(const UpdateSpan<double>& span, double lr, std::int64_t step) const = 0;
  /// After how many steps an update does the same again but for its coefficients: a graph's work serves steps of the same phase alone.
  virtual std::int64_t phases() const { return 1; }
  /// Before the first update: how many ranks there are, for rules with a setting that is "ranks".
  virtual void know_ranks(int) {}
  /// A correction for the noise of a rank's own gradients is on: not for means over all ranks.
  virtual bool corrects_noise() const { return false; }
  /// Bytes that one step moves per parameter without mixing (AdamW fp32: 28), for benchmarks.
  virtual int bytes_per_parameter(int element_size) const = 0;
};

using OptimizerRegistry = Registry<std::unique_ptr<OptimizerRule>, ConfigSection&>;
/// By name; a maker reads the rule's keys except `type`, `lr` and `decay`, which belong to the trainer (`weight_decay` is the rule's).
OptimizerRegistry& optimizers();
void register_builtin_optimizers();

}  // namespace starling
