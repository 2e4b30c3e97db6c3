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

/// Compute threads of each rank on a CPU: as the config says, or an equal share of this host's
/// cores.
int compute_threads(const DeviceSettings& settings, const World& world);
/// Cores of this host that computing leaves over for each rank, at least 1.
int spare_threads(const DeviceSettings& settings, const World& world, DeviceType device);
/// Opens this rank's device as `device`, `threads` and the settings for GPUs ask. Collective; an
/// unusable device is an AgreedError(kUsage), but with "auto", which then takes the CPU on every
/// rank; so it does where the rule or a layer has no GPU kernels.
std::unique_ptr<Backend> choose_backend(const DeviceSettings& settings, const OptimizerRule& rule,
                                        const Model& model, World& world);

/// Why "auto" takes the CPU, in one line for the user, from what each rank found: "+" (a GPU), "-"
/// (no driver), "!" and an error. Empty where nothing needs to be said: every rank has a GPU, or
/// there is not even a driver anywhere.
std::string why_not_gpus(const std::vector<std::string>& answers);

/// Sets `compute` to what `precision` means on the chosen device: "auto" is bf16 where every
/// rank's device is fast in it, else fp32. Collective; a precision that a device lacks is an
/// AgreedError(kUsage). True where the format changed, so that shapes must be traced again.
bool choose_precision(DeviceSettings& settings, const Backend& backend, World& world);

/// The format that a dry run assumes where `precision` is "auto": that of the device named, or of
/// this processor.
DType expected_compute(const std::string& precision, const std::string& device);

/// Text with which a CPU refuses fp16.
std::string fp16_needs_gpu();

}  // namespace starling
