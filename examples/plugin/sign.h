#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/host_device.h"

// The optimizer's arithmetic, for CPUs (mine.cpp) and GPUs (sign.cu). In a namespace with a name:
// the two files must mean the same type.
namespace mine {

/// The sign of a running mean of the gradient, with decoupled weight decay: one element, one step.
template <class T>
struct SignStep {
  using Real = T;
  static constexpr int kStates = 1;  // one state tensor …
  // … that each step reads and writes (bit masks)
  static constexpr unsigned kReads = 1, kWrites = 1;
  T lr, beta, decay;
  STARLING_HD T operator()(T p, T g, T* state, bool decays) const {
    state[0] = beta * state[0] + (1 - beta) * g;
    if (decays) p -= decay * p;
    return p - lr * (state[0] > 0 ? T(1) : T(-1));
  }
};

struct Sign {
  double beta, weight_decay;
  std::vector<std::string> state_names() const { return {"momentum"}; }
  template <class T, class Run>
  void step(double lr, std::int64_t /*s*/, Run&& run) const {
    run(SignStep<T>{static_cast<T>(lr), static_cast<T>(beta), static_cast<T>(lr * weight_decay)});
  }
};

}  // namespace mine
