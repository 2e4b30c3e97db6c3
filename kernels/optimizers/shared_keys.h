#pragma once

#include <string>

#include "core/config.h"
#include "kernels/math/rules.h"
#include "kernels/optimizer.h"

// Keys that several optimizers have. What a number holds is the key's default.

namespace starling {

/// Reads `betas`, `eps` and `weight_decay`, the keys of the Adam family.
void read_adam(ConfigSection& config, rules::AdamSettings& settings,
               const std::string& betas =
                   "decay of the running means of the gradient and its "
                   "square");
/// Reads `betas`, two numbers.
void read_betas(ConfigSection& config, double& beta1, double& beta2, const std::string& doc);
void read_eps(ConfigSection& config, double& eps);
void read_weight_decay(ConfigSection& config, double& weight_decay);
/// Reads `momentum` and `nesterov`.
void read_momentum(ConfigSection& config, double& momentum, bool& nesterov);
/// Of a rule with torch.optim.SGD's momentum: its buffer is the state.
RuleFacts momentum_facts(double momentum);
/// Reads `adapt`: `all` where parameters of fewer than two dimensions have layer-wise rates too.
void read_adapt(ConfigSection& config, bool& all);

}  // namespace starling
