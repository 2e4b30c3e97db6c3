#pragma once

#include <cstdint>

#include <starling/optimizer.h>

// An optimizer, whole. mine.cpp adds it by its name; sign.cu makes its kernels for GPUs. In a
// namespace with a name: the two files must mean the same type.
namespace mine {

/// One element, one step: the sign of a running mean of the gradient, with decoupled weight decay.
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

/// What a config says of it, and the step that follows.
struct Sign {
  static constexpr const char* kName = "sign";
  static constexpr const char* kSummary = "sign of the gradient's running mean";
  static constexpr double kRate = 1e-3;  // optimizer.lr where a config has none
  double beta = 0.9, weight_decay = 0.0;

  void read(starling::ConfigSection& config) {
    config.read("beta", beta, starling::Range::half_open(0.0, 1.0),
                "decay of the running mean of the gradient");
    config.read("weight_decay", weight_decay, starling::Range::at_least(0.0), "weight decay");
  }
  starling::RuleFacts facts() const { return {.states = {"momentum"}}; }
  template <class T>
  SignStep<T> step(double lr, std::int64_t /*s*/) const {
    return {static_cast<T>(lr), static_cast<T>(beta), static_cast<T>(lr * weight_decay)};
  }
};

}  // namespace mine
