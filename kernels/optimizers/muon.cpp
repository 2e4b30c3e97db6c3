#include "kernels/math/muon.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "core/operations/updates.h"
#include "kernels/cpu/update.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/settings.h"

namespace starling {
namespace {

/// Tensors in the workspace begin where a GPU loads fast.
std::int64_t whole_blocks(std::int64_t elements) {
  return (elements + kDecayBlock - 1) / kDecayBlock * kDecayBlock;
}

}  // namespace

std::int64_t rules::Muon::matrix_workspace(std::int64_t rows, std::int64_t columns) const {
  const std::int64_t side = std::min(rows, columns);
  return orthogonal ? 2 * (whole_blocks(rows * columns) + whole_blocks(side * side)) : 0;
}

/// A Newton-Schulz iteration on the direction X, with X·Xᵀ the smaller of its two squares:
///     A = X·Xᵀ;  B = b·A + c·A²;  X = a·X + B·X
/// drives every singular value towards 1.
void rules::Muon::finish_matrix(Backend& backend, const UpdateArgs& args, const LayerExtent& layer,
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
    backend.matmul({.a = x, .b = x, .c = square, .transpose_a = !wide, .transpose_b = wide});
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

void register_muon() {
  optimizers().add(
      "muon",
      [](ConfigSection& config) -> std::unique_ptr<OptimizerRule> {
        rules::Muon rule;
        rule.momentum = config.number("momentum", rule.momentum, Range::half_open(0, 1),
                                      "decay of a matrix's running mean of gradients");
        rule.nesterov =
            config.boolean("nesterov", rule.nesterov, "looks one step ahead along the momentum");
        rule.iterations = static_cast<int>(config.integer(
            "ns_steps", rule.iterations, Range::closed(1, 100), "Newton-Schulz iterations"));
        const std::vector<double> given =
            config.numbers("ns_coefficients", {rule.a, rule.b, rule.c}, Range::any(),
                           "a, b, c of an iteration: X = a·X + (b·A + c·A²)·X with A = X·Xᵀ");
        if (given.size() != 3)
          config.error("ns_coefficients", "has {} numbers; allowed: 3", given.size());
        rule.a = given[0];
        rule.b = given[1];
        rule.c = given[2];
        using Scale = rules::Muon::Scale;
        const std::map<std::string, Scale> scales{{"match_rms_adamw", Scale::kLikeAdamw},
                                                  {"original", Scale::kOriginal},
                                                  {"spectral_unclamped", Scale::kSpectral}};
        rule.scale = scales.at(config.choice("adjust_lr", "match_rms_adamw",
                                             {"match_rms_adamw", "original", "spectral_unclamped"},
                                             "a matrix's factor on lr: 0.2·sqrt(max(rows, "
                                             "columns)), which moves it as far as adamw would; "
                                             "sqrt(max(1, rows/columns)); or sqrt(rows/columns)"));
        rule.orthogonal = config.boolean(
            "orthogonal", rule.orthogonal,
            "false, as of a group: these parameters are adamw's, as those of one dimension are");
        const Betas betas = read_betas(config, {rule.adam.beta1, rule.adam.beta2},
                                       "of adamw, for parameters that are no matrices");
        rule.adam.beta1 = betas.first;
        rule.adam.beta2 = betas.second;
        rule.adam.eps = read_eps(config, rule.adam.eps);
        rule.adam.weight_decay = read_weight_decay(config, rule.adam.weight_decay);
        return std::make_unique<RuleKernel<rules::Muon, cpu::IsaLaunch>>(rule);
      },
      "momentum whose matrices are made orthogonal; adamw for biases and norms");
}

}  // namespace starling
