#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/host_device.h"
#include "kernels/math/rules.h"

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
  double momentum = 0.9, trust = 1e-3, eps = 1e-8, weight_decay = 0.0;
  bool nesterov = false, adapt_all = false;

  std::vector<std::string> state_names() const {
    if (momentum == 0.0) return {};
    return {"momentum_buffer"};
  }

  template <class T, class Run>
  void step(double lr, std::int64_t, Run&& run) const {
    const T rate = static_cast<T>(lr), mu = static_cast<T>(momentum),
            decay = static_cast<T>(weight_decay);
    if (momentum == 0.0) {
      run(LarsStep<T, false, false>{rate, mu, decay, trust, eps, weight_decay, adapt_all});
    } else if (nesterov) {
      run(LarsStep<T, true, true>{rate, mu, decay, trust, eps, weight_decay, adapt_all});
    } else {
      run(LarsStep<T, true, false>{rate, mu, decay, trust, eps, weight_decay, adapt_all});
    }
  }
};

}  // namespace starling::rules
