#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"

namespace starling::test {

/// The definitions of SGD, Adam and AdamW (semantics.md, section 7) in fp64, one number at a time:
/// the one second implementation of them, for every test that trains by formulas. Other rules are
/// compared with PyTorch's numbers alone (golden/optimizers.json).
struct PlainRule {
  std::string type = "sgd";
  double momentum = 0.0;
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
  double noise_ranks = 1.0;  ///< `noise_correction`
  std::int64_t accum_iter = 1;

  static bool knows(const std::string& type) {
    return type == "sgd" || type == "adam" || type == "adamw" || type == "accum_adam" ||
           type == "accum_adamw";
  }

  PlainRule() = default;
  /// `config` may leave keys out, as a user's may; keys that are not the rule's are passed over.
  explicit PlainRule(const nlohmann::json& config)
      : type(config.value("type", "")),
        momentum(config.value("momentum", 0.0)),
        nesterov(config.value("nesterov", false)),
        eps(config.value("eps", 1e-8)),
        noise_ranks(config.value("noise_correction", 1.0)) {
    require(knows(type), "test", "no plain rewriting of the optimizer '{}'", type);
    const auto betas = config.value("betas", std::array{0.9, 0.999});
    beta1 = betas[0], beta2 = betas[1];
    weight_decay = config.value("weight_decay", decoupled() ? 0.1 : 0.0);
    if (accumulates()) accum_iter = config.value("accum_iter", std::int64_t{4});
  }

  bool decoupled() const { return type == "adamw" || type == "accum_adamw"; }
  bool accumulates() const { return type.starts_with("accum"); }

  /// U(c, g) of one number in the rule's s-th step, from 1. `states` are in the order of the rule's
  /// names: SGD's buffer; or m, v and the accumulated gradient.
  double step(double c, double g, const std::array<double*, 3>& states, bool decays, double lr,
              std::int64_t s) const {
    const double decay = decays ? weight_decay : 0.0;
    if (decoupled()) {
      c *= 1.0 - lr * decay;
    } else {
      g += decay * c;
    }
    if (type == "sgd") {
      double& u = *states[0];
      u = momentum * u + g;
      return c - lr * (nesterov ? g + momentum * u : u);
    }
    double &m = *states[0], &v = *states[1];
    const double now_m = accumulates() ? m + (1.0 - beta1) * g : beta1 * m + (1.0 - beta1) * g,
                 now_v = (accumulates() ? v : beta2 * v) + (1.0 - beta2) * g * g;
    const double k = static_cast<double>(accum_iter),
                 updates = std::ceil(static_cast<double>(s) / k);
    const double mean = now_m / (1.0 - std::pow(beta1, updates)),
                 square = now_v / (1.0 - std::pow(beta2, updates));
    const double noise =
        std::max(square - mean * mean, 0.0) / (1.0 - (1.0 - beta1) / (1.0 + beta1));
    const double corrected =
        std::max(square - (1.0 - 1.0 / noise_ranks) * noise, square / noise_ranks);
    if (!accumulates()) {
      m = now_m, v = now_v;
    } else {
      double& a = *states[2];
      a += g / k;
      if (s % accum_iter == 0) {
        m = beta1 * (m + (1.0 - beta1) * a);
        v = beta2 * (v + (1.0 - beta2) * a * a);
        a = 0.0;
      }
    }
    return c - lr * mean / (std::sqrt(corrected) + eps);
  }
};

}  // namespace starling::test
