#pragma once

#include <cstddef>
#include <string_view>
#include <typeindex>
#include <typeinfo>

#include "core/operations/updates.h"
#include "kernels/optimizer.h"

// How a GPU's backend finds the kernels of an optimizer's rule. The built-in rules' kernels are in
// the CUDA library; a plug-in registers its own here (STARLING_CUDA_RULE in
// kernels/cuda/operations/update_kernel.h), by the rule's C++ type, and takes what it needs of the
// backend from a GpuUpdateContext: so a plug-in links no symbol of the CUDA library, and works
// where that library is absent.

namespace starling {

/// What the backend lends to a launcher for one update.
struct GpuUpdateContext {
  void* stream = nullptr;   ///< cudaStream_t: where the work goes
  int multiprocessors = 1;  ///< of the device
  /// The step's numbers travel in the launch's parameters. Otherwise, for a launch that is kept and
  /// done again, upload() takes them all.
  bool by_value = true;
  void* owner = nullptr;  ///< upload's first argument
  /// Device memory that holds these bytes, copied on the stream without a wait; for work issued
  /// before the launcher returns. At most one call a launcher; with by_value only for what does not
  /// fit into a launch's parameters. Null, without by_value: the bytes alone were wanted, and the
  /// launcher returns without a launch.
  const void* (*upload)(void* owner, const void* from, std::size_t bytes) = nullptr;
  /// Optional, called before upload(): the type of the rule's step, which the kernel is made for.
  void (*step_type)(void* owner, const std::type_info& type) = nullptr;
};

/// Issues the fused update of one bucket. The arguments are checked; their tensors lie on the
/// device.
using GpuUpdateLauncher = void (*)(const OptimizerRule& rule, const UpdateArgs& args,
                                   const GpuUpdateContext& site);

/// Adds a plug-in's launcher for a rule's dynamic type. Returns true, so that a static object can
/// call it.
bool register_gpu_update(std::type_index rule, GpuUpdateLauncher launcher);
/// The plug-in's launcher; null where none was registered.
GpuUpdateLauncher find_gpu_update(const OptimizerRule& rule);

/// True for the built-in rules and for those that a plug-in has registered a launcher for.
bool runs_on_gpu(const OptimizerRule& rule);
/// Throws Error(kUsage) that names the optimizer and what is missing where the rule has no GPU
/// kernels.
void require_gpu_update(const OptimizerRule& rule, std::string_view optimizer);
/// The error's text for a rule whose name in configs is not known: names its C++ type.
[[noreturn]] void fail_without_gpu_update(const OptimizerRule& rule);

}  // namespace starling
