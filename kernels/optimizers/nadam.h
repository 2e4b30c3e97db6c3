#pragma once

#include <cmath>
#include <cstdint>
#include <variant>

#include "core/host_device.h"
#include "kernels/math/rules.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/shared_keys.h"

namespace starling::rules {

/// NAdam (Dozat 2016), as torch.optim.NAdam. States: m, v.
template <class T, bool kDecoupled>
struct NadamStep {
  using Real = T;
  static constexpr int kStates = 2;
  static constexpr unsigned kReads = 3, kWrites = 3;
  AdamCoefficients<T> c;  ///< step_size: of m
  T gradient_size;        ///< of the gradient, which looks ahead as Nesterov's momentum does

  STARLING_HD T operator()(T p, T g, T* state, bool decay) const {
    decay_first<kDecoupled>(c, decay, p, g);
    state[0] = c.beta1 * state[0] + c.one_minus_beta1 * g;
    state[1] = c.beta2 * state[1] + c.one_minus_beta2 * (g * g);
    const T move = gradient_size * g + c.step_size * state[0];
    return p - move / (square_root(state[1]) * c.inverse_root + c.eps);
  }
};

struct Nadam {
  static constexpr const char* kName = "nadam";
  static constexpr const char* kSummary = "Adam with Nesterov's momentum";
  static constexpr double kRate = 2e-3;
  AdamSettings settings;
  double momentum_decay = 4e-3;
  bool decoupled = false;

  void read(ConfigSection& config) {
    read_adam(config, settings);
    config.read("momentum_decay", momentum_decay, Range::at_least(0.0),
                "how fast the momentum grows from half of betas' first to all of it, as 1 - "
                "0.96^(s * momentum_decay) / 2");
    config.read("decoupled_weight_decay", decoupled,
                "weight decay as in adamw; otherwise it joins the gradient");
  }

  RuleFacts facts() const { return {.states = {"exp_avg", "exp_avg_sq"}}; }

  /// μ of step s: β1 (1 - 0.96^(s·momentum_decay) / 2).
  double momentum(std::int64_t s) const {
    return settings.beta1 * (1.0 - 0.5 * std::pow(0.96, static_cast<double>(s) * momentum_decay));
  }

  /// The product of steps 1 … s's μ; one so small that 1 - it is 1 may be any such number. A sum of
  /// logarithms, whose length s does not change: with q = 0.96^momentum_decay, -ln(1 - q^i/2) = Σ
  /// q^(ik) / (k 2^k) over k, and over i these are geometric sums.
  double momentum_product(std::int64_t s) const {
    const double steps = static_cast<double>(s), log_q = momentum_decay * std::log(0.96);
    double sum = settings.beta1 == 0.0 ? -50.0 : steps * std::log(settings.beta1);
    for (int k = 1; k <= 52 && sum > -50.0; ++k) {
      const double power = k * log_q;
      const double geometric =
          power == 0.0 ? steps : std::exp(power) * std::expm1(steps * power) / std::expm1(power);
      sum -= std::ldexp(geometric / k, -k);
    }
    return std::exp(sum);
  }

  template <class T>
  std::variant<NadamStep<T, false>, NadamStep<T, true>> step(double lr, std::int64_t s) const {
    const double product = momentum_product(s), next = momentum(s + 1);
    AdamCoefficients<T> c = settings.coefficients<T>(lr, s, decoupled);
    c.step_size = static_cast<T>(lr * next / (1.0 - product * next));
    const T gradient_size = static_cast<T>(lr * (1.0 - momentum(s)) / (1.0 - product));
    if (decoupled) return NadamStep<T, true>{c, gradient_size};
    return NadamStep<T, false>{c, gradient_size};
  }
};

}  // namespace starling::rules
