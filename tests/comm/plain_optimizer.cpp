#include "plain_optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "core/error.h"

namespace starling::test {

using Vector = std::vector<double>;

PlainOptimizer::PlainOptimizer(const nlohmann::json& config, std::vector<bool> decays)
    : type_(config.value("type", "")),
      decays_(std::move(decays)),
      momentum_(config.value("momentum", 0.0)),
      nesterov_(config.value("nesterov", false)),
      beta1_(config.value("betas", Vector{0.9, 0.999})[0]),
      beta2_(config.value("betas", Vector{0.9, 0.999})[1]),
      eps_(config.value("eps", 1e-8)),
      noise_ranks_(config.value("noise_correction", 1.0)),
      weight_decay_(config.value("weight_decay", type_ == "adamw" ? 0.1 : 0.0)) {
  require(type_ == "sgd" || type_ == "adam" || type_ == "adamw", "test",
          "no plain rewriting of the optimizer '{}'", type_);
  states.assign(type_ == "sgd" ? 1 : 2, Vector(decays_.size(), 0.0));
}

Vector PlainOptimizer::update(Vector c, Vector g, double lr) {
  ++s;
  const double step_size = lr / (1.0 - std::pow(beta1_, s)),
               root = std::sqrt(1.0 - std::pow(beta2_, s));
  for (std::size_t e = 0; e < c.size(); ++e) {
    const double decay = weight_decay(e);
    if (type_ == "sgd") {
      double& u = states[0][e];
      g[e] += decay * c[e];
      u = momentum_ * u + g[e];
      c[e] -= lr * (nesterov_ ? g[e] + momentum_ * u : u);
    } else {
      if (type_ == "adam") g[e] += decay * c[e];
      if (type_ == "adamw") c[e] *= 1.0 - lr * decay;
      double &m = states[0][e], &v = states[1][e];
      m = beta1_ * m + (1.0 - beta1_) * g[e];
      v = beta2_ * v + (1.0 - beta2_) * g[e] * g[e];
      double corrected = v / (root * root);
      if (noise_ranks_ > 1.0) {
        const double mean = m / (1.0 - std::pow(beta1_, s)),
                     share = (1.0 - beta1_) / (1.0 + beta1_);
        const double noise = std::max(corrected - mean * mean, 0.0) / (1.0 - share);
        corrected =
            std::max(corrected - (1.0 - 1.0 / noise_ranks_) * noise, corrected / noise_ranks_);
      }
      c[e] -= step_size * m / (std::sqrt(corrected) + eps_);
    }
  }
  return c;
}

}  // namespace starling::test
