#include "kernels/optimizers/settings.h"

#include <fmt/format.h>

#include <vector>

namespace starling {

double read_weight_decay(ConfigSection& config, double fallback) {
  return config.number("weight_decay", fallback, Range::at_least(0.0), "weight decay; see optimizer.decay for which parameters");
}

rules::AdamSettings read_adam_settings(ConfigSection& config, double default_weight_decay) {
  rules::AdamSettings settings;
  const std::vector<double> betas = config.numbers("betas", {settings.beta1, settings.beta2}, Range::half_open(0.0, 1.0),
                                                   "decay of the running means of the gradient and its square");
  if (betas.size() != 2) config.error("betas", "found {} numbers, expected two, as [0.9, 0.999]", betas.size());
  settings.beta1 = betas[0];
  settings.beta2 = betas[1];
  settings.eps = config.number("eps", settings.eps, Range::positive(), "added to the denominator");
  settings.weight_decay = read_weight_decay(config, default_weight_decay);
  return settings;
}

}  // namespace starling
