#pragma once

#include "core/config.h"
#include "kernels/math/rules.h"

namespace starling {

/// Reads `betas`, `eps` and `weight_decay`, the keys of the Adam family.
rules::AdamSettings read_adam_settings(ConfigSection& config, double default_weight_decay);

/// Reads `weight_decay`.
double read_weight_decay(ConfigSection& config, double fallback);

/// Each adds its file's rules to optimizers().
void register_sgd();
void register_adam();
void register_accum_adam();

}  // namespace starling
