#include "kernels/optimizers/settings.h"

#include <fmt/format.h>

#include <vector>

namespace starling {

double read_weight_decay(ConfigSection& config, double fallback) {
  return config.number("weight_decay", fallback, Range::at_least(0.0),
                       "weight decay; see optimizer.decay for which parameters");
}

double read_eps(ConfigSection& config, double fallback) {
  return config.number("eps", fallback, Range::positive(), "added to the denominator");
}

Betas read_betas(ConfigSection& config, Betas fallback, const std::string& doc) {
  const std::vector<double> betas =
      config.numbers("betas", {fallback.first, fallback.second}, Range::half_open(0.0, 1.0), doc);
  if (betas.size() != 2) {
    config.error("betas", "found {} numbers, expected two, as [{}, {}]", betas.size(),
                 fallback.first, fallback.second);
  }
  return {betas[0], betas[1]};
}

rules::AdamSettings read_adam_settings(ConfigSection& config, double default_weight_decay) {
  rules::AdamSettings settings;
  const Betas betas = read_betas(config, {settings.beta1, settings.beta2},
                                 "decay of the running means of the gradient and its square");
  settings.beta1 = betas.first;
  settings.beta2 = betas.second;
  settings.eps = read_eps(config, settings.eps);
  settings.weight_decay = read_weight_decay(config, default_weight_decay);
  return settings;
}

bool read_adapt_all(ConfigSection& config) {
  return config.choice("adapt", "weights", {"weights", "all"},
                       "which parameters have a rate by their norm: those of two or more "
                       "dimensions only, or all") == "all";
}

}  // namespace starling
