#pragma once

#include <cstddef>
#include <string_view>
#include <typeindex>
#include <typeinfo>

#include "core/operations/updates.h"
#include "kernels/optimizer.h"

// How a GPU's backend finds the kernels of an optimizer's rule. Those of built-in rules are in the
// CUDA library. A plug-in registers its own by the rule's C++ type (STARLING_CUDA_RULE in
// kernels/cuda/operations/update_kernel.h). They access the backend through GpuUpdateContext only,
// so that the plug-in does not link to the CUDA library, and works without it.

namespace starling {

/// What a launcher gets from the backend for one update.
struct GpuUpdateContext {
  void* stream = nullptr;   ///< cudaStream_t
  int multiprocessors = 1;  ///< of the device
  /// Pass the step's values in the launch's parameters. False in a capture: pass all to upload(),
  /// so that later launches can replace them.
  bool by_value = true;
  void* owner = nullptr;  ///< upload's first argument
  /// Copies bytes to device memory, asynchronously on the stream; the memory is valid for work
  /// issued before the launcher returns. To be called at most once per launcher; with by_value only
  /// if the values exceed a launch's parameters. May return null without by_value: only the bytes
  /// were needed, and the launcher must return without a launch.
  const void* (*upload)(void* owner, const void* from, std::size_t bytes) = nullptr;
  /// Optional: to be called before upload() with the type of the rule's step.
  void (*step_type)(void* owner, const std::type_info& type) = nullptr;
};

/// Issues the fused update of one bucket. The arguments have been checked, and are on the device.
using GpuUpdateLauncher = void (*)(const OptimizerRule& rule, const UpdateArgs& args,
                                   const GpuUpdateContext& site);

/// Adds a plug-in's launcher for a rule's dynamic type. Returns true, for static initialisers.
bool register_gpu_update(std::type_index rule, GpuUpdateLauncher launcher);
/// The plug-in's launcher; null if none was registered.
GpuUpdateLauncher find_gpu_update(const OptimizerRule& rule);

/// True for built-in rules, and those with a registered launcher.
bool runs_on_gpu(const OptimizerRule& rule);
/// Throws Error(kUsage) with the optimizer and what is missing, if the rule has no GPU kernels.
void require_gpu_update(const OptimizerRule& rule, std::string_view optimizer);
/// The same for a rule whose name in configs is unknown: gives its C++ type.
[[noreturn]] void fail_without_gpu_update(const OptimizerRule& rule);

}  // namespace starling
