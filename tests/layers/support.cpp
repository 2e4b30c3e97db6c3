#include "tests/layers/support.h"

#include <doctest/doctest.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>

#include "core/config.h"
#include "core/error.h"
#include "kernels/open_backend.h"
#include "layers/functions.h"

namespace starling::testing {

Backend& cpu() {
  static const std::unique_ptr<Backend> backend = open_backend(DeviceType::kCpu, 1);
  return *backend;
}

std::unique_ptr<Model> model_from(const std::string& json, const Shape& input) {
  register_builtin_layers();
  register_builtin_models();
  ConfigSection section(parse_json(json, "test"), "test");
  return make_model(section, input);
}

std::string model_error(const std::string& json, const Shape& input) {
  return error_of(ExitCode::kUsage, [&] { model_from(json, input); });
}

Shape shape_from(const std::string& sizes) {
  std::istringstream in(sizes);
  const std::vector<std::int64_t> all{std::istream_iterator<std::int64_t>(in), {}};
  return Shape(std::span<const std::int64_t>(all));
}

std::vector<double> noise(std::uint64_t seed, std::int64_t count) {
  std::vector<double> result(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < result.size(); ++i) {
    std::uint64_t z = (seed << 32) + i + 0x9E3779B97F4A7C15ull;  // splitmix64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    result[i] = 2.0 * static_cast<double>(z >> 11) * 0x1p-53 - 1.0;
  }
  return result;
}

Tensor tensor_of(const std::vector<double>& numbers, const Shape& shape) {
  Tensor tensor(cpu(), shape, DType::kFloat64);
  cpu().copy_from_host(numbers.data(), tensor);
  return tensor;
}

Tensor noise_tensor(std::uint64_t seed, const Shape& shape) {
  return tensor_of(noise(seed, shape.elements()), shape);
}

std::vector<double> numbers_of(const Tensor& tensor) {
  std::vector<double> result(static_cast<std::size_t>(tensor.elements()));
  tensor.backend().copy_to_host(functions::in_format(tensor, DType::kFloat64, tensor.backend()),
                                result.data());
  return result;
}

Tensor cast_to(const Tensor& tensor, DType dtype) {
  return functions::in_format(tensor, dtype, tensor.backend());
}

Tensor labels_of(const std::vector<std::int32_t>& numbers) {
  Tensor labels(cpu(), {static_cast<std::int64_t>(numbers.size())}, DType::kInt32);
  cpu().copy_from_host(numbers.data(), labels);
  return labels;
}

Tensor spread_labels(std::int64_t batch, std::int64_t classes) {
  std::vector<std::int32_t> numbers;
  for (std::int64_t i = 0; i < batch; ++i)
    numbers.push_back(static_cast<std::int32_t>((3 * i + 1) % classes));
  return labels_of(numbers);
}

double relative_error(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  double error = 0.0, norm = 1e-12;
  for (std::size_t i = 0; i < found.size(); ++i) {
    error += (found[i] - expected[i]) * (found[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error / norm);
}

Variable weighted_total(const Variable& x, Pass& pass) {
  const std::vector<double> weight = noise(77, x.value().elements());
  const std::vector<double> numbers = numbers_of(x.value());
  double total = 0.0;
  for (std::size_t i = 0; i < weight.size(); ++i) total += weight[i] * numbers[i];
  return pass.record("weighted_total", tensor_of({total}, Shape{}), {x}, {},
                     [weight, shape = x.shape()](Gradients& g) {
                       std::vector<double> dx = weight;
                       const double dy = numbers_of(g.output())[0];
                       for (double& value : dx) value *= dy;
                       g.set(0, tensor_of(dx, shape));
                     });
}

namespace {

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void normalise(std::vector<double>& x) {
  const double norm = std::sqrt(dot(x, x));
  if (norm > 0) {
    for (double& value : x) value /= norm;
  }
}

}  // namespace

void check_gradients(Model& model, std::int64_t batch, std::int64_t classes, bool keep_values,
                     std::size_t stride, bool training, const Tensor& tokens) {
  if (!keep_values) {
    model.allocate(cpu(), DType::kFloat64);
    std::uint64_t seed = 100;
    for (Parameter* parameter : model.parameters())
      cpu().copy(noise_tensor(seed++, parameter->shape), parameter->value);
    for (ModelBuffer* buffer : model.buffers()) cpu().fill(buffer->value, buffer->init.a);
  }
  for (Parameter* parameter : model.parameters()) {
    // whatever is not written shows
    if (parameter->trainable) cpu().fill(parameter->grad, std::nan(""));
  }
  const Tensor input = tokens ? tokens : noise_tensor(5, model.input_shape().with_batch(batch));
  const Tensor labels = classes > 0 ? spread_labels(batch, classes) : Tensor();
  const auto loss_of = [&](Pass& pass, const Variable& x) {
    pass.training = training;
    pass.dropout_key = 9;
    const Variable y = model.forward(x, pass);
    if (classes == 0) return weighted_total(y, pass);
    return functions::cross_entropy(y, labels, 0.1, 1.7, pass);
  };
  const auto evaluate = [&] {
    Pass pass{cpu()};
    return numbers_of(loss_of(pass, Variable(input)).value())[0];
  };

  Tape tape(cpu());
  Pass pass{cpu(), &tape};
  const Variable x = tokens ? Variable(input) : tape.leaf(input);
  tape.backward(loss_of(pass, x), 1.0);
  const Tensor dx = Tape::gradient(x);
  REQUIRE(static_cast<bool>(dx) != static_cast<bool>(tokens));

  constexpr double kTolerance = 5e-6;
  const auto check = [&](const std::string& name, const Tensor& value, const Tensor& gradient) {
    const std::vector<double> original = numbers_of(value), g = numbers_of(gradient);
    const double norm = std::sqrt(dot(g, g));
    CAPTURE(name);
    for (int attempt = 0; attempt < 2; ++attempt) {
      // One direction at random, and one that the gradient itself takes part in.
      std::vector<double> direction =
          noise(500 + static_cast<std::uint64_t>(attempt), value.elements());
      normalise(direction);
      if (attempt == 1 && norm > 0) {
        for (std::size_t i = 0; i < g.size(); ++i) direction[i] += g[i] / norm;
        normalise(direction);
      }
      // A ReLU's kink between the two points spoils a difference; a smaller step then avoids it.
      double error = 0.0;
      for (const double step : {2e-7, 1e-8}) {
        double difference = 0.0;
        for (const double sign : {1.0, -1.0}) {
          std::vector<double> moved = original;
          for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += sign * step * direction[i];
          cpu().copy_from_host(moved.data(), value);
          difference += sign * evaluate();
        }
        cpu().copy_from_host(original.data(), value);
        error = std::abs(difference / (2 * step) - dot(g, direction));
        if (error <= kTolerance * (norm + 1e-2)) break;
      }
      CHECK(error <= kTolerance * (norm + 1e-2));
    }
  };
  if (dx) check("input", input, dx);
  for (std::size_t i = 0; i < model.parameters().size(); i += stride) {
    const Parameter& parameter = *model.parameters()[i];
    if (parameter.trainable) check(parameter.name, parameter.value, parameter.grad);
  }
}

}  // namespace starling::testing
