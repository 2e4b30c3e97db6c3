#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "kernels/math/rules.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/shared_keys.h"

namespace starling::rules {

/// Adagrad (Duchi et al. 2011), as torch.optim.Adagrad. State: the sum of squares.
template <class T>
struct AdagradStep {
  using Real = T;
  static constexpr int kStates = 1;
  static constexpr unsigned kReads = 1, kWrites = 1;
  T lr;       ///< lr / (1 + (s-1)·lr_decay)
  T initial;  ///< joins the sum; 0 but at the first step
  T eps, weight_decay;

  STARLING_HD T operator()(T p, T g, T* state, bool decay) const {
    g = g + (decay ? weight_decay : T(0)) * p;
    state[0] = (state[0] + initial) + g * g;
    return p - lr * (g / (square_root(state[0]) + eps));
  }
};

/// A bucket's states are zero when step 1 begins, at a run's start as after a reset. So the initial
/// value joins the sum in that step, and the sum is torch's after every step.
struct Adagrad {
  static constexpr const char* kName = "adagrad";
  static constexpr const char* kSummary =
      "the gradient over the root of the sum of all its squares";
  static constexpr double kRate = 0.01;
  double lr_decay = 0.0, eps = 1e-10, weight_decay = 0.0, initial_accumulator_value = 0.0;

  void read(ConfigSection& config) {
    config.read("lr_decay", lr_decay, Range::at_least(0.0),
                "step s has the rate lr / (1 + (s - 1) * lr_decay)");
    read_eps(config, eps);
    read_weight_decay(config, weight_decay);
    config.read("initial_accumulator_value", initial_accumulator_value, Range::at_least(0.0),
                "what the sum of squares starts from");
  }

  RuleFacts facts() const { return {.states = {"sum"}}; }

  template <class T>
  AdagradStep<T> step(double lr, std::int64_t s) const {
    return {static_cast<T>(lr / (1.0 + static_cast<double>(s - 1) * lr_decay)),
            static_cast<T>(s == 1 ? initial_accumulator_value : 0.0), epsilon<T>(eps),
            static_cast<T>(weight_decay)};
  }
};

}  // namespace starling::rules
