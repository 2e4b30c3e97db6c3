#pragma once

#include <cstdint>
#include <variant>

#include "core/host_device.h"
#include "kernels/math/rules.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/shared_keys.h"

namespace starling::rules {

/// Where a step lies in its group of K steps.
enum class AccumPhase { kFirst, kMiddle, kLast, kOnly };

/// AccumAdam and AccumAdamW (decent-dp; Wang et al. 2024, arXiv 2410.11998). States: m, v (both
/// hold beta times the moment, ready for the next group) and a, the mean gradient of the group so
/// far. Within a group m and v are read and a alone is written; a is zero at a group's end, so the
/// first step of a group does not read it.
template <class T, bool kDecoupled, AccumPhase kPhase>
struct AccumAdamStep {
  using Real = T;
  static constexpr bool kBegins = kPhase == AccumPhase::kFirst || kPhase == AccumPhase::kOnly;
  static constexpr bool kEnds = kPhase == AccumPhase::kLast || kPhase == AccumPhase::kOnly;
  static constexpr int kStates = 3;
  static constexpr unsigned kReads = kBegins ? 3 : 7;
  static constexpr unsigned kWrites = kPhase == AccumPhase::kOnly ? 3 : (kEnds ? 7 : 4);
  AdamCoefficients<T> c;
  T inverse_k;  ///< 1 / K

  STARLING_HD T operator()(T p, T g, T* state, bool decay) const {
    decay_first<kDecoupled>(c, decay, p, g);
    const T a = kBegins ? inverse_k * g : state[2] + inverse_k * g;
    const T m = state[0] + c.one_minus_beta1 * g;
    const T v = state[1] + c.one_minus_beta2 * (g * g);
    if constexpr (kEnds) {
      state[0] = c.beta1 * (state[0] + c.one_minus_beta1 * a);
      state[1] = c.beta2 * (state[1] + c.one_minus_beta2 * (a * a));
      state[2] = T(0);
    } else {
      state[2] = a;
    }
    return adam_move(c, p, m, v);
  }
};

template <bool kDecoupled>
struct AccumAdam {
  static constexpr const char* kName = kDecoupled ? "accum_adamw" : "accum_adam";
  static constexpr const char* kSummary =
      kDecoupled ? "accum_adam with decoupled weight decay"
                 : "Adam whose moments follow the mean gradient of accum_iter steps";
  template <AccumPhase kPhase, class T>
  using Step = AccumAdamStep<T, kDecoupled, kPhase>;
  AdamSettings settings{.weight_decay = kDecoupled ? 0.1 : 0.0};
  std::int64_t accum_iter = 4;

  void read(ConfigSection& config) {
    read_adam(config, settings);
    config.read("accum_iter", accum_iter, Range::closed(1.0, 1e6),
                "steps whose mean gradient moves the running means once");
  }

  RuleFacts facts() const {
    return {.states = {"exp_avg", "exp_avg_sq", "accum_grad"}, .phases = accum_iter};
  }

  template <class T>
  std::variant<Step<AccumPhase::kFirst, T>, Step<AccumPhase::kMiddle, T>,
               Step<AccumPhase::kLast, T>, Step<AccumPhase::kOnly, T>>
  step(double lr, std::int64_t s) const {
    const auto c = settings.coefficients<T>(lr, (s + accum_iter - 1) / accum_iter, kDecoupled);
    const T inverse_k = static_cast<T>(1.0 / static_cast<double>(accum_iter));
    const std::int64_t position = (s - 1) % accum_iter;
    if (accum_iter == 1) return Step<AccumPhase::kOnly, T>{c, inverse_k};
    if (position == 0) return Step<AccumPhase::kFirst, T>{c, inverse_k};
    if (position == accum_iter - 1) return Step<AccumPhase::kLast, T>{c, inverse_k};
    return Step<AccumPhase::kMiddle, T>{c, inverse_k};
  }
};

}  // namespace starling::rules
