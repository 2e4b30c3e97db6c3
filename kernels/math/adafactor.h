#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/host_device.h"
#include "core/operations/updates.h"
#include "kernels/math/linear.h"
#include "kernels/math/rules.h"

namespace starling::rules {

/// The last pass of Adafactor (Shazeer & Stern 2018, arXiv 1804.04235, in the form of
/// torch.optim.Adafactor), which reads the estimate V of the gradient's mean square: u = g /
/// sqrt(V), as far as the parameter is large, and no further than d as a root mean square.
/// Adafactor's issue() makes V, in the place of the state that this step has.
template <class T>
struct AdafactorStep {
  using Real = T;
  static constexpr int kStates = 1;
  static constexpr unsigned kReads = 1, kWrites = 0;
  static constexpr bool kMeasures = true;
  static constexpr unsigned kMeasureReads = 1;
  T rate;    ///< min(lr, 1/sqrt(s))
  T shrink;  ///< 1 - lr·wd
  T least;   ///< of V: eps1²
  double eps2, d;

  STARLING_HD T measured(T, T g, const T* state, bool) const {
    return g / square_root(state[0] < least ? least : state[0]);
  }

  /// The layer's factor: max(eps2, RMS(p)) / max(1, RMS(u)/d).
  STARLING_HD double layer_factor(double parameter, double update, bool, bool,
                                  std::int64_t numbers) const {
    const double count = static_cast<double>(numbers);
    const double size = square_root(parameter / count), length = square_root(update / count) / d;
    return (size < eps2 ? eps2 : size) / (length < 1.0 ? 1.0 : length);
  }

  STARLING_HD T operator()(T p, T g, T* state, bool decay, T factor) const {
    return p * (decay ? shrink : T(1)) - rate * (factor * measured(p, g, state, decay));
  }
};

/// The pass before, element by element: g², and p / max(g, least).
template <class T>
struct AdafactorSquareStep {
  using Real = T;
  static constexpr int kStates = 0;
  static constexpr unsigned kReads = 0, kWrites = 0;
  STARLING_HD T operator()(T, T g, T*, bool) const { return g * g; }
};
template <class T>
struct AdafactorQuotientStep {
  using Real = T;
  static constexpr int kStates = 0;
  static constexpr unsigned kReads = 0, kWrites = 0;
  T least;
  STARLING_HD T operator()(T p, T g, T*, bool) const { return p / (g < least ? least : g); }
};

/// The eps1 that is set; where it is negative, the spacing of numbers of this type at 1.
template <class T>
double adafactor_eps(double eps1) {
  return eps1 >= 0.0 ? eps1 : static_cast<double>(std::numeric_limits<T>::epsilon());
}

struct Adafactor {
  double beta2_decay = -0.8;
  double eps1 = -1.0;  ///< see adafactor_eps()
  double eps2 = 1e-3, d = 1.0, weight_decay = 0.0;
  std::shared_ptr<const OptimizerRule> square, average, quotient;  ///< of the three below

  /// The squares' and V's, beside the last pass: two reads of g and V's memory, two writes, and
  /// what both kinds of means read.
  static constexpr int kMoreStreams = 6;

  std::vector<std::string> state_names() const { return {"variance"}; }

  /// OptimizerRule's, in kernels/optimizers/adafactor.cpp.
  std::int64_t state_elements(const LayerExtent& layer) const;
  std::int64_t workspace(const std::vector<LayerExtent>& layers) const;
  void issue(Backend& backend, const OptimizerRule& self, const UpdateArgs& args) const;

  template <class T, class Run>
  void step(double lr, std::int64_t s, Run&& run) const {
    const double eps = adafactor_eps<T>(eps1);
    run(AdafactorStep<T>{static_cast<T>(std::min(lr, 1.0 / std::sqrt(static_cast<double>(s)))),
                         static_cast<T>(1.0 - lr * weight_decay), epsilon<T>(eps * eps), eps2, d});
  }
};

struct AdafactorSquare {
  std::vector<std::string> state_names() const { return {}; }
  template <class T, class Run>
  void step(double, std::int64_t, Run&& run) const {
    run(AdafactorSquareStep<T>{});
  }
};

/// (1-ρ)·p + ρ·g, with step s's share ρ.
struct AdafactorAverage {
  double beta2_decay = -0.8;

  std::vector<std::string> state_names() const { return {}; }
  template <class T, class Run>
  void step(double, std::int64_t s, Run&& run) const {
    const double share = std::pow(static_cast<double>(s), beta2_decay);
    LinearStep<T, 0, 0> average;
    average.c.x.p = static_cast<T>(1.0 - share);
    average.c.x.g = static_cast<T>(share);
    run(average);
  }
};

struct AdafactorQuotient {
  double eps1 = -1.0;  ///< Adafactor's

  std::vector<std::string> state_names() const { return {}; }
  template <class T, class Run>
  void step(double, std::int64_t, Run&& run) const {
    run(AdafactorQuotientStep<T>{epsilon<T>(adafactor_eps<T>(eps1))});
  }
};

}  // namespace starling::rules
