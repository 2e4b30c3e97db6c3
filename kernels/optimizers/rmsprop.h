#pragma once

#include <cstdint>
#include <variant>

#include "core/host_device.h"
#include "kernels/math/rules.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/shared_keys.h"

namespace starling::rules {

/// RMSprop (Hinton 2012), as torch.optim.RMSprop; centered as in Graves 2013, arXiv 1308.0850.
/// States: the mean square, then with momentum its buffer, then with kCentered the mean gradient.
template <class T, bool kMomentum, bool kCentered>
struct RmspropStep {
  using Real = T;
  static constexpr int kStates = 1 + kMomentum + kCentered;
  static constexpr unsigned kReads = (1u << kStates) - 1, kWrites = kReads;
  T lr, alpha, one_minus_alpha, eps, momentum, weight_decay;

  STARLING_HD T operator()(T p, T g, T* state, bool decay) const {
    g = g + (decay ? weight_decay : T(0)) * p;
    state[0] = alpha * state[0] + one_minus_alpha * (g * g);
    T square = state[0];
    if constexpr (kCentered) {
      T& mean = state[kStates - 1];
      mean = alpha * mean + one_minus_alpha * g;
      square = square - mean * mean;
      // Rounding may leave less than nothing of a gradient that never changes. NaN stays.
      square = square < T(0) ? T(0) : square;
    }
    const T direction = g / (square_root(square) + eps);
    if constexpr (kMomentum) {
      state[1] = momentum * state[1] + direction;
      return p - lr * state[1];
    } else {
      return p - lr * direction;
    }
  }
};

struct Rmsprop {
  static constexpr const char* kName = "rmsprop";
  static constexpr const char* kSummary =
      "the gradient over the root of its mean square, with momentum or centered";
  static constexpr double kRate = 0.01;
  double alpha = 0.99, eps = 1e-8, momentum = 0.0, weight_decay = 0.0;
  bool centered = false;

  void read(ConfigSection& config) {
    config.read("alpha", alpha, Range::half_open(0.0, 1.0), "decay of the running means");
    read_eps(config, eps);
    read_weight_decay(config, weight_decay);
    config.read("momentum", momentum, Range::half_open(0.0, 1.0),
                "share of the last step's direction");
    config.read("centered", centered, "divide by the gradient's deviation from its running mean");
  }

  RuleFacts facts() const {
    RuleFacts facts{.states = {"square_avg"}};
    if (momentum != 0.0) facts.states.emplace_back("momentum_buffer");
    if (centered) facts.states.emplace_back("grad_avg");
    return facts;
  }

  template <class T>
  std::variant<RmspropStep<T, false, false>, RmspropStep<T, false, true>,
               RmspropStep<T, true, false>, RmspropStep<T, true, true>>
  step(double lr, std::int64_t) const {
    const auto made = [&]<bool kMomentum, bool kCentered>() {
      return RmspropStep<T, kMomentum, kCentered>{
          static_cast<T>(lr), static_cast<T>(alpha),    static_cast<T>(1.0 - alpha),
          epsilon<T>(eps),    static_cast<T>(momentum), static_cast<T>(weight_decay)};
    };
    if (momentum == 0.0 && !centered) return made.template operator()<false, false>();
    if (momentum == 0.0) return made.template operator()<false, true>();
    if (!centered) return made.template operator()<true, false>();
    return made.template operator()<true, true>();
  }
};

}  // namespace starling::rules
