#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "core/host_device.h"
#include "kernels/optimizer.h"

namespace starling::rules {

/// A rule that makes p' and the states' new values as sums of what they were, of the gradient and
/// of the new states. An algorithm's formulas, once its mix is done, are such sums; so they run in
/// the fused update of every backend, and an algorithm needs no kernel of its own.
template <class T>
struct LinearTerms {
  T p = 0;         ///< of the mixed parameters
  T s[2] = {};     ///< of the states as they were
  T g = 0;         ///< of the gradient, decay included
  T made[2] = {};  ///< of the new states: for p' alone
};
template <class T>
struct LinearCoefficients {
  LinearTerms<T> x{.p = 1};
  LinearTerms<T> state[2] = {};
  /// Terms of weight decay: where it applies, g becomes g + decay_p·p + Σ decay_s·s.
  T decay_p = 0;
  T decay_s[2] = {};
};

/// The update with kStates states, of which the first kMade are written. Sums run from left to
/// right as LinearTerms has them.
template <class T, int kStateCount, int kMade>
struct LinearStep {
  using Real = T;
  static constexpr int kStates = kStateCount;
  static constexpr unsigned kReads = (1u << kStateCount) - 1, kWrites = (1u << kMade) - 1;
  LinearCoefficients<T> c;

  STARLING_HD T sum(const LinearTerms<T>& terms, T p, T g, const T* s) const {
    T result = terms.p * p;
    for (int j = 0; j < kStateCount; ++j) result = result + terms.s[j] * s[j];
    return result + terms.g * g;
  }
  STARLING_HD T operator()(T p, T g, T* state, bool decay) const {
    T more = c.decay_p * p;
    for (int j = 0; j < kStateCount; ++j) more = more + c.decay_s[j] * state[j];
    g = decay ? g + more : g;
    T made[kMade + 1] = {};
    for (int k = 0; k < kMade; ++k) made[k] = sum(c.state[k], p, g, state);
    T result = sum(c.x, p, g, state);
    for (int k = 0; k < kMade; ++k) {
      result = result + c.x.made[k] * made[k];
      state[k] = made[k];
    }
    return result;
  }
};

/// The coefficients are asked for again in every step, so that each step of a graph has its own.
struct Linear {
  int states = 0, made = 0;  ///< at most 2; how many of these are written
  std::function<LinearCoefficients<double>(double lr)> coefficients;

  RuleFacts facts() const {
    RuleFacts facts;
    for (int k = 0; k < states; ++k) facts.states.push_back("state" + std::to_string(k));
    return facts;
  }

  template <class T>
  std::variant<LinearStep<T, 0, 0>, LinearStep<T, 1, 0>, LinearStep<T, 1, 1>, LinearStep<T, 2, 0>,
               LinearStep<T, 2, 1>, LinearStep<T, 2, 2>>
  step(double lr, std::int64_t) const {
    const LinearCoefficients<double> given = coefficients(lr);
    const auto rounded = [](const LinearTerms<double>& t) {
      return LinearTerms<T>{static_cast<T>(t.p),
                            {static_cast<T>(t.s[0]), static_cast<T>(t.s[1])},
                            static_cast<T>(t.g),
                            {static_cast<T>(t.made[0]), static_cast<T>(t.made[1])}};
    };
    const LinearCoefficients<T> c{
        rounded(given.x),
        {rounded(given.state[0]), rounded(given.state[1])},
        static_cast<T>(given.decay_p),
        {static_cast<T>(given.decay_s[0]), static_cast<T>(given.decay_s[1])}};
    if (states == 0) return LinearStep<T, 0, 0>{c};
    if (states == 1 && made == 0) return LinearStep<T, 1, 0>{c};
    if (states == 1) return LinearStep<T, 1, 1>{c};
    if (made == 0) return LinearStep<T, 2, 0>{c};
    if (made == 1) return LinearStep<T, 2, 1>{c};
    return LinearStep<T, 2, 2>{c};
  }
};

}  // namespace starling::rules

namespace starling {

using LinearTerms = rules::LinearCoefficients<double>;
/// A rule of sums with `states` state tensors, at most 2, of which the first `made` are written.
/// For algorithms; it has no name in configs.
std::unique_ptr<OptimizerRule> make_linear_rule(int states, int made,
                                                std::function<LinearTerms(double lr)> coefficients);

}  // namespace starling
