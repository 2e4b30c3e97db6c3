#pragma once

#include <cstdint>
#include <variant>

#include "core/host_device.h"
#include "kernels/math/rules.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/shared_keys.h"

namespace starling::rules {

/// LARS (You et al. 2017, arXiv 1708.03888), in the form of torch-lars and timm: the layer's
/// gradient, with its decay, is multiplied by trust·‖p‖ / (‖g‖ + wd·‖p‖ + eps), and goes into the
/// momentum. State, with momentum: the momentum buffer.
template <class T, bool kMomentum, bool kNesterov>
struct LarsStep {
  using Real = T;
  static constexpr int kStates = kMomentum ? 1 : 0;
  static constexpr unsigned kReads = kMomentum ? 1 : 0;
  static constexpr unsigned kWrites = kReads;
  static constexpr bool kMeasures = true;
  static constexpr unsigned kMeasureReads = 0;
  T lr, momentum, weight_decay;
  double trust, eps, decay_rate;  ///< decay_rate: weight_decay, not rounded to T
  bool adapt_all;

  STARLING_HD T measured(T, T g, const T*, bool) const { return g; }

  /// 1 where a norm is zero: nothing can be said of the layer's scale then.
  STARLING_HD double layer_factor(double parameter, double gradient, bool weight,
                                  bool decays) const {
    if (!(weight || adapt_all) || parameter == 0.0 || gradient == 0.0) return 1.0;
    const double norm = square_root(parameter);
    return trust * norm / (square_root(gradient) + (decays ? decay_rate : 0.0) * norm + eps);
  }

  STARLING_HD T operator()(T p, T g, T* state, bool decay, T factor) const {
    g = factor * (g + (decay ? weight_decay : T(0)) * p);
    if constexpr (kMomentum) {
      state[0] = momentum * state[0] + g;
      return p - lr * (kNesterov ? g + momentum * state[0] : state[0]);
    } else {
      return p - lr * g;
    }
  }
};

struct Lars {
  static constexpr const char* kName = "lars";
  static constexpr const char* kSummary =
      "sgd with a rate for each layer, by the norms of its weights and gradient";
  static constexpr double kRate = 1.0;
  double momentum = 0.9, trust = 1e-3, eps = 1e-8, weight_decay = 0.0;
  bool nesterov = false, adapt_all = false;

  void read(ConfigSection& config) {
    read_momentum(config, momentum, nesterov);
    config.read("trust", trust, Range::positive(),
                "a layer's step is about lr * trust times as long as the layer");
    read_eps(config, eps);
    read_weight_decay(config, weight_decay);
    read_adapt(config, adapt_all);
  }

  RuleFacts facts() const { return momentum_facts(momentum); }

  template <class T>
  std::variant<LarsStep<T, false, false>, LarsStep<T, true, false>, LarsStep<T, true, true>> step(
      double lr, std::int64_t) const {
    const auto made = [&]<bool kMomentum, bool kNesterov>() {
      return LarsStep<T, kMomentum, kNesterov>{static_cast<T>(lr),
                                               static_cast<T>(momentum),
                                               static_cast<T>(weight_decay),
                                               trust,
                                               eps,
                                               weight_decay,
                                               adapt_all};
    };
    if (momentum == 0.0) return made.template operator()<false, false>();
    if (nesterov) return made.template operator()<true, true>();
    return made.template operator()<true, false>();
  }
};

}  // namespace starling::rules
