#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/backend.h"
#include "core/error.h"
#include "core/host_device.h"
#include "core/operations/map.h"
#include "core/operations/products.h"
#include "core/operations/reduce.h"
#include "core/operations/updates.h"
#include "kernels/cpu/update.h"
#include "kernels/math/rules.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/linear.h"
#include "kernels/optimizers/shared_keys.h"

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

struct AdafactorSquare {
  static RuleFacts facts() { return {}; }
  template <class T>
  AdafactorSquareStep<T> step(double, std::int64_t) const {
    return {};
  }
};

/// (1-ρ)·p + ρ·g, with step s's share ρ.
struct AdafactorAverage {
  double beta2_decay = -0.8;

  static RuleFacts facts() { return {}; }
  template <class T>
  LinearStep<T, 0, 0> step(double, std::int64_t s) const {
    const double share = std::pow(static_cast<double>(s), beta2_decay);
    LinearStep<T, 0, 0> average;
    average.c.x.p = static_cast<T>(1.0 - share);
    average.c.x.g = static_cast<T>(share);
    return average;
  }
};

struct AdafactorQuotient {
  double eps1 = -1.0;  ///< Adafactor's

  static RuleFacts facts() { return {}; }
  template <class T>
  AdafactorQuotientStep<T> step(double, std::int64_t) const {
    return {epsilon<T>(adafactor_eps<T>(eps1))};
  }
};

struct Adafactor {
  static constexpr const char* kName = "adafactor";
  static constexpr const char* kSummary =
      "steps of a parameter's own size, by averages over rows and columns of squared gradients: "
      "hardly any memory for states";
  static constexpr double kRate = 0.01;
  /// The squares' and V's, in addition to the last pass: two reads of g and V's memory, two writes,
  /// and what both kinds of means read.
  static constexpr int kMoreStreams = 6;
  double beta2_decay = -0.8;
  double eps1 = -1.0;  ///< see adafactor_eps()
  double eps2 = 1e-3, d = 1.0, weight_decay = 0.0;
  std::shared_ptr<const OptimizerRule> square, average, quotient;  ///< of the three above

  void read(ConfigSection& config) {
    config.read(
        "beta2_decay", beta2_decay, Range::closed(-1e3, 0),
        "the share of step s in the averages of squared gradients is s to the power of this");
    read_two_eps(config);
    config.read("d", d, Range::at_least(1.0),
                "a parameter's step is shortened where its root mean square is larger");
    read_weight_decay(config, weight_decay);
    square = make_part(AdafactorSquare{});
    average = make_part(AdafactorAverage{beta2_decay});
    quotient = make_part(AdafactorQuotient{eps1});
  }

  RuleFacts facts() const { return {.states = {"variance"}}; }

  static std::int64_t state_elements(const LayerExtent& layer) {
    return layer.weight ? whole_blocks(layer.rows) + whole_blocks(layer.columns) : 0;
  }
  static std::int64_t workspace(const std::vector<LayerExtent>& layers) {
    return Memory(layers).elements();
  }

  /// Factors a matrix G of gradients, squared: the mean of each row and the sum of each column go
  /// into running averages r and c, and with R rows
  ///     V = r·cᵀ / (R · max(mean(r), eps1)).
  /// No sum depends on how many threads make it.
  void issue(Backend& backend, const OptimizerRule& self, const UpdateArgs& args) const {
    const UpdateLayers& layers = args.layers;
    require(args.states.size() == 1 && !layers.extents.empty() && layers.workspace, "update",
            "adafactor needs its state, and to know which elements make a parameter; add_matrices "
            "says it");
    const Memory memory(layers.extents);
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
          const Tensor matrix = work(layer.first, Shape{rows, columns});
          Reduce mean(matrix, means.slice(layer.state_first, Shape{rows, 1}));
          mean.factor = 1.0 / static_cast<double>(columns);
          backend.reduce(mean);
          backend.reduce(
              {matrix, means.slice(layer.state_first + whole_blocks(rows), Shape{columns})});
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
          const std::int64_t rows = layer.rows, columns = layer.columns, whole = whole_blocks(rows);
          const Tensor sum = work(total, Shape{1, 1});
          backend.reduce({state.slice(layer.state_first, Shape{rows, 1}), sum});
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

  template <class T>
  AdafactorStep<T> step(double lr, std::int64_t s) const {
    const double eps = adafactor_eps<T>(eps1);
    return {static_cast<T>(std::min(lr, 1.0 / std::sqrt(static_cast<double>(s)))),
            static_cast<T>(1.0 - lr * weight_decay), epsilon<T>(eps * eps), eps2, d};
  }

 private:
  /// Memory that issue() works in, one bucket after another.
  struct Memory {
    std::int64_t variance = 0;  ///< g², later V: as many as the bucket has
    std::int64_t means = 0;     ///< of g² in this step: as many as the state has
    /// Twice, of the matrix with the most: the mean of the row averages, spread over them; their
    /// quotient
    std::int64_t rows = 0;
    static constexpr std::int64_t kTotal = kDecayBlock;  ///< of one number, the row averages' sum

    explicit Memory(const std::vector<LayerExtent>& layers) {
      for (const LayerExtent& layer : layers) {
        const std::int64_t own = state_elements(layer);
        variance += layer.elements;
        means += own > 0 ? own : layer.elements;
        if (layer.weight) rows = std::max(rows, whole_blocks(layer.rows));
      }
    }
    std::int64_t elements() const { return variance + means + 2 * rows + kTotal; }
  };

  /// Calls matrix(layer) for each matrix, and vectors(first, state_first, elements) for each run of
  /// layers that are none: these have a state for each number, side by side as they are.
  template <class Matrix, class Vectors>
  static void over_layers(const std::vector<LayerExtent>& layers, const Matrix& matrix,
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
  static UpdateArgs elementwise(const UpdateArgs& like, const Tensor& numbers,
                                const Tensor& x_out) {
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
  void read_two_eps(ConfigSection& config) {
    const nlohmann::json eps =
        config.raw("eps", "[number or null, number]",
                   "[null, 0.001] where it is left out: the least root mean square of a gradient, "
                   "null being the spacing at 1 of the parameters' type (1.2e-7 in fp32); and of a "
                   "parameter, which its step is scaled by");
    if (eps.is_null()) return config.resolve("eps", {nullptr, eps2});
    const auto number = [](const nlohmann::json& value) {
      return value.is_number() && value.get<double>() >= 0.0;
    };
    if (!eps.is_array() || eps.size() != 2 || !(eps[0].is_null() || number(eps[0])) ||
        !number(eps[1]))
      config.error(
          "eps",
          "found {}, expected two numbers of 0 or more, the first of which may be null, as "
          "[null, 0.001]",
          eps.dump());
    if (eps[0].is_number()) eps1 = eps[0].get<double>();
    eps2 = eps[1].get<double>();
  }

  template <class Part>
  static std::shared_ptr<const OptimizerRule> make_part(Part part) {
    return std::make_shared<RuleKernel<Part, cpu::IsaLaunch>>(part);
  }
};

}  // namespace starling::rules
