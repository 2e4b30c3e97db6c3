#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.h"
#include "kernels/math/rules.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/shared_keys.h"

namespace starling::rules {

/// Schedule-free AdamW (Defazio et al. 2024, arXiv 2405.15682), as facebookresearch/schedule_free.
/// Gradients are taken at y, the parameters; plain steps lead from z to z; x, the mean of all z, is
/// what is tested. States: d = z - y, and v. d and not z, as it is zero at first, and whatever
/// changes the parameters between steps (mixes, means, push-sum's weights) moves z along.
template <class T>
struct ScheduleFreeAdamStep {
  using Real = T;
  static constexpr int kStates = 2;
  static constexpr unsigned kReads = 3, kWrites = 3;
  T beta2, one_minus_beta2;
  T inverse_root;  ///< 1 / sqrt(1 - beta2^s)
  T eps, weight_decay;
  T share, rest;     ///< c, this step's in the mean, and 1 - c
  T y_size, d_size;  ///< lr (1 - β1 (1 - c)) and lr β1

  STARLING_HD T operator()(T p, T g, T* state, bool decay) const {
    state[1] = beta2 * state[1] + one_minus_beta2 * (g * g);
    const T n =
        g / (square_root(state[1]) * inverse_root + eps) + (decay ? weight_decay : T(0)) * p;
    const T d = state[0];
    state[0] = rest * (d - d_size * n);
    return p + share * d - y_size * n;
  }
};

struct ScheduleFreeAdam {
  static constexpr const char* kName = "schedule_free_adamw";
  static constexpr const char* kSummary =
      "AdamW at a constant rate; the mean of its steps is tested and written, instead of a "
      "schedule";
  static constexpr double kRate = 2.5e-3;
  AdamSettings settings;
  std::int64_t warmup_steps = 0;

  void read(ConfigSection& config) {
    read_adam(config, settings);
    if (settings.beta1 == 0.0)
      config.error("betas", "the first is 0, with which nothing is averaged; allowed: > 0");
    config.read("warmup_steps", warmup_steps, Range::closed(0, 1e12),
                "steps in which the rate grows to lr, from lr / warmup_steps on; schedule must be "
                "constant");
  }

  /// The evaluated model is x = y + (1 - 1/β1) (z - y).
  RuleFacts facts() const {
    return {.states = {"z_minus_y", "exp_avg_sq"},
            .needs_constant_rate = true,
            .evaluated = {.state = 0, .weight = 1.0 - 1.0 / settings.beta1}};
  }

  /// The rate of step s, as a factor on lr.
  double warmup(std::int64_t s) const {
    return s < warmup_steps ? static_cast<double>(s) / static_cast<double>(warmup_steps) : 1.0;
  }

  /// The share c: the square of step s's rate over the sum of all squares so far, in which a
  /// constant lr cancels. While it warms up the sum is that of the first s square numbers;
  /// afterwards each step adds 1.
  double share(std::int64_t s) const {
    const double at = static_cast<double>(s), length = static_cast<double>(warmup_steps);
    if (s <= warmup_steps) return 6.0 * at / ((at + 1.0) * (2.0 * at + 1.0));
    const double warmed =
        warmup_steps > 0 ? (length + 1.0) * (2.0 * length + 1.0) / (6.0 * length) : 0.0;
    return 1.0 / (warmed + (at - length));
  }

  template <class T>
  ScheduleFreeAdamStep<T> step(double lr, std::int64_t s) const {
    const double rate = lr * warmup(s), c = share(s), beta1 = settings.beta1,
                 beta2 = settings.beta2;
    return {static_cast<T>(beta2),
            static_cast<T>(1.0 - beta2),
            static_cast<T>(1.0 / std::sqrt(1.0 - std::pow(beta2, static_cast<double>(s)))),
            epsilon<T>(settings.eps),
            static_cast<T>(settings.weight_decay),
            static_cast<T>(c),
            static_cast<T>(1.0 - c),
            static_cast<T>(rate * (1.0 - beta1 * (1.0 - c))),
            static_cast<T>(rate * beta1)};
  }
};

}  // namespace starling::rules
