#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/host_device.h"
#include "core/operations/updates.h"
#include "kernels/math/rules.h"

namespace starling::rules {

/// The elementwise part of Muon (Jordan et al. 2024, in the form of torch.optim.Muon): mixing,
/// decay, the momentum, and the direction divided by its norm. Muon::finish_matrix makes that
/// direction orthogonal and walks along it. Parameters that are no matrices are AdamW's. States: a
/// matrix's momentum and direction; otherwise AdamW's m and v.
template <class T, bool kNesterov>
struct MuonStep {
  using Real = T;
  static constexpr int kStates = 2;
  static constexpr unsigned kReads = 3, kWrites = 3;
  static constexpr bool kMeasures = true;
  static constexpr unsigned kMeasureReads = 1;
  T momentum, one_minus_momentum, shrink;
  AdamCoefficients<T> adam;
  double norm_eps;
  bool orthogonal;

  STARLING_HD T next(T g, T m) const { return momentum * m + one_minus_momentum * g; }
  /// The direction, from the momentum after this step.
  STARLING_HD T direction(T g, T m) const {
    return kNesterov ? one_minus_momentum * g + momentum * m : m;
  }

  STARLING_HD T measured(T, T g, const T* state, bool) const {
    return direction(g, next(g, state[0]));
  }

  /// 1 / the direction's norm, or 0 for AdamW's.
  STARLING_HD double layer_factor(double, double direction, bool weight, bool) const {
    if (!(weight && orthogonal)) return 0.0;
    const double norm = square_root(direction);
    return 1.0 / (norm > norm_eps ? norm : norm_eps);
  }

  STARLING_HD T operator()(T p, T g, T* state, bool decay, T factor) const {
    if (factor != T(0)) {
      state[0] = next(g, state[0]);
      state[1] = factor * direction(g, state[0]);
      return p * (decay ? shrink : T(1));
    }
    decay_first<true>(adam, decay, p, g);
    state[0] = adam.beta1 * state[0] + adam.one_minus_beta1 * g;
    state[1] = adam.beta2 * state[1] + adam.one_minus_beta2 * (g * g);
    return adam_move(adam, p, state[0], state[1]);
  }
};

struct Muon {
  double momentum = 0.95, norm_eps = 1e-7;
  bool nesterov = true, orthogonal = true;
  AdamSettings adam{.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1};
  int iterations = 5;
  double a = 3.4445, b = -4.775, c = 2.0315;  ///< of an iteration, see finish_matrix
  /// A matrix's factor on lr, as torch.optim.Muon's adjust_lr_fn.
  enum class Scale : std::uint8_t { kLikeAdamw, kOriginal, kSpectral } scale = Scale::kLikeAdamw;

  std::vector<std::string> state_names() const { return {"momentum_buffer", "direction"}; }

  /// OptimizerRule's, in kernels/optimizers/muon.cpp.
  std::int64_t matrix_workspace(std::int64_t rows, std::int64_t columns) const;
  void finish_matrix(Backend& backend, const UpdateArgs& args, const LayerExtent& layer,
                     const Tensor& workspace) const;

  template <class T, class Run>
  void step(double lr, std::int64_t s, Run&& run) const {
    const T mu = static_cast<T>(momentum), rest = static_cast<T>(1.0 - momentum),
            shrink = static_cast<T>(1.0 - lr * adam.weight_decay);
    const AdamCoefficients<T> others = adam.coefficients<T>(lr, s, true);
    if (nesterov) {
      run(MuonStep<T, true>{mu, rest, shrink, others, norm_eps, orthogonal});
    } else {
      run(MuonStep<T, false>{mu, rest, shrink, others, norm_eps, orthogonal});
    }
  }
};

}  // namespace starling::rules
