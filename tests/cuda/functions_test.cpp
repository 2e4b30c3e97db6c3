// Functions, layers made of them and training steps, on a GPU against the CPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/config.h"
#include "examples/plugin/gate.h"
#include "examples/plugin/samples.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/open_backend.h"
#include "layers/functions.h"
#include "layers/layer.h"
#include "layers/linear.h"
#include "tests/cuda/support.h"
#include "tests/cuda/training_job.h"
#include "tests/layers/halves.h"
#include "tests/operations/operation_table.h"
#include "tests/support/numbers_of_ranks.h"

namespace starling::tests {
namespace {

namespace f = functions;

Tensor index_on(Backend& backend, const std::vector<std::int32_t>& numbers, const Shape& shape) {
  Tensor index(backend, shape, DType::kInt32);
  backend.copy_from_host(numbers.data(), index);
  return index;
}

/// Values, then gradients, of a model or a function.
std::vector<Numbers> outcome(Model& model, const Shape& shape, Backend& backend, DType dtype) {
  model.allocate(backend, is_low_precision(dtype) ? DType::kFloat32 : dtype, dtype);
  model.initialise(5);
  model.refresh_low();
  Tape tape(backend);
  Pass pass{.backend = backend, .tape = &tape, .training = true, .dropout_key = 3};
  const Variable x =
      tape.leaf(to_tensor(backend, random_numbers(shape.elements(), 7), shape, dtype));
  const Variable y = model.forward(x, pass);
  std::vector<Numbers> result{to_numbers(y.value())};
  const Variable weight(
      to_tensor(backend, random_numbers(y.shape().elements(), 8), y.shape(), y.dtype()));
  tape.backward(f::sum(f::multiply(y, weight, pass), {}, false, pass));
  result.push_back(to_numbers(Tape::gradient(x)));
  for (const Parameter* parameter : model.parameters())
    result.push_back(to_numbers(parameter->grad));
  return result;
}

/// A function of images N×4×6×8, as a layer without parameters.
using Function = std::function<Variable(const Variable&, Pass&)>;
class OfImages final : public Layer {
 public:
  explicit OfImages(Function function) : function_(std::move(function)) {}

 private:
  Shape build(const Shape& input) override { return input; }
  Variable compute(const Variable& x, Pass& pass) override {
    // A sum to the shape that build() says, which a shape of any size becomes.
    const Variable y = f::sum(function_(x, pass), {}, false, pass);
    return f::multiply(x, y, pass);
  }
  Function function_;
};

/// A GPU's libraries round otherwise than the shim's kernels.
double allowed(double tolerance) { return on_gpu() ? 4.0 * tolerance : tolerance; }

/// x · Wᵀ + b and an adapter, with dropout of its own.
class Adapted final : public Layer {
 private:
  Shape build(const Shape& input) override {
    linear_ = &add_child("linear", std::make_unique<Linear>(5), input);
    linear_->adapt({.rank = 3, .alpha = 2.0, .dropout = 0.2});
    return linear_->output_shape();
  }
  Variable compute(const Variable& x, Pass& pass) override {
    // B begins at zero, which would hide A's gradient
    Backend& backend = pass.backend;
    for (Parameter* parameter : linear_->parameters()) {
      if (!parameter->name.ends_with("lora_B.weight")) continue;
      backend.fill(parameter->value, 0.3);
      if (parameter->low) backend.fill(parameter->low, 0.3);
    }
    return linear_->forward(x, pass);
  }
  Linear* linear_ = nullptr;
};

using Maker = std::function<std::unique_ptr<Layer>()>;
Maker of(Function function) {
  return [function = std::move(function)] { return std::make_unique<OfImages>(function); };
}
Maker layers_of(const std::string& list) {
  return [list] {
    ConfigSection section(parse_json(R"({"type": "sequential", "layers": [)" + list + "]}", "test"),
                          "test");
    const std::string type = section.required_text("type", "");
    return layers().make(type, "type", section);
  };
}

}  // namespace

TEST_CASE("cuda/functions: values and gradients are the CPU's, in every precision") {
  register_builtin_layers();
  const auto cpu = open_backend(DeviceType::kCpu, 1);
  const Shape image{4, 6, 8};
  struct Case {
    std::string name;
    Maker make;
    Shape input;
  };
  const std::vector<Case> cases{
      {"an adapter", [] { return std::make_unique<Adapted>(); }, image},
      {"cumsum", of([](const Variable& x, Pass& p) {
         return f::multiply(f::cumsum(x, 1, p), f::cumsum(x, -1, p), p);
       }),
       image},
      {"topk",
       of([](const Variable& x, Pass& p) { return f::square(f::topk(x, 3, 2, p).values, p); }),
       image},
      {"scatter_add", of([](const Variable& x, Pass& p) {
         std::vector<std::int32_t> places(192);
         for (std::size_t i = 0; i < places.size(); ++i)
           places[i] = static_cast<std::int32_t>(i * 5 % 4);
         const Tensor index = index_on(p.backend, places, {2, 2, 6, 8});
         return f::square(f::scatter_add(x, 1, index, f::slice(x, 1, 1, 3, p), p), p);
       }),
       image},
      {"one_hot", of([](const Variable& x, Pass& p) {
         return f::multiply(f::one_hot(f::argmax(x, -1, false, p), 8, x.dtype(), p), x, p);
       }),
       image},
      {"norms and images of other sizes",
       layers_of(R"({"type": "group_norm", "num_groups": 2}, {"type": "squeeze_excite"},
         {"type": "conv_transpose2d", "out_channels": 4, "kernel_size": 3, "stride": 2, "bias": false},
         {"type": "instance_norm"}, {"type": "upsample", "scale_factor": 1.5, "mode": "bilinear"},
         {"type": "adaptive_avg_pool2d", "output_size": [3, 2]})"),
       image},
      {"what is made of layers",
       layers_of(
           R"({"type": "checkpoint", "layers": [{"type": "linear", "out_features": 4, "bias": false},
         {"type": "batch_norm"}, {"type": "dropout", "p": 0.3}]}, {"type": "multiply", "branches":
         [[], [{"type": "sigmoid"}]]}, {"type": "concat", "branches": [[], [{"type": "tanh"}]]})"),
       image},
      {"squeeze and excite", [] { return std::make_unique<mine::Gate>(); }, image},
      {"attention", [] { return std::make_unique<mine::Attend>(2); }, {5, 8}},
      {"changes", [] { return std::make_unique<mine::Changes>(); }, {5, 8}},
      {"a gate of two values",
       [] { return std::make_unique<Halves>(std::make_unique<mine::LetIn>()); },
       {16}}};
  for (const Case& item : cases) {
    CAPTURE(item.name);
    for (const DType dtype :
         {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      CAPTURE(name_of(dtype));
      Model here(item.make(), item.input), there(item.make(), item.input);
      const Shape batch = item.input.with_batch(2);
      const std::vector<Numbers> expected = outcome(here, batch, *cpu, dtype),
                                 found = outcome(there, batch, gpu(), dtype);
      REQUIRE(found.size() == expected.size());
      const double tolerance = dtype == DType::kFloat64   ? 1e-12
                               : dtype == DType::kFloat32 ? 2e-5
                               : dtype == DType::kFloat16 ? 4e-3
                                                          : 3e-2;
      for (std::size_t i = 0; i < found.size(); ++i) {
        CAPTURE(i);
        CHECK(distance(found[i], expected[i]) < allowed(tolerance));
      }
    }
  }
}

TEST_CASE("cuda/functions: a loss that is made of functions") {
  const auto cpu = open_backend(DeviceType::kCpu, 1);
  const std::unique_ptr<const Loss> focal = std::make_unique<mine::Focal>();
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    CAPTURE(name_of(dtype));
    const auto run = [&](Backend& backend) {
      Tape tape(backend);
      Pass pass{.backend = backend, .tape = &tape, .training = true, .loss_scale = 8.0};
      const Variable x = tape.leaf(to_tensor(backend, random_numbers(48, 4), {6, 8}, dtype));
      const Variable loss = focal->value(x, index_on(backend, {1, 4, 7, 0, 4, 2}, {6}), 0.5, pass);
      std::vector<Numbers> result{to_numbers(loss.value())};
      tape.backward(loss);
      result.push_back(to_numbers(Tape::gradient(x)));
      return result;
    };
    const double tolerance = is_low_precision(dtype)    ? 2e-2
                             : dtype == DType::kFloat32 ? 1e-5
                                                        : 1e-13;
    const std::vector<Numbers> expected = run(*cpu), found = run(gpu());
    for (std::size_t i = 0; i < found.size(); ++i)
      CHECK(distance(found[i], expected[i]) < allowed(tolerance));
  }
}

TEST_CASE(
    "cuda/functions: losses that ignore some targets, of a product in pieces too, whose columns "
    "may "
    "be no multiple of 8") {
  const auto cpu = open_backend(DeviceType::kCpu, 1);
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
    CAPTURE(name_of(dtype));
    const auto run = [&](Backend& backend, std::int64_t rows, std::int64_t classes) {
      Tape tape(backend);
      Pass pass{.backend = backend, .tape = &tape, .training = true};
      const DType wide = is_low_precision(dtype) ? DType::kFloat32 : dtype;
      Parameter weight;
      weight.shape = {classes, 8};
      weight.index = 0;
      weight.value = to_tensor(backend, random_numbers(8 * classes, 3), weight.shape, wide);
      if (is_low_precision(dtype)) {
        weight.low = Tensor(backend, weight.shape, dtype);
        backend.cast({.x = weight.value, .y = weight.low});
      }
      weight.grad = Tensor(backend, weight.shape, wide);
      const Variable x = tape.leaf(to_tensor(backend, random_numbers(48, 4), {6, 8}, dtype));
      const Tensor targets = index_on(backend, {1, 4, -100, 0, 4, -100}, {6});
      const Variable loss = rows < 0 ? f::cross_entropy(x, targets, 0.1, 1.0, pass)
                                     : f::linear_cross_entropy(x, weight, targets, 1.0, pass, rows);
      std::vector<Numbers> result{to_numbers(loss.value())};
      tape.backward(loss, 2.0);
      result.push_back(to_numbers(Tape::gradient(x)));
      if (rows >= 0) result.push_back(to_numbers(weight.grad));
      return result;
    };
    const double tolerance = is_low_precision(dtype)    ? 2e-2
                             : dtype == DType::kFloat32 ? 1e-5
                                                        : 1e-13;
    for (const std::int64_t classes : {5, 1105}) {
      CAPTURE(classes);
      for (const std::int64_t rows : {-1, 0, 1, 4}) {
        const std::vector<Numbers> expected = run(*cpu, std::min<std::int64_t>(rows, 0), classes),
                                   found = run(gpu(), rows, classes);
        for (std::size_t i = 0; i < found.size(); ++i)
          CHECK(distance(found[i], expected[i]) < allowed(tolerance));
      }
    }
  }
  Pass pass{.backend = gpu()};
  const Tensor outside = index_on(gpu(), {1, 3, -1}, {3});
  const Numbers rows = to_numbers(f::one_hot(outside, 3, DType::kFloat32, pass).value());
  CHECK(rows[1] == 1.0);
  for (std::size_t i = 3; i < rows.size(); ++i) CHECK(std::isnan(rows[i]));
}

TEST_CASE("cuda/training: four steps equal those of the CPU") {
  TrainingSettings settings;
  settings.dtype = settings.compute = DType::kFloat64;
  const auto transport = make_single_transport();
  const auto train = [&](Backend& backend) {
    TrainingJob job(backend, *transport, settings);
    const std::vector<double> before = job.numbers();
    for (int i = 0; i < 4; ++i) job.step();
    job.finish();
    const std::vector<double> after = job.numbers();
    CHECK(test::largest_difference({before}, {after}) > 0.01);
    return after;
  };
  for (const bool in_backward : {true, false}) {
    settings.in_backward = in_backward;
    settings.clip.norm = in_backward ? 0.0 : 0.5;
    CpuBackend cpu(1);
    CHECK(test::largest_difference({train(gpu())}, {train(cpu)}) < 1e-9);
  }
}

}  // namespace starling::tests
