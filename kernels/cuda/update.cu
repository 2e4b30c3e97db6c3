#include "kernels/cuda/update.h"

#include <cstddef>
#include <cstdint>
#include <typeinfo>

#include "core/error.h"
#include "core/tensor.h"
#include "kernels/cpu/update.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/update_kernel.h"
#include "kernels/math/rules.h"

// Compiled without contraction to fused multiply-add, as the CPU's copy of these rules, and with correctly rounded square roots and
// divisions: CPU and GPU give the same bits.
namespace starling::cuda {
namespace {

template <class Rule>
bool find(const OptimizerRule& rule, GpuUpdateLauncher& launcher) {
  if (typeid(rule) != typeid(RuleKernel<Rule, cpu::IsaLaunch>)) return false;
  launcher = &launch_rule<Rule, cpu::IsaLaunch, BackendLaunch>;
  return true;
}

template <class... Rules>
GpuUpdateLauncher find_any(const OptimizerRule& rule) {
  GpuUpdateLauncher launcher = nullptr;
  (void)(find<Rules>(rule, launcher) || ...);
  return launcher;
}

/// The step's scalars live until the launch has been issued; then the pool may give their memory to later work of the same stream.
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

}  // namespace

GpuUpdateLauncher builtin_update(const OptimizerRule& rule) {
  return find_any<rules::Sgd, rules::Adam<false>, rules::Adam<true>, rules::AccumAdam<false>, rules::AccumAdam<true>>(rule);
}

void CudaBackend::update(const OptimizerRule& rule, const UpdateArgs& args) {
  check_update(rule, args);
  require(!args.sum_received, "update", "the terms of a sum are summed before a GPU's update");
  GpuUpdateLauncher launcher = builtin_update(rule);
  if (!launcher) launcher = find_gpu_update(rule);
  if (!launcher) fail_without_gpu_update(rule);
  Upload slot{this, {}};
  launcher(rule, args, {handle(), info_.multiprocessors, &slot, &upload});
}

}  // namespace starling::cuda
