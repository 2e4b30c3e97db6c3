#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.h"
#include "kernels/math/rules.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/shared_keys.h"

namespace starling::rules {

/// LAMB (You et al. 2019, arXiv 1904.00962, algorithm 2, with bias correction and φ the identity):
/// Adam's direction, with decoupled decay, times the layer's ‖p‖ / ‖direction‖. States: m, v.
template <class T>
struct LambStep {
  using Real = T;
  static constexpr int kStates = 2;
  static constexpr unsigned kReads = 3, kWrites = 3;
  static constexpr bool kMeasures = true;
  static constexpr unsigned kMeasureReads = 3;
  T lr, beta1, one_minus_beta1, beta2, one_minus_beta2;
  T correct1;      ///< 1 / (1 - beta1^s)
  T inverse_root;  ///< 1 / sqrt(1 - beta2^s)
  T eps, weight_decay;
  bool adapt_all;

  /// The direction m̂ / (sqrt(v̂) + eps) + wd·p of the moments after this step.
  STARLING_HD T direction(T p, T m, T v, bool decay) const {
    return correct1 * m / (square_root(v) * inverse_root + eps) + (decay ? weight_decay : T(0)) * p;
  }
  STARLING_HD T first(T g, T m) const { return beta1 * m + one_minus_beta1 * g; }
  STARLING_HD T second(T g, T v) const { return beta2 * v + one_minus_beta2 * (g * g); }

  STARLING_HD T measured(T p, T g, const T* state, bool decay) const {
    return direction(p, first(g, state[0]), second(g, state[1]), decay);
  }

  /// 1 where a norm is zero: a layer of zeros could otherwise never leave zero.
  STARLING_HD double layer_factor(double parameter, double moved, bool weight, bool) const {
    if (!(weight || adapt_all) || parameter == 0.0 || moved == 0.0) return 1.0;
    return square_root(parameter) / square_root(moved);
  }

  STARLING_HD T operator()(T p, T g, T* state, bool decay, T factor) const {
    state[0] = first(g, state[0]);
    state[1] = second(g, state[1]);
    return p - lr * (factor * direction(p, state[0], state[1], decay));
  }
};

struct Lamb {
  static constexpr const char* kName = "lamb";
  static constexpr const char* kSummary =
      "adamw with a rate for each layer, by the norms of its weights and step";
  AdamSettings settings{.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-6, .weight_decay = 0.01};
  bool adapt_all = false;

  void read(ConfigSection& config) {
    read_adam(config, settings);
    read_adapt(config, adapt_all);
  }

  RuleFacts facts() const { return {.states = {"exp_avg", "exp_avg_sq"}}; }

  template <class T>
  LambStep<T> step(double lr, std::int64_t s) const {
    const auto at = static_cast<double>(s);
    return {static_cast<T>(lr),
            static_cast<T>(settings.beta1),
            static_cast<T>(1.0 - settings.beta1),
            static_cast<T>(settings.beta2),
            static_cast<T>(1.0 - settings.beta2),
            static_cast<T>(1.0 / (1.0 - std::pow(settings.beta1, at))),
            static_cast<T>(1.0 / std::sqrt(1.0 - std::pow(settings.beta2, at))),
            epsilon<T>(settings.eps),
            static_cast<T>(settings.weight_decay),
            adapt_all};
  }
};

}  // namespace starling::rules
