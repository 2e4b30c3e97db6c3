#include "kernels/optimizers/shared_keys.h"

#include <fmt/format.h>

#include <vector>

namespace starling {

void read_weight_decay(ConfigSection& config, double& weight_decay) {
  config.read("weight_decay", weight_decay, Range::at_least(0.0),
              "weight decay; see optimizer.decay for which parameters");
}

void read_eps(ConfigSection& config, double& eps) {
  config.read("eps", eps, Range::positive(), "added to the denominator");
}

void read_betas(ConfigSection& config, double& beta1, double& beta2, const std::string& doc) {
  const std::vector<double> betas =
      config.numbers("betas", {beta1, beta2}, Range::half_open(0.0, 1.0), doc);
  if (betas.size() != 2)
    config.error("betas", "found {} numbers, expected two, as [{}, {}]", betas.size(), beta1,
                 beta2);
  beta1 = betas[0];
  beta2 = betas[1];
}

void read_adam(ConfigSection& config, rules::AdamSettings& settings, const std::string& betas) {
  read_betas(config, settings.beta1, settings.beta2, betas);
  read_eps(config, settings.eps);
  read_weight_decay(config, settings.weight_decay);
}

void read_momentum(ConfigSection& config, double& momentum, bool& nesterov) {
  config.read("momentum", momentum, Range::half_open(0.0, 1.0),
              "share of the last step's direction");
  config.read("nesterov", nesterov, "look ahead along the momentum");
  if (nesterov && momentum == 0.0) config.error("nesterov", "true needs a momentum above 0");
}

RuleFacts momentum_facts(double momentum) {
  RuleFacts facts;
  if (momentum != 0.0) facts.states = {"momentum_buffer"};
  return facts;
}

void read_adapt(ConfigSection& config, bool& all) {
  config.read(
      "adapt", all, {{"weights", false}, {"all", true}},
      "which parameters have a rate by their norm: those of two or more dimensions only, or all");
}

}  // namespace starling
