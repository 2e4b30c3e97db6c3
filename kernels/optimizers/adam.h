#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <variant>

#include "core/host_device.h"
#include "kernels/math/rules.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/shared_keys.h"

namespace starling::rules {

/// Adam (Kingma & Ba 2015, arXiv 1412.6980) and AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101).
/// States: m, v.
template <class T, bool kDecoupled>
struct AdamStep {
  using Real = T;
  static constexpr int kStates = 2;
  static constexpr unsigned kReads = 3, kWrites = 3;
  AdamCoefficients<T> c;

  STARLING_HD T operator()(T p, T g, T* state, bool decay) const {
    decay_first<kDecoupled>(c, decay, p, g);
    state[0] = c.beta1 * state[0] + c.one_minus_beta1 * g;
    state[1] = c.beta2 * state[1] + c.one_minus_beta2 * (g * g);
    return adam_move(c, p, state[0], state[1]);
  }
};

/// Adam whose second moment leaves out the part of the noise that a mean over N ranks would not
/// have (the square-root rule of Malladi et al. 2022, arXiv 2205.10287, where noise dominates, and
/// Adam where it does not). m and v corrected for bias, σ² = max(v - m², 0)/(1 - c) and c =
/// (1-β1)/(1+β1): v becomes max(v - (1 - 1/N)σ², v/N) in the denominator.
template <class T, bool kDecoupled>
struct NoiseCorrectedAdamStep {
  using Real = T;
  static constexpr int kStates = 2;
  static constexpr unsigned kReads = 3, kWrites = 3;
  AdamCoefficients<T> c;
  T correct1, correct2;  ///< 1/(1 - β1^s), 1/(1 - β2^s)
  T removed;             ///< (1 - 1/N)/(1 - c)
  T least;               ///< 1/N
  T lr;

  STARLING_HD T operator()(T p, T g, T* state, bool decay) const {
    decay_first<kDecoupled>(c, decay, p, g);
    state[0] = c.beta1 * state[0] + c.one_minus_beta1 * g;
    state[1] = c.beta2 * state[1] + c.one_minus_beta2 * (g * g);
    const T m = correct1 * state[0], v = correct2 * state[1];
    const T noise = v - m * m, kept = v - removed * (noise > T(0) ? noise : T(0)),
            floor = least * v;
    return p - lr * (m / (square_root(kept > floor ? kept : floor) + c.eps));
  }
};

template <bool kDecoupled>
struct Adam {
  static constexpr const char* kName = kDecoupled ? "adamw" : "adam";
  static constexpr const char* kSummary =
      kDecoupled ? "Adam with decoupled weight decay" : "Adam; weight decay joins the gradient";
  AdamSettings settings{.weight_decay = kDecoupled ? 0.1 : 0.0};
  double noise_correction = 1.0;    ///< N; 1: off
  bool noise_of_all_ranks = false;  ///< N is the number of ranks, which know_ranks() tells
  /// Not null: m and v stay as they are, v being that of this many updates, and p goes along m. For
  /// algorithms that make m themselves.
  const std::int64_t* frozen_at = nullptr;

  void know_ranks(int ranks) {
    if (noise_of_all_ranks) noise_correction = ranks;
  }

  void read(ConfigSection& config) {
    read_adam(config, settings);
    std::string word;
    noise_correction = config.number_or_word(
        "noise_correction", 1.0, Range::at_least(1.0), {"ranks"}, word,
        "N: leave out of the second moment the noise that a mean over N ranks would not have; 1: "
        "off; ranks: as many as the run has");
    noise_of_all_ranks = !word.empty();
    if (noise_of_all_ranks) noise_correction = 1.0;  // until the ranks are known
  }

  RuleFacts facts() const {
    return {.states = {"exp_avg", "exp_avg_sq"}, .corrects_noise = noise_correction != 1.0};
  }

  template <class T>
  std::variant<AdamStep<T, kDecoupled>, NoiseCorrectedAdamStep<T, kDecoupled>> step(
      double lr, std::int64_t s) const {
    AdamCoefficients<T> c = settings.coefficients<T>(lr, s, kDecoupled);
    if (frozen_at) {
      c.beta1 = c.beta2 = T(1);
      c.one_minus_beta1 = c.one_minus_beta2 = T(0);
      c.inverse_root = static_cast<T>(
          1.0 / std::sqrt(1.0 - std::pow(settings.beta2, static_cast<double>(*frozen_at))));
    }
    if (noise_correction == 1.0) return AdamStep<T, kDecoupled>{c};
    const double at = static_cast<double>(s),
                 share = (1.0 - settings.beta1) / (1.0 + settings.beta1);
    return NoiseCorrectedAdamStep<T, kDecoupled>{
        c,
        static_cast<T>(1.0 / (1.0 - std::pow(settings.beta1, at))),
        static_cast<T>(1.0 / (1.0 - std::pow(settings.beta2, at))),
        static_cast<T>((1.0 - 1.0 / noise_correction) / (1.0 - share)),
        static_cast<T>(1.0 / noise_correction),
        static_cast<T>(lr)};
  }
};

}  // namespace starling::rules
