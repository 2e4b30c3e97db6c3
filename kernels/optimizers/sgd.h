#pragma once

#include <cstdint>
#include <variant>

#include "core/host_device.h"
#include "kernels/math/rules.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/shared_keys.h"

namespace starling::rules {

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
  static constexpr const char* kName = "sgd";
  static constexpr const char* kSummary =
      "stochastic gradient descent, with momentum or Nesterov's";
  static constexpr double kRate = 0.1;
  double momentum = 0.0, weight_decay = 0.0;
  bool nesterov = false;

  void read(ConfigSection& config) {
    read_momentum(config, momentum, nesterov);
    read_weight_decay(config, weight_decay);
  }

  RuleFacts facts() const { return momentum_facts(momentum); }

  template <class T>
  std::variant<SgdStep<T, false, false>, SgdStep<T, true, false>, SgdStep<T, true, true>> step(
      double lr, std::int64_t) const {
    const T rate = static_cast<T>(lr), mu = static_cast<T>(momentum),
            decay = static_cast<T>(weight_decay);
    if (momentum == 0.0) return SgdStep<T, false, false>{rate, mu, decay};
    if (nesterov) return SgdStep<T, true, true>{rate, mu, decay};
    return SgdStep<T, true, false>{rate, mu, decay};
  }
};

}  // namespace starling::rules
