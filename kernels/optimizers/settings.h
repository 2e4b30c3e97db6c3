#pragma once

#include <string>

#include "core/config.h"
#include "kernels/math/rules.h"

namespace starling {

/// Reads `betas`, `eps` and `weight_decay`, the keys of the Adam family.
rules::AdamSettings read_adam_settings(ConfigSection& config, double default_weight_decay);

struct Betas {
  double first, second;
};
/// Reads `betas`, two numbers.
Betas read_betas(ConfigSection& config, Betas fallback, const std::string& doc);

/// Reads `eps`.
double read_eps(ConfigSection& config, double fallback);

/// Reads `weight_decay`.
double read_weight_decay(ConfigSection& config, double fallback);

/// Reads `adapt`: true where parameters of fewer than two dimensions have layer-wise rates too.
bool read_adapt_all(ConfigSection& config);

/// Each adds its file's rules to optimizers().
void register_sgd();
void register_adam();
void register_accum_adam();
void register_rmsprop();
void register_adagrad();
void register_nadam();
void register_lion();
void register_schedule_free();
void register_lars();
void register_lamb();
void register_muon();
void register_adafactor();

}  // namespace starling
