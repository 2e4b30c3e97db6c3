#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/shared_keys.h"

namespace starling::rules {

/// Lion (Chen et al. 2023, arXiv 2302.06675), with decoupled weight decay. State: m.
template <class T>
struct LionStep {
  using Real = T;
  static constexpr int kStates = 1;
  static constexpr unsigned kReads = 1, kWrites = 1;
  T lr, beta1, one_minus_beta1, beta2, one_minus_beta2;
  T weight_decay;  ///< the factor 1 - lr·wd

  STARLING_HD T operator()(T p, T g, T* state, bool decay) const {
    p = p * (decay ? weight_decay : T(1));
    const T c = beta1 * state[0] + one_minus_beta1 * g;
    state[0] = beta2 * state[0] + one_minus_beta2 * g;
    // A number without a sign stays: 0 moves nothing, and NaN is not hidden.
    return p - lr * (c > T(0) ? T(1) : c < T(0) ? T(-1) : c);
  }
};

struct Lion {
  static constexpr const char* kName = "lion";
  static constexpr const char* kSummary =
      "the sign of a running mean of gradients, with decoupled weight decay";
  static constexpr double kRate = 1e-4;
  double beta1 = 0.9, beta2 = 0.99, weight_decay = 0.0;

  void read(ConfigSection& config) {
    read_betas(config, beta1, beta2, "share of the running mean in the step, and its decay");
    read_weight_decay(config, weight_decay);
  }

  RuleFacts facts() const { return {.states = {"exp_avg"}}; }

  template <class T>
  LionStep<T> step(double lr, std::int64_t) const {
    return {static_cast<T>(lr),          static_cast<T>(beta1),
            static_cast<T>(1.0 - beta1), static_cast<T>(beta2),
            static_cast<T>(1.0 - beta2), static_cast<T>(1.0 - lr * weight_decay)};
  }
};

}  // namespace starling::rules
