#pragma once

#include <memory>

#include "apps/trainer/train_config.h"
#include "comm/transport.h"

namespace starling {

/// Opens this rank's device as `device` and `threads` ask. Collective; an unusable device is an AgreedError(kUsage).
std::unique_ptr<Backend> choose_backend(const TrainConfig& config, Transport& transport);

}  // namespace starling
