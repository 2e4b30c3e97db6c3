#include "kernels/math/adafactor.h"
#include "core/operations/map.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "core/operations/convolutions.h"
#include "core/operations/products.h"
#include "core/operations/updates.h"
#include "kernels/cpu/update.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/settings.h"

namespace starling {
namespace {

std::int64_t padded(std::int64_t elements) {
  return (elements + kDecayBlock - 1) / kDecayBlock * kDecayBlock;
}

/// Memory that issue() works in, one bucket after another.
struct AdafactorMemory {
  std::int64_t variance = 0;  ///< g², later V: as many as the bucket has
  std::int64_t means = 0;     ///< of g² in this step: as many as the state has
  /// Twice, of the matrix with the most: the mean of the row averages, spread over them; their
  /// quotient
  std::int64_t rows = 0;
  static constexpr std::int64_t kTotal = kDecayBlock;  ///< of one number, the row averages' sum

  explicit AdafactorMemory(const rules::Adafactor& rule, const std::vector<LayerExtent>& layers) {
    for (const LayerExtent& layer : layers) {
      const std::int64_t own = rule.state_elements(layer);
      variance += layer.elements;
      means += own > 0 ? own : layer.elements;
      if (layer.weight) rows = std::max(rows, padded(layer.rows));
    }
  }
  std::int64_t elements() const { return variance + means + 2 * rows + kTotal; }
};

/// Calls matrix(layer) for each matrix, and vectors(first, state_first, elements) for each run of
/// layers that are none: these have a state for each number, side by side as they are.
template <class Matrix, class Vectors>
void over_layers(const std::vector<LayerExtent>& layers, const Matrix& matrix,
                 const Vectors& vectors) {
  for (std::size_t k = 0; k < layers.size();) {
    const LayerExtent& layer = layers[k++];
    if (layer.weight) {
      matrix(layer);
      continue;
    }
    std::int64_t elements = layer.elements;
    while (k < layers.size() && !layers[k].weight) elements += layers[k++].elements;
    vectors(layer.first, layer.state_first, elements);
  }
}

/// Does x_out = part(weight · x, numbers), without gradients, states and layers of its own.
UpdateArgs elementwise(const UpdateArgs& like, const Tensor& numbers, const Tensor& x_out) {
  UpdateArgs args;
  args.x = args.x_out = x_out;
  args.gradient = numbers;
  args.unscales = false;
  args.decay = like.layers.no_decay.slice(0, Shape{x_out.elements() / kDecayBlock});
  args.lr = like.lr;
  args.step = like.step;
  return args;
}

/// Reads eps as torch has it, such as [null, 0.001].
void read_two_eps(ConfigSection& config, rules::Adafactor& rule) {
  const nlohmann::json eps = config.raw(
      "eps", "[number or null, number]",
      "[null, 0.001] where it is left out: the least root mean square of a gradient, null being "
      "the spacing at 1 of the "
      "parameters' type (1.2e-7 in fp32); and of a parameter, which its step is scaled by");
  if (eps.is_null()) return config.resolve("eps", {nullptr, rule.eps2});
  const auto number = [](const nlohmann::json& value) {
    return value.is_number() && value.get<double>() >= 0.0;
  };
  if (!eps.is_array() || eps.size() != 2 || !(eps[0].is_null() || number(eps[0])) ||
      !number(eps[1]))
    config.error("eps",
                 "found {}, expected two numbers of 0 or more, the first of which may be null, as "
                 "[null, 0.001]",
                 eps.dump());
  if (eps[0].is_number()) rule.eps1 = eps[0].get<double>();
  rule.eps2 = eps[1].get<double>();
}

}  // namespace

std::int64_t rules::Adafactor::state_elements(const LayerExtent& layer) const {
  return layer.weight ? padded(layer.rows) + padded(layer.columns) : 0;
}

std::int64_t rules::Adafactor::workspace(const std::vector<LayerExtent>& layers) const {
  return AdafactorMemory(*this, layers).elements();
}

/// Factors a matrix G of gradients, squared: the mean of each row and the sum of each column go
/// into running averages r and c, and with R rows
///     V = r·cᵀ / (R · max(mean(r), eps1)).
/// No sum depends on how many threads make it.
void rules::Adafactor::issue(Backend& backend, const OptimizerRule& self,
                             const UpdateArgs& args) const {
  const UpdateLayers& layers = args.layers;
  require(args.states.size() == 1 && !layers.extents.empty() && layers.workspace, "update",
          "adafactor needs its state, and to know which elements make a parameter; add_matrices "
          "says it");
  const AdafactorMemory memory(*this, layers.extents);
  const Tensor& state = args.states[0];
  require(args.x.elements() == memory.variance && state.elements() == memory.means, "update",
          "adafactor: layers of {} elements with a state of {}, but x has {} and the state {}",
          memory.variance, memory.means, args.x.elements(), state.elements());
  const auto work = [&](std::int64_t first, const Shape& shape) {
    return layers.workspace.slice(first, shape);
  };
  const std::int64_t spread = memory.variance + memory.means, ratio = spread + memory.rows,
                     total = ratio + memory.rows;
  const Tensor variance = work(0, Shape{memory.variance}),
               means = work(memory.variance, Shape{memory.means});

  UpdateArgs squares = args;
  squares.x = squares.x_out = variance;
  squares.states.clear();
  squares.received.clear();
  squares.weights.clear();
  squares.sum_received = false;
  squares.encoded = {};
  squares.self_weight = 1.0;
  squares.low = Tensor();
  squares.layers = {};
  backend.update({*square, squares});

  backend.fill(means, 0.0);  // the padding
  over_layers(
      layers.extents,
      [&](const LayerExtent& layer) {
        const std::int64_t rows = layer.rows, columns = layer.columns;
        backend.global_avg_pool_forward({.x = work(layer.first, Shape{rows, columns, 1, 1}),
                                         .y = means.slice(layer.state_first, Shape{rows, 1})});
        backend.sum_rows({.x = work(layer.first, Shape{rows, columns}),
                          .y = means.slice(layer.state_first + padded(rows), Shape{columns})});
      },
      [&](std::int64_t first, std::int64_t state_first, std::int64_t elements) {
        backend.copy(variance.slice(first, Shape{elements}),
                     means.slice(state_first, Shape{elements}));
      });

  UpdateArgs averages = elementwise(args, means, state);
  if (args.control) {  // the clip factor was applied; whether the step counts was not
    averages.control = layers.matrix_control;
    backend.copy(args.control.slice(1, Shape{1}), averages.control.slice(1, Shape{1}));
  }
  backend.update({*average, averages});

  over_layers(
      layers.extents,
      [&](const LayerExtent& layer) {
        const std::int64_t rows = layer.rows, columns = layer.columns, whole = padded(rows);
        const Tensor sum = work(total, Shape{1, 1});
        backend.sum_rows(
            {.x = state.slice(layer.state_first, Shape{rows, 1}), .y = sum.slice(0, Shape{1})});
        backend.map({{{MapFunction::kMultiply, 0, kMapNumbers}},
                     {sum},
                     work(spread, Shape{1, rows}),
                     {1.0 / static_cast<double>(rows)}});
        UpdateArgs quotients =
            elementwise(args, work(spread, Shape{whole}), work(ratio, Shape{whole}));
        quotients.received = {state.slice(layer.state_first, Shape{whole})};
        quotients.weights = {1.0 / static_cast<double>(rows)};
        quotients.self_weight = 0.0;
        backend.update({*quotient, quotients});
        backend.matmul({.a = work(ratio, Shape{rows, 1}),
                        .b = state.slice(layer.state_first + whole, Shape{1, columns}),
                        .c = work(layer.first, Shape{rows, columns})});
      },
      [&](std::int64_t first, std::int64_t state_first, std::int64_t elements) {
        backend.copy(state.slice(state_first, Shape{elements}),
                     variance.slice(first, Shape{elements}));
      });

  UpdateArgs last = args;
  last.states = {variance};
  backend.update({self, last});
}

void register_adafactor() {
  optimizers().add(
      "adafactor",
      [](ConfigSection& config) -> std::unique_ptr<OptimizerRule> {
        rules::Adafactor rule;
        rule.beta2_decay = config.number(
            "beta2_decay", rule.beta2_decay, Range::closed(-1e3, 0),
            "the share of step s in the averages of squared gradients is s to the power of this");
        read_two_eps(config, rule);
        rule.d =
            config.number("d", rule.d, Range::at_least(1.0),
                          "a parameter's step is shortened where its root mean square is larger");
        rule.weight_decay = read_weight_decay(config, 0.0);
        rule.square = std::make_shared<RuleKernel<rules::AdafactorSquare, cpu::IsaLaunch>>(
            rules::AdafactorSquare{});
        rule.average = std::make_shared<RuleKernel<rules::AdafactorAverage, cpu::IsaLaunch>>(
            rules::AdafactorAverage{rule.beta2_decay});
        rule.quotient = std::make_shared<RuleKernel<rules::AdafactorQuotient, cpu::IsaLaunch>>(
            rules::AdafactorQuotient{rule.eps1});
        return std::make_unique<RuleKernel<rules::Adafactor, cpu::IsaLaunch>>(rule);
      },
      "steps of a parameter's own size, by averages over rows and columns of squared gradients: "
      "hardly any memory for states");
}

}  // namespace starling
