#include "kernels/optimizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/error.h"
#include "kernels/optimizers/settings.h"

namespace starling {
namespace {

void check_tensor(const Tensor& tensor, const Tensor& like, const char* what) {
  require(static_cast<bool>(tensor), "update", "{} is missing", what);
  require(tensor.dtype() == like.dtype() && tensor.elements() == like.elements(), "update", "{} is {} elements of {}, but x is {} of {}",
          what, tensor.elements(), name_of(tensor.dtype()), like.elements(), name_of(like.dtype()));
}

}  // namespace

OptimizerRegistry& optimizers() {
  static OptimizerRegistry registry("optimizer");
  return registry;
}

void register_builtin_optimizers() {
  static const bool once = [] {
    register_sgd();
    register_adam();
    register_accum_adam();
    register_rmsprop();
    register_adagrad();
    register_nadam();
    register_lion();
    return true;
  }();
  (void)once;
}

void check_update(const OptimizerRule& rule, const UpdateArgs& args) {
  require(static_cast<bool>(args.x), "update", "x is missing");
  const std::int64_t n = args.x.elements();
  require(n % kDecayBlock == 0, "update", "a bucket of {} elements is not a multiple of {}", n, kDecayBlock);
  check_tensor(args.x_out, args.x, "x_out");
  check_tensor(args.gradient, args.x, "the gradient");
  const std::size_t states = rule.state_names().size();
  require(states <= 4 && args.states.size() == states, "update", "the rule has {} states (at most 4), but {} were given", states,
          args.states.size());
  for (const Tensor& state : args.states) check_tensor(state, args.x, "a state");
  for (const Tensor& received : args.received) check_tensor(received, args.x, "a received buffer");
  const std::size_t terms = args.sum_received ? std::min<std::size_t>(args.received.size(), 1) : args.received.size();
  require(args.weights.size() == terms, "update", "{} weights for {} received buffers", args.weights.size(), args.received.size());
  require(args.decay && args.decay.dtype() == DType::kUInt8 && args.decay.elements() == n / kDecayBlock, "update",
          "decay must be one uint8 per {} elements", kDecayBlock);
  require(!args.control || (args.control.dtype() == DType::kFloat64 && args.control.elements() == 2), "update",
          "control must be two fp64 numbers");
  require(!args.low || (is_low_precision(args.low.dtype()) && args.low.elements() == n), "update",
          "the low-precision copy must be {} elements of bf16 or fp16", n);
  require(!args.gradient_low ||
              (is_low_precision(args.gradient_low.dtype()) && args.gradient_low.elements() == n && args.x.dtype() == DType::kFloat32),
          "update", "the low-precision gradient must be {} elements of bf16 or fp16, for fp32 parameters", n);
  require(args.step >= 1, "update", "step is {}, but counts from 1", args.step);
}

}  // namespace starling
