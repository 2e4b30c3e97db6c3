#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/training/device/device_settings.h"
#include "comm/world.h"
#include "core/backend.h"
#include "layers/layer.h"

namespace starling {

class OptimizerRule;

/// Compute threads of each rank on a CPU: from the config, or an equal part of this host's cores.
int compute_threads(const DeviceSettings& settings, int local_ranks);
/// Cores per rank of this host that are not used for computation; at least 1.
int spare_threads(const DeviceSettings& settings, const World& world, DeviceType device);
/// Opens this rank's device. AgreedError(kUsage) if it is unusable, or the rule or a layer has no
/// GPU kernels; "auto" falls back to the CPU on every rank. Collective. `before`: of this process,
/// which is taken again if it is a CPU with as many threads: its memory is there already.
std::shared_ptr<Backend> choose_backend(const DeviceSettings& settings, const OptimizerRule& rule,
                                        const Model& model, World& world,
                                        std::shared_ptr<Backend> before = nullptr);

/// Why "auto" uses the CPU, in one line for the user. `answers`: what each rank found: "+" (a GPU),
/// "-" (no driver), or "!" and an error. Empty if every rank has a GPU, or none has a driver.
std::string why_not_gpus(const std::vector<std::string>& answers);

/// Sets `compute` according to `precision` and the device: "auto" is bf16 if it is fast on every
/// rank's device, otherwise fp32. AgreedError(kUsage) if a device does not support the precision.
/// Returns whether the format has changed, so that shapes must be traced again. Collective.
bool choose_precision(DeviceSettings& settings, const Backend& backend, World& world);

/// The format that a dry run assumes for "auto": that of the given device, or of this processor.
DType expected_compute(const std::string& precision, const std::string& device);

/// The error for fp16 on a CPU.
std::string fp16_needs_gpu();

}  // namespace starling
