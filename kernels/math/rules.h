#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <variant>

#include "core/host_device.h"

// The arithmetic of optimizers, semantics of torch.optim, shared by the CPU's kernels and a GPU's.
//
// A *rule* is a struct in a header that the host's compiler and nvcc both read
// (kernels/optimizers/; examples/plugin/sign.h is explained in docs/extending.md):
//
//     static constexpr const char* kName, * kSummary   in configs and --list
//     static constexpr double kRate                    default of optimizer.lr; optional
//                                                      (kUsualRate)
//     its settings, with their defaults
//     void read(ConfigSection&)                        the settings' keys
//     RuleFacts facts() const                          states etc. (kernels/optimizer.h)
//     Step step<T>(double lr, std::int64_t s) const    step s, with coefficients computed in double
//                                                      and rounded to T; a std::variant if there
//                                                      are several types
//
// RuleKernel (kernels/math/update_loop.h) lists optional members. A *step* is a plain struct that a
// kernel takes by value:
//
//     using Real = T;                          float or double
//     static constexpr int kStates             number of state tensors, 0 … 4
//     static constexpr unsigned kReads         bit k: the step reads state k (otherwise it is
//     passed
//                                              zero)
//     static constexpr unsigned kWrites        bit k: the step writes state k
//     T operator()(T p, T g, T* state, bool decay) const
//                                              one element: returns the new p; state has kStates
//                                              entries
//
// With these masks only necessary states are loaded and stored. The functions are compiled without
// contraction to fused multiply-add, so that all instruction sets give the same bits.

// This folder: formulas shared by CPU and GPU, so that both give the same numbers: update rules and
// their loop, activations, dropout masks, pixels. Pure functions, marked STARLING_HD; they include
// core/host_device.h and each other only.

namespace starling::rules {

template <class... Rules>
struct RuleList {};

/// Calls run(step) with the result of rule.step<T>(), resolving a std::variant.
template <class Rule, class T>
using StepOf = decltype(std::declval<const Rule&>().template step<T>(0.0, 1));
template <class Step, class Run>
decltype(auto) with_step(const Step& step, Run&& run) {
  return run(step);
}
template <class... Steps, class Run>
decltype(auto) with_step(const std::variant<Steps...>& step, Run&& run) {
  return std::visit(run, step);
}

STARLING_HD float square_root(float x) { return ::sqrtf(x); }
STARLING_HD double square_root(double x) { return ::sqrt(x); }

/// An eps in T that is never zero, since elements without gradient would become 0/0.
template <class T>
T epsilon(double eps) {
  return std::max(static_cast<T>(eps), std::numeric_limits<T>::min());
}

/// For updates that only mix: p unchanged.
template <class T>
struct MixStep {
  using Real = T;
  static constexpr int kStates = 0;
  static constexpr unsigned kReads = 0, kWrites = 0;
  STARLING_HD T operator()(T p, T, T*, bool) const { return p; }
};

/// Coefficients of the Adam family. `correction`: the s of the bias corrections 1 - beta^s.
template <class T>
struct AdamCoefficients {
  T beta1, one_minus_beta1, beta2, one_minus_beta2;
  T step_size;     ///< lr / (1 - beta1^s)
  T inverse_root;  ///< 1 / sqrt(1 - beta2^s)
  T eps;
  T weight_decay;  ///< decoupled: the factor 1 - lr·wd
};

struct AdamSettings {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;

  template <class T>
  AdamCoefficients<T> coefficients(double lr, std::int64_t correction, bool decoupled) const {
    const double s = static_cast<double>(correction);
    return {static_cast<T>(beta1),
            static_cast<T>(1.0 - beta1),
            static_cast<T>(beta2),
            static_cast<T>(1.0 - beta2),
            static_cast<T>(lr / (1.0 - std::pow(beta1, s))),
            static_cast<T>(1.0 / std::sqrt(1.0 - std::pow(beta2, s))),
            epsilon<T>(eps),
            static_cast<T>(decoupled ? 1.0 - lr * weight_decay : weight_decay)};
  }
};

/// Weight decay: decoupled (AdamW) shrinks p; otherwise (Adam) wd·p is added to the gradient.
template <bool kDecoupled, class T>
STARLING_HD void decay_first(const AdamCoefficients<T>& c, bool decay, T& p, T& g) {
  if constexpr (kDecoupled) {
    p = p * (decay ? c.weight_decay : T(1));
  } else {
    g = g + (decay ? c.weight_decay : T(0)) * p;
  }
}

/// p after a step along m / (sqrt(v) + eps) with bias correction.
template <class T>
STARLING_HD T adam_move(const AdamCoefficients<T>& c, T p, T m, T v) {
  return p - c.step_size * (m / (square_root(v) * c.inverse_root + c.eps));
}

}  // namespace starling::rules
