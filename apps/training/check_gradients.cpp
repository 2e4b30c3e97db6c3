#include "apps/training/check_gradients.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "apps/data/loader.h"
#include "apps/training/host_numbers.h"
#include "core/console.h"
#include "core/error.h"
#include "core/random.h"
#include "layers/language_model.h"

namespace starling {
namespace {

using Numbers = std::vector<double>;

constexpr std::int64_t kSamples = 4;
constexpr int kDirections = 2;
/// Lengths of steps along a direction, over the size of what is changed: a kink that a long one
/// crosses, a short one may not. A wrong gradient is off at all.
constexpr double kStepLengths[] = {1e-4, 1e-5, 1e-6, 1e-7, 1e-8};
constexpr double kMoved = 0.01;  ///< of an input, over its size
/// Below this share of the output's norm a gradient is compared with that
constexpr double kNothing = 1e-4;
constexpr double kGradientTolerance = 1e-5;  ///< of the gradient's norm
constexpr double kSmallest = 0.01;           ///< size of what is zero, such as a new bias

double dot(const Numbers& a, const Numbers& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double norm(const Numbers& numbers) { return std::sqrt(dot(numbers, numbers)); }

double size_of_one(const Numbers& numbers) {
  return std::max(
      norm(numbers) / std::sqrt(static_cast<double>(std::max<std::size_t>(numbers.size(), 1))),
      kSmallest);
}

/// A function of one value, with parameters: a layer, or the loss.
struct Subject {
  std::string name;
  std::function<Variable(const Variable& x, Pass& pass)> run;
  std::vector<Parameter*> parameters;
  std::string input = "input";
};

class Comparison {
 public:
  Comparison(const Subject& subject, Backend& backend, std::uint64_t seed, const Tensor& input,
             bool moved)
      : subject_(subject), backend_(backend), seed_(seed), input_(input), x_(host_numbers(input)) {
    if (whole() || !moved) return;
    const Numbers noise = draw(x_.size());
    const double size = kMoved * size_of_one(x_);
    for (std::size_t i = 0; i < x_.size(); ++i) x_[i] += size * noise[i];
  }

  /// The largest error, and where; `text` describes all.
  struct Result {
    double worst = 0.0;
    std::string of, text;
  };
  Result run() {
    Result result;
    differentiate();
    const auto add = [&](const std::string& of, double off) {
      result.text += fmt::format("{}{} {:.1e}", result.text.empty() ? "" : ", ", of, off);
      if (off <= result.worst) return;
      result.worst = off;
      result.of = of;
    };
    if (whole())
      result.text = subject_.input + " not compared (whole numbers)";
    else
      add(subject_.input, distance(nullptr));
    for (Parameter* parameter : subject_.parameters) add(parameter->name, distance(parameter));
    return result;
  }

 private:
  Numbers draw(std::size_t count) {
    Numbers numbers(count);
    fill_random(Init::normal(1.0), seed_, ++drawn_, static_cast<std::int64_t>(count),
                numbers.data());
    return numbers;
  }
  /// Tokens and the like: no direction leads from one to another.
  bool whole() const { return !is_floating(input_.dtype()); }
  Tensor tensor_of(const Numbers& numbers) const {
    if (whole()) return input_;
    Tensor tensor(backend_, input_.shape(), DType::kFloat64);
    backend_.copy_from_host(numbers.data(), tensor);
    return tensor;
  }
  Pass pass(Tape* tape) const {
    return {.backend = backend_,
            .tape = tape,
            .training = true,
            .dropout_key = seed_,
            .dropout_counter = std::uint64_t{1} << 24};
  }
  Numbers output(const Numbers& x) const {
    Pass without = pass(nullptr);
    return host_numbers(subject_.run(Variable(tensor_of(x)), without).value());
  }

  /// The gradients of a random sum of the outputs.
  void differentiate() {
    for (const Parameter* parameter : subject_.parameters) backend_.fill(parameter->grad, 0.0);
    Tape tape(backend_);
    Pass with = pass(&tape);
    const Variable x = whole() ? Variable(input_) : tape.leaf(tensor_of(x_));
    const Variable y = subject_.run(x, with);
    const Numbers outputs = host_numbers(y.value());
    weights_ = draw(outputs.size());
    Numbers weighted = outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) weighted[i] *= weights_[i];
    least_ = kNothing * norm(weighted) + std::numeric_limits<double>::min();
    Tensor weights(backend_, y.shape(), DType::kFloat64), sum(backend_, Shape{1}, DType::kFloat64);
    backend_.copy_from_host(weights_.data(), weights);
    backend_.fill(sum, 0.0);  // not used
    const Variable total = with.record("sum", sum, {y}, {}, [weights](Gradients& gradients) {
      (void)gradients.output();  // which is 1
      gradients.set(0, weights);
    });
    if (total.requires_grad()) tape.backward(total);
    const Tensor gradient = Tape::gradient(x);
    dx_ = gradient ? host_numbers(gradient) : Numbers(x_.size(), 0.0);
  }

  /// Difference of the directional derivatives over the gradient's norm; of the input where no
  /// parameter is given. It is the most of some directions, in each the least of all steps.
  double distance(Parameter* parameter) {
    const Numbers from = parameter ? host_numbers(parameter->value) : x_,
                  gradient = parameter ? host_numbers(parameter->grad) : dx_;
    const double size = size_of_one(from);
    const auto at = [&](const Numbers& along, double step) {
      Numbers moved = from;
      for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += step * along[i];
      if (!parameter) return output(moved);
      backend_.copy_from_host(moved.data(), parameter->value);
      return output(x_);
    };
    double most = 0.0;
    for (int direction = 0; direction < kDirections; ++direction) {
      const Numbers along = draw(from.size());
      const double told = dot(gradient, along);
      double least = std::numeric_limits<double>::infinity();
      for (const double share : kStepLengths) {
        const double step = share * size;
        Numbers difference = at(along, step);
        const Numbers before = at(along, -step);
        for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= before[i];
        const double measured = dot(difference, weights_) / (2.0 * step);
        const double off =
            std::abs(measured - told) / std::max({norm(gradient), std::abs(measured), least_});
        if (off < least) least = off;  // NaN is never
      }
      most = std::max(most, least);
    }
    if (parameter) backend_.copy_from_host(from.data(), parameter->value);
    return most;
  }

  const Subject& subject_;
  Backend& backend_;
  std::uint64_t seed_;
  std::uint32_t drawn_ = 0;
  Tensor input_;
  Numbers x_, dx_, weights_;
  double least_ = 0.0;
};

std::string path_of(const Layer& layer) { return layer.name().empty() ? "model" : layer.name(); }

/// What to check of a layer besides value i of its inputs; the others stay. Of a layer of layers,
/// the parameters of its own: the others are compared where they belong.
Subject subject_of(Layer& layer, std::vector<Variable> values, std::size_t i) {
  Subject subject{.name = path_of(layer)};
  if (i > 0) subject.input += fmt::format(" {}", i + 1);
  subject.run = [&layer, values = std::move(values), i](const Variable& x, Pass& pass) mutable {
    values[i] = x;
    return layer.forward(values, pass);
  };
  if (i > 0) return subject;
  std::set<const Parameter*> others;
  layer.for_each([&](Layer& below) {
    if (&below == &layer) return;
    for (const Parameter* parameter : below.parameters()) others.insert(parameter);
  });
  for (Parameter* parameter : layer.parameters()) {
    if (parameter->trainable && others.count(parameter) == 0)
      subject.parameters.push_back(parameter);
  }
  return subject;
}

}  // namespace

void check_gradients(TrainConfig& config, Backend& backend, bool print) {
  Model& model = *config.model;
  model.allocate(backend, DType::kFloat64);
  model.initialise(config.seed, first_samples(*config.data.dataset, model.first_samples()));
  if (!config.state.init.file.empty()) load_initial_file(config.state.init, model);

  std::map<std::string, std::vector<Variable>> inputs;
  TaskOutput output;
  if (!model.unsupported(DType::kFloat64, backend.device())) {
    LoaderSettings settings;
    settings.seed = config.seed;
    settings.batch_size = std::min(kSamples, config.data.info.train_samples);
    Loader loader(*config.data.dataset, settings, backend, DType::kFloat64);
    Pass pass{.backend = backend, .training = true, .dropout_key = config.seed};
    pass.layer_observer = [&](std::string_view layer, Values in, const Variable&) {
      inputs.emplace(layer, std::vector<Variable>(in.begin(), in.end()));
    };
    output = config.task->predict(model, loader.next(), pass);
  }
  const auto drawn = [&](const Shape& shape) {
    Numbers numbers(static_cast<std::size_t>(kSamples * shape.elements()));
    fill_random(Init::normal(1.0), config.seed, 0, static_cast<std::int64_t>(numbers.size()),
                numbers.data());
    Tensor tensor(backend, shape.with_batch(kSamples), DType::kFloat64);
    backend.copy_from_host(numbers.data(), tensor);
    return tensor;
  };
  std::string first;
  int compared = 0;
  std::size_t widest = 5;
  model.for_each([&](Layer& layer) { widest = std::max(widest, layer.name().size()); });
  const auto tell = [&](const std::string& name, const std::string& text) {
    if (print) answer("{:<{}}  {}\n", name, widest, text);
  };
  const auto compare = [&](const Subject& subject, const Tensor& input, bool moved) {
    const Comparison::Result result = Comparison(subject, backend, config.seed, input, moved).run();
    const bool right = result.worst <= kGradientTolerance;  // NaN is not
    ++compared;
    tell(subject.name, (right ? "right  " : "WRONG  ") + result.text);
    if (!right && first.empty())
      first = fmt::format("{}: the gradient of its {} is off by {:.2g}", subject.name, result.of,
                          result.worst);
  };
  model.for_each([&](Layer& layer) {
    if (const auto refusal = layer.unsupported(DType::kFloat64, backend.device()))
      return tell(path_of(layer), fmt::format("not compared: {}", refusal->parts().sentence()));
    std::vector<Variable> values = inputs[path_of(layer)];
    // Its parts and the loss, which has its head, are compared
    if (values.empty() && dynamic_cast<LanguageModel*>(&layer)) return;
    const auto as_declared = [](const Variable& x, const Shape& shape) {
      return x.shape().without_batch() == shape;
    };
    const std::vector<Shape>& shapes = layer.input_shapes();
    if (!std::equal(values.begin(), values.end(), shapes.begin(), shapes.end(), as_declared)) {
      // A layer that is fused with its neighbour, or follows one without fp64.
      values.clear();
      for (const Shape& shape : shapes) values.emplace_back(drawn(shape));
    }
    for (std::size_t i = 0; i < values.size(); ++i)
      compare(subject_of(layer, values, i), values[i].value(), true);
  });
  if (output.outputs.has_value()) {
    const Subject loss{"loss",
                       [&](const Variable& x, Pass& pass) {
                         return config.task->loss({x, output.targets, output.head}, 1.0, pass);
                       },
                       {}};
    compare(loss, output.outputs.value(), false);
  }
  model.drop_memory();
  if (!first.empty()) {
    fail(ExitCode::kDiverged, "gradients",
         "{} of its norm; central differences in fp64 must agree to {:g}", first,
         kGradientTolerance);
  }
  if (print)
    answer("{} gradients agree with central differences in fp64 to {:g} of their norms\n", compared,
           kGradientTolerance);
}

}  // namespace starling
