#include "kernels/cuda/operations/update.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <typeinfo>
#include <utility>

#include "core/error.h"
#include "core/operations/codecs.h"
#include "core/operations/updates.h"
#include "core/tensor.h"
#include "kernels/cpu/update.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/operations/update_kernel.h"
#include "kernels/decode_sum.h"
#include "kernels/optimizers/list.h"

// Compiled without contraction to fused multiply-add, as the CPU's copy of these rules, and with
// correctly rounded square roots and divisions: CPU and GPU give the same bits.
namespace starling::cuda::detail {

// Without these bounds the compiler restricts the kernels to 64 or 80 registers, and spills a few
// bytes.
template <>
constexpr int kLeastBlocks<rules::AdamStep<float, true>, -1> = 2;
template <>
constexpr int kLeastBlocks<rules::LinearStep<float, 2, 1>, -1> = 2;
template <>
constexpr int kLeastBlocks<rules::ScheduleFreeAdamStep<float>, kEncodedTerms> = 2;

}  // namespace starling::cuda::detail

namespace starling::cuda {
namespace {

template <class Rule>
bool find(const OptimizerRule& rule, GpuUpdateLauncher& launcher) {
  if (typeid(rule) != typeid(RuleKernel<Rule, cpu::IsaLaunch>)) return false;
  launcher = &launch_rule<Rule, cpu::IsaLaunch, BackendLaunch>;
  return true;
}

template <class... Rules>
GpuUpdateLauncher find_any(const OptimizerRule& rule, rules::RuleList<Rules...>) {
  GpuUpdateLauncher launcher = nullptr;
  (void)(find<Rules>(rule, launcher) || ...);
  return launcher;
}

/// Terms of more neighbours than a launch's parameters hold. They live until the launch has been
/// issued; then the pool may give the memory to later work of the same stream.
struct Upload {
  CudaBackend* backend = nullptr;
  Tensor memory;
};

const void* upload(void* owner, const void* from, std::size_t bytes) {
  Upload& slot = *static_cast<Upload*>(owner);
  slot.memory = slot.backend->scratch(static_cast<std::int64_t>(bytes), DType::kUInt8);
  slot.backend->copy_from_host(from, slot.memory);
  return slot.memory.raw();
}

/// Scalars of a graph's steps: in the step block, written for each launch.
struct StepScalars {
  GpuUpdateLauncher launcher = nullptr;
  const OptimizerRule* rule = nullptr;
  UpdateArgs args;
  StepValues captured;
  CudaBackend* backend = nullptr;  ///< at the capture alone
  std::byte* to = nullptr;         ///< at a launch
  const std::type_info* type = nullptr;
  std::size_t bytes = 0;
  double gradient_scale = 1.0;

  void write(const StepValues& values, std::byte* at) {
    args.lr = values.lr;
    args.step = values.step;
    args.gradient_scale =
        args.unscales ? gradient_scale * (captured.loss_scale / values.loss_scale) : gradient_scale;
    to = at;
    launcher(*rule, args,
             {.by_value = false,
              .owner = this,
              .upload = &StepScalars::put,
              .step_type = &StepScalars::check_type});
  }

  static const void* reserve(void* owner, const void*, std::size_t bytes) {
    StepScalars& self = *static_cast<StepScalars*>(owner);
    self.bytes = bytes;
    const auto shared = std::make_shared<StepScalars>(self);
    CudaBackend& backend = *std::exchange(shared->backend, nullptr);
    return backend.step_slot(
        bytes, [shared](const StepValues& values, std::byte* at) { shared->write(values, at); });
  }
  static void note_type(void* owner, const std::type_info& type) {
    static_cast<StepScalars*>(owner)->type = &type;
  }
  static const void* put(void* owner, const void* from, std::size_t bytes) {
    const StepScalars& self = *static_cast<StepScalars*>(owner);
    require(bytes == self.bytes, "update", "step {} has {} bytes of scalars, the captured one {}",
            self.args.step, bytes, self.bytes);
    std::memcpy(self.to, from, bytes);
    return nullptr;
  }
  static void check_type(void* owner, const std::type_info& type) {
    const StepScalars& self = *static_cast<StepScalars*>(owner);
    require(type == *self.type, "update",
            "step {} is of another kind than the captured step {}; each position of an "
            "accumulation needs a graph of its own",
            self.args.step, self.captured.step);
  }
};

/// True for what the kernels that decode do not take. Rules that measure their layers read what was
/// received twice. Of 16 bits and more the decoding by itself costs little compared with their
/// transfer. Nor do they take fp64, and addresses that are no multiple of 16.
bool decodes_before(const OptimizerRule& rule, const UpdateArgs& args) {
  const auto odd = [](const Tensor& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.raw()) % 16 != 0;
  };
  return rule.facts().measures_layers || args.x.dtype() != DType::kFloat32 ||
         args.encoded.code == Code::kNone || args.encoded.code == Code::kBf16 || odd(args.x) ||
         odd(args.x_out) || odd(args.gradient) ||
         std::any_of(args.states.begin(), args.states.end(), odd) ||
         std::any_of(args.received.begin(), args.received.end(), odd) || odd(args.low);
}

void update_decoded(CudaBackend& backend, const Update& call) {
  const EncodedTerms& encoded = call.args.encoded;
  require(encoded.elements == 0 || encoded.elements == call.args.x.elements(), "update",
          "messages of a larger bucket cannot be decoded before the update of a part of it");
  UpdateArgs args = call.args;
  args.sum_received = false;
  args.encoded = {};
  args.received = {backend.scratch(args.x.elements(), args.x.dtype())};
  decode_sum(backend, call.args.received, encoded, 1.0, args.received[0], false);
  backend.update({call.rule, args});
}

}  // namespace

GpuUpdateLauncher builtin_update(const OptimizerRule& rule) {
  return find_any(rule, rules::BuiltIn());
}

void CudaBackend::issue(const Update& call) {
  const OptimizerRule& rule = call.rule;
  const UpdateArgs& args = call.args;
  check_update(rule, args);
  require(!args.sum_received || args.encoded, "update",
          "the terms of a sum are summed before a GPU's update");
  if (args.encoded && decodes_before(rule, args)) return update_decoded(*this, call);
  GpuUpdateLauncher launcher = builtin_update(rule);
  if (!launcher) launcher = find_gpu_update(rule);
  if (!launcher) fail_without_gpu_update(rule);
  if (capturing()) {
    const StepValues& captured = captured_values();
    require(args.lr == captured.lr && args.step == captured.step, "update",
            "the captured step has lr {} and number {}, this update of it {} and {}", captured.lr,
            captured.step, args.lr, args.step);
    StepScalars scalars{
        .launcher = launcher, .rule = &rule, .args = args, .captured = captured, .backend = this};
    scalars.gradient_scale = args.gradient_scale;
    return launcher(rule, args,
                    {.stream = handle(),
                     .multiprocessors = info_.multiprocessors,
                     .by_value = false,
                     .owner = &scalars,
                     .upload = &StepScalars::reserve,
                     .step_type = &StepScalars::note_type});
  }
  Upload slot{this, {}};
  launcher(rule, args,
           {.stream = handle(),
            .multiprocessors = info_.multiprocessors,
            .owner = &slot,
            .upload = &upload});
}

}  // namespace starling::cuda
