#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/host_device.h"

// The arithmetic of the built-in optimizers, semantics of torch.optim, shared by the CPU's kernels
// and a GPU's.
//
// A *rule* holds the numbers that the user sets; state_names() names its states. rule.step<T>(lr,
// s, run) makes the coefficients of step s, in double, rounds them to T, and calls run(step). A
// *step* is a plain struct that a kernel takes by value:
//
//     using Real = T;                          float or double
//     static constexpr int kStates             how many state tensors the rule has, 0 … 4
//     static constexpr unsigned kReads         bit k: the step reads state k (others are zero when
//                                              it starts)
//     static constexpr unsigned kWrites        bit k: the step writes state k (others keep their
//                                              contents)
//     T operator()(T p, T g, T* state, bool decay) const
//                                              one element: returns the new p; state has kStates
//                                              entries
//
// The compiler knows which states a step touches, so that a pass moves no byte more than it must.
// These functions are compiled without contraction to fused multiply-add: every instruction set
// gives the same bits.

// What lives here: formulas that CPU and GPU share, one source each, so that both give the same
// numbers: update rules and the loop around them, activations, dropout's mask, pixels. Pure
// functions of values, marked STARLING_HD; they include core/host_device.h and each other.

namespace starling::rules {

STARLING_HD float square_root(float x) { return ::sqrtf(x); }
STARLING_HD double square_root(double x) { return ::sqrt(x); }

/// Number that is added to a denominator: never zero, which would make 0/0 of elements without
/// gradient.
template <class T>
T epsilon(double eps) {
  return std::max(static_cast<T>(eps), std::numeric_limits<T>::min());
}

/// No rule: p as mixed. For a step that only mixes.
template <class T>
struct MixStep {
  using Real = T;
  static constexpr int kStates = 0;
  static constexpr unsigned kReads = 0, kWrites = 0;
  STARLING_HD T operator()(T p, T, T*, bool) const { return p; }
};

/// Stochastic gradient descent, as torch.optim.SGD with dampening 0. State 0, with momentum: the
/// momentum buffer.
template <class T, bool kMomentum, bool kNesterov>
struct SgdStep {
  using Real = T;
  static constexpr int kStates = kMomentum ? 1 : 0;
  static constexpr unsigned kReads = kMomentum ? 1 : 0;
  static constexpr unsigned kWrites = kReads;
  T lr, momentum, weight_decay;

  STARLING_HD T operator()(T p, T g, T* state, bool decay) const {
    g = g + (decay ? weight_decay : T(0)) * p;
    if constexpr (kMomentum) {
      state[0] = momentum * state[0] + g;
      return p - lr * (kNesterov ? g + momentum * state[0] : state[0]);
    } else {
      return p - lr * g;
    }
  }
};

struct Sgd {
  double momentum = 0.0, weight_decay = 0.0;
  bool nesterov = false;

  std::vector<std::string> state_names() const {
    if (momentum == 0.0) return {};
    return {"momentum_buffer"};
  }

  template <class T, class Run>
  void step(double lr, std::int64_t, Run&& run) const {
    const T rate = static_cast<T>(lr), mu = static_cast<T>(momentum),
            decay = static_cast<T>(weight_decay);
    if (momentum == 0.0) {
      run(SgdStep<T, false, false>{rate, mu, decay});
    } else if (nesterov) {
      run(SgdStep<T, true, true>{rate, mu, decay});
    } else {
      run(SgdStep<T, true, false>{rate, mu, decay});
    }
  }
};

/// The coefficients that the Adam family shares. `correction` is the s of the bias corrections 1 -
/// beta^s.
template <class T>
struct AdamCoefficients {
  T beta1, one_minus_beta1, beta2, one_minus_beta2;
  T step_size;     ///< lr / (1 - beta1^s)
  T inverse_root;  ///< 1 / sqrt(1 - beta2^s)
  T eps;
  T weight_decay;  ///< decoupled: the factor 1 - lr·wd
};

struct AdamSettings {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;

  template <class T>
  AdamCoefficients<T> coefficients(double lr, std::int64_t correction, bool decoupled) const {
    const double s = static_cast<double>(correction);
    return {static_cast<T>(beta1),
            static_cast<T>(1.0 - beta1),
            static_cast<T>(beta2),
            static_cast<T>(1.0 - beta2),
            static_cast<T>(lr / (1.0 - std::pow(beta1, s))),
            static_cast<T>(1.0 / std::sqrt(1.0 - std::pow(beta2, s))),
            epsilon<T>(eps),
            static_cast<T>(decoupled ? 1.0 - lr * weight_decay : weight_decay)};
  }
};

/// Decay before the moments: decoupled (AdamW) shrinks p, otherwise (Adam) wd·p joins the gradient.
template <bool kDecoupled, class T>
STARLING_HD void decay_first(const AdamCoefficients<T>& c, bool decay, T& p, T& g) {
  if constexpr (kDecoupled) {
    p = p * (decay ? c.weight_decay : T(1));
  } else {
    g = g + (decay ? c.weight_decay : T(0)) * p;
  }
}

/// p after the step along m / (sqrt(v) corrected + eps).
template <class T>
STARLING_HD T adam_move(const AdamCoefficients<T>& c, T p, T m, T v) {
  return p - c.step_size * (m / (square_root(v) * c.inverse_root + c.eps));
}

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
  AdamSettings settings;
  double noise_correction = 1.0;    ///< N; 1: off
  bool noise_of_all_ranks = false;  ///< N is the number of ranks, which know_ranks() tells
  /// Not null: m and v stay as they are, v being that of so many updates, and p goes along m. For
  /// algorithms that make m themselves.
  const std::int64_t* frozen_at = nullptr;

  void know_ranks(int ranks) {
    if (noise_of_all_ranks) noise_correction = ranks;
  }

  std::vector<std::string> state_names() const { return {"exp_avg", "exp_avg_sq"}; }

  template <class T, class Run>
  void step(double lr, std::int64_t s, Run&& run) const {
    AdamCoefficients<T> c = settings.coefficients<T>(lr, s, kDecoupled);
    if (frozen_at) {
      c.beta1 = c.beta2 = T(1);
      c.one_minus_beta1 = c.one_minus_beta2 = T(0);
      c.inverse_root = static_cast<T>(
          1.0 / std::sqrt(1.0 - std::pow(settings.beta2, static_cast<double>(*frozen_at))));
    }
    if (noise_correction == 1.0) return run(AdamStep<T, kDecoupled>{c});
    const double at = static_cast<double>(s),
                 share = (1.0 - settings.beta1) / (1.0 + settings.beta1);
    run(NoiseCorrectedAdamStep<T, kDecoupled>{
        c, static_cast<T>(1.0 / (1.0 - std::pow(settings.beta1, at))),
        static_cast<T>(1.0 / (1.0 - std::pow(settings.beta2, at))),
        static_cast<T>((1.0 - 1.0 / noise_correction) / (1.0 - share)),
        static_cast<T>(1.0 / noise_correction), static_cast<T>(lr)});
  }
};

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
  AdamSettings settings;
  std::int64_t accum_iter = 4;

  std::vector<std::string> state_names() const { return {"exp_avg", "exp_avg_sq", "accum_grad"}; }
  /// Steps after which the traffic repeats.
  std::int64_t period() const { return accum_iter; }

  template <class T, class Run>
  void step(double lr, std::int64_t s, Run&& run) const {
    const auto c = settings.coefficients<T>(lr, (s + accum_iter - 1) / accum_iter, kDecoupled);
    const T inverse_k = static_cast<T>(1.0 / static_cast<double>(accum_iter));
    const std::int64_t position = (s - 1) % accum_iter;
    if (accum_iter == 1) {
      run(AccumAdamStep<T, kDecoupled, AccumPhase::kOnly>{c, inverse_k});
    } else if (position == 0) {
      run(AccumAdamStep<T, kDecoupled, AccumPhase::kFirst>{c, inverse_k});
    } else if (position == accum_iter - 1) {
      run(AccumAdamStep<T, kDecoupled, AccumPhase::kLast>{c, inverse_k});
    } else {
      run(AccumAdamStep<T, kDecoupled, AccumPhase::kMiddle>{c, inverse_k});
    }
  }
};

}  // namespace starling::rules
