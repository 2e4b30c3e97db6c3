#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "core/backend.h"
#include "core/host_device.h"
#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "core/operations/updates.h"
#include "kernels/cpu/update.h"
#include "kernels/math/rules.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/sgd.h"
#include "kernels/optimizers/shared_keys.h"

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
  static constexpr const char* kName = "muon";
  static constexpr const char* kSummary =
      "momentum whose matrices are made orthogonal; adamw for biases and norms";
  double momentum = 0.95, norm_eps = 1e-7;
  bool nesterov = true, orthogonal = true;
  AdamSettings adam{.weight_decay = 0.1};
  int iterations = 5;
  double a = 3.4445, b = -4.775, c = 2.0315;  ///< of an iteration, see finish_matrix
  /// A matrix's factor on lr, as torch.optim.Muon's adjust_lr_fn.
  enum class Scale : std::uint8_t { kLikeAdamw, kOriginal, kSpectral } scale = Scale::kLikeAdamw;

  void read(ConfigSection& config) {
    config.read("momentum", momentum, Range::half_open(0, 1),
                "decay of a matrix's running mean of gradients");
    config.read("nesterov", nesterov, "looks one step ahead along the momentum");
    config.read("ns_steps", iterations, Range::closed(1, 100), "Newton-Schulz iterations");
    const std::vector<double> given =
        config.numbers("ns_coefficients", {a, b, c}, Range::any(),
                       "a, b, c of an iteration: X = a·X + (b·A + c·A²)·X with A = X·Xᵀ");
    if (given.size() != 3)
      config.error("ns_coefficients", "has {} numbers; allowed: 3", given.size());
    a = given[0];
    b = given[1];
    c = given[2];
    config.read("adjust_lr", scale,
                {{"match_rms_adamw", Scale::kLikeAdamw},
                 {"original", Scale::kOriginal},
                 {"spectral_unclamped", Scale::kSpectral}},
                "a matrix's factor on lr: 0.2·sqrt(max(rows, columns)), which moves it as far as "
                "adamw would; sqrt(max(1, rows/columns)); or sqrt(rows/columns)");
    config.read(
        "orthogonal", orthogonal,
        "false, as of a group: these parameters are adamw's, as those of one dimension are");
    read_adam(config, adam, "of adamw, for parameters that are no matrices");
  }

  RuleFacts facts() const { return {.states = {"momentum_buffer", "direction"}}; }

  std::int64_t workspace(const std::vector<LayerExtent>& layers) const {
    std::int64_t most = 0;
    for (const LayerExtent& layer : layers) {
      const std::int64_t side = std::min(layer.rows, layer.columns);
      if (layer.weight && orthogonal)
        most = std::max(most,
                        2 * (whole_blocks(layer.rows * layer.columns) + whole_blocks(side * side)));
    }
    return most;
  }

  /// A Newton-Schulz iteration on the direction X, with X·Xᵀ the smaller of its two squares:
  ///     A = X·Xᵀ;  B = b·A + c·A²;  X = a·X + B·X
  /// drives every singular value towards 1.
  void finish_matrix(Backend& backend, const UpdateArgs& args, const LayerExtent& layer,
                     const Tensor& workspace) const {
    const std::int64_t rows = layer.rows, columns = layer.columns, side = std::min(rows, columns);
    const std::int64_t whole = whole_blocks(rows * columns);
    const bool wide = rows <= columns;
    // The direction, and the zeros behind it
    const Tensor padded = workspace.slice(0, Shape{layer.elements});
    const Tensor x = padded.slice(0, Shape{rows, columns});
    const Tensor product = workspace.slice(whole, x.shape());
    const Tensor square = workspace.slice(2 * whole, Shape{side, side});
    const Tensor fourth = workspace.slice(2 * whole + whole_blocks(side * side), Shape{side, side});
    backend.copy(args.states[1], padded);
    for (int i = 0; i < iterations; ++i) {
      backend.matmul(
          {.a = wide ? View(x) : transposed(x), .b = wide ? transposed(x) : View(x), .c = square});
      backend.matmul({.a = square, .b = square, .c = fourth});
      backend.weighted_sum({.in = {square, fourth}, .weight = {b, c}, .terms = 2, .out = square});
      backend.matmul({.a = wide ? square : x, .b = wide ? x : square, .c = product});
      backend.weighted_sum({.in = {x, product}, .weight = {a, 1.0}, .terms = 2, .out = x});
    }
    UpdateArgs walk = args;  // x_out -= lr · factor · direction
    walk.x = walk.x_out;
    walk.gradient = padded;
    walk.states.clear();
    const double ratio = static_cast<double>(rows) / static_cast<double>(columns);
    switch (scale) {
      case Scale::kLikeAdamw:
        walk.gradient_scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
        break;
      case Scale::kOriginal: walk.gradient_scale = std::sqrt(std::max(1.0, ratio)); break;
      case Scale::kSpectral: walk.gradient_scale = std::sqrt(ratio); break;
    }
    walk.unscales = false;
    walk.self_weight = 1.0;
    walk.sum_received = false;
    static const RuleKernel<Sgd, cpu::IsaLaunch> step_along{Sgd{}};
    backend.update({step_along, walk});
  }

  template <class T>
  std::variant<MuonStep<T, false>, MuonStep<T, true>> step(double lr, std::int64_t s) const {
    const T mu = static_cast<T>(momentum), rest = static_cast<T>(1.0 - momentum),
            shrink = static_cast<T>(1.0 - lr * adam.weight_decay);
    const AdamCoefficients<T> others = adam.coefficients<T>(lr, s, true);
    if (nesterov) return MuonStep<T, true>{mu, rest, shrink, others, norm_eps, orthogonal};
    return MuonStep<T, false>{mu, rest, shrink, others, norm_eps, orthogonal};
  }
};

}  // namespace starling::rules
