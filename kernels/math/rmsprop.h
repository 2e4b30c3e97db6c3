#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/host_device.h"
#include "kernels/math/rules.h"

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
  double alpha = 0.99, eps = 1e-8, momentum = 0.0, weight_decay = 0.0;
  bool centered = false;

  std::vector<std::string> state_names() const {
    std::vector<std::string> names{"square_avg"};
    if (momentum != 0.0) names.emplace_back("momentum_buffer");
    if (centered) names.emplace_back("grad_avg");
    return names;
  }

  template <class T, class Run>
  void step(double lr, std::int64_t, Run&& run) const {
    const auto with = [&](auto made) {
      made.lr = static_cast<T>(lr);
      made.alpha = static_cast<T>(alpha);
      made.one_minus_alpha = static_cast<T>(1.0 - alpha);
      made.eps = epsilon<T>(eps);
      made.momentum = static_cast<T>(momentum);
      made.weight_decay = static_cast<T>(weight_decay);
      run(made);
    };
    if (momentum == 0.0 && !centered) {
      with(RmspropStep<T, false, false>{});
    } else if (momentum == 0.0) {
      with(RmspropStep<T, false, true>{});
    } else if (!centered) {
      with(RmspropStep<T, true, false>{});
    } else {
      with(RmspropStep<T, true, true>{});
    }
  }
};

}  // namespace starling::rules
