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

/// Elements that share one entry of UpdateArgs::decay.
inline constexpr std::int64_t kDecayBlock = 32;
/// Bits of an entry.
inline constexpr std::uint8_t kDecays = 1, kGradientIsLow = 2;

/// One bucket's fused update, semantics.md section 2: mix, scale and clip, decay, rule, all in one pass over memory.
///     c = self_weight · x + Σ_k weights[k] · received[k]     (c = x where received is empty)
///     c = self_weight · x + weights[0] · (received[0] + received[1] + …)     (where sum_received)
///     g = gradient_scale · control[0] · gradient          (control[0] = 1 where control is empty)
///     x_out, states = rule(c, g, states)                   (x_out = c, states kept, where control[1] is not 0)
///     low = x_out rounded                                  (where low is given)
/// All other tensors hold the same number of elements (a multiple of 32) of one dtype.
struct UpdateArgs {
  Tensor x;                      ///< read
  Tensor x_out;                  ///< written; may be x
  Tensor gradient;               ///< read
  std::vector<Tensor> states;    ///< as many as the rule's state_names(); all zero before the first step
  std::vector<Tensor> received;  ///< what the neighbours sent
  std::vector<double> weights;   ///< theirs, one each
  bool sum_received = false;     ///< `received` are a sum's terms, added in this order; weights has one entry. A CPU's update only
  double self_weight = 1.0;
  double gradient_scale = 1.0;  ///< 1/(loss scale) and all-reduce's 1/n, multiplied
  Tensor control;               ///< optional, fp64 [2] on the device: {factor, skip}, see GradientControl
  Tensor low;                   ///< optional, bf16 or fp16: receives x_out
  Tensor decay;                 ///< uint8, one entry per 32 elements: kDecays where weight decay applies, kGradientIsLow as below
  Tensor gradient_low;          ///< optional, bf16 or fp16: the gradient of blocks with kGradientIsLow. A GPU's update of fp32 only
  double lr = 0.0;              ///< of this update
  std::int64_t step = 1;        ///< the optimizer's s = 1, 2, …
};

class OptimizerRule;
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

/// An optimizer's rule: what happens to a parameter, its gradient and its states in one step. Immutable after construction; its
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
  /// Bytes that one step moves per parameter without mixing (AdamW fp32: 28), for benchmarks.
  virtual int bytes_per_parameter(int element_size) const = 0;
};

using OptimizerRegistry = Registry<std::unique_ptr<OptimizerRule>, ConfigSection&>;
/// By name; a maker reads the rule's keys except `type`, `lr` and `decay`, which belong to the trainer (`weight_decay` is the rule's).
OptimizerRegistry& optimizers();
void register_builtin_optimizers();

struct BackendSettings {
  int threads = 1;  ///< of a CPU
  // Of a GPU:
  int local_rank = 0, local_size = 1;  ///< among the ranks of this host: rank i takes device i
  bool tf32 = false;                   ///< fp32 products may round their operands to 10 bits of mantissa
  bool benchmark = false;              ///< time the candidates for each convolution instead of trusting the heuristic
  bool deterministic = true;           ///< only engines that give the same bits every time
};

/// Opens a device. Throws Error(kUsage) with the remedy where it is missing or unusable: no plug-in, no driver or too old a one, an
/// architecture that the plug-in has no code for, more ranks on this host than devices (unless the environment has
/// STARLING_SHARE_GPUS=1).
std::unique_ptr<Backend> open_backend(DeviceType device, const BackendSettings& settings);
inline std::unique_ptr<Backend> open_backend(DeviceType device, int threads) { return open_backend(device, BackendSettings{threads}); }

}  // namespace starling
