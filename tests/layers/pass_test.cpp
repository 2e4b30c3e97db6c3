#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "core/random.h"
#include "layers/functions.h"
#include "tests/layers/support.h"
#include "tests/support/errors.h"

using namespace starling;
using namespace starling::testing;

namespace {

/// Names in the order in which a traced pass on the meta backend reports them.
std::vector<std::string> ready_order(Model& model, std::int64_t batch) {
  const auto backend = make_meta_backend();
  model.allocate(*backend, DType::kFloat32);
  Tape tape(*backend);
  std::vector<std::string> order;
  tape.set_ready_observer([&](Parameter& parameter) { order.push_back(parameter.name); });
  Pass pass{*backend, &tape, true};
  const Variable logits = model.forward(Variable(Tensor(*backend, model.input_shape().with_batch(batch), DType::kFloat32)), pass);
  tape.backward(functions::cross_entropy(logits, Tensor(*backend, {batch}, DType::kInt32), 0.0, 1.0, pass));
  return order;
}

std::int64_t count_of(const Tensor& tensor) {
  std::int64_t count = -1;
  tensor.backend().copy_to_host(tensor, &count);
  return count;
}

}  // namespace

TEST_CASE("layers/trace: the backward order on shapes alone") {
  const auto mlp = model_from(R"({"type": "mlp", "hidden": [4]})", {2, 2, 1});
  CHECK(ready_order(*mlp, 2) == std::vector<std::string>{"3.weight", "3.bias", "1.weight", "1.bias"});

  for (const char* name : {"resnet20", "resnet18", "resnet50"}) {
    CAPTURE(name);
    const auto model = model_from(R"({"type": ")" + std::string(name) + R"("})", {32, 32, 3});
    const std::vector<std::string> order = ready_order(*model, 2);
    CHECK(order.size() == model->parameters().size());
    CHECK(order.front() == "fc.weight");
    CHECK(order.back() == "conv1.weight");
    std::map<std::string, int> seen;
    for (const std::string& parameter : order) CHECK(++seen[parameter] == 1);
    CHECK(ready_order(*model, 5) == order);
  }
}

TEST_CASE("layers/trace: a traced pass gives its memory back, and evaluation needs far less of it") {
  const auto model = model_from(R"({"type": "resnet20"})", {32, 32, 3});
  const auto backend = make_meta_backend();
  model->allocate(*backend, DType::kFloat32);
  const std::size_t before = backend->memory_stats().in_use;
  const auto peak = [&](bool training) {
    Tape tape(*backend);
    Pass pass{*backend, training ? &tape : nullptr, training};
    std::size_t result = 0;
    {
      const Variable logits = model->forward(Variable(Tensor(*backend, {64, 32, 32, 3}, DType::kFloat32)), pass);
      result = backend->memory_stats().in_use - before;
      if (training) tape.backward(functions::cross_entropy(logits, Tensor(*backend, {64}, DType::kInt32), 0.0, 1.0, pass));
    }
    return result;
  };
  const std::size_t training = peak(true), evaluation = peak(false);
  CHECK(backend->memory_stats().in_use == before);
  CHECK(evaluation < training / 100);
  // Kept of every convolution with batch norm: its output (for batch norm) and that of the ReLU, nothing else of that size.
  const std::size_t activations = 64 * 4 * 2 * (7 * 32 * 32 * 16 + 6 * 16 * 16 * 32 + 6 * 8 * 8 * 64);
  CHECK(static_cast<double>(training) < 1.10 * static_cast<double>(activations));
}

TEST_CASE("layers/steady: no new memory after the second step, in every floating type that the CPU computes in") {
  const auto model = model_from(R"({"type": "sequential", "layers": [
      {"type": "conv2d", "out_channels": 8, "kernel_size": 3, "padding": 1}, {"type": "batch_norm"}, {"type": "relu"}, {"type": "max_pool2d", "kernel_size": 2},
      {"type": "residual", "layers": [{"type": "conv2d", "out_channels": 8, "kernel_size": 3, "padding": 1}, {"type": "batch_norm"}]}, {"type": "relu"},
      {"type": "gelu"}, {"type": "dropout"}, {"type": "flatten"}, {"type": "linear", "out_features": 10}]})",
                                {8, 8, 3});
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    CAPTURE(name_of(dtype));
    model->allocate(cpu(), dtype);
    model->initialise(1);
    Tape tape(cpu());
    Tensor labels(cpu(), {4}, DType::kInt32);
    cpu().fill(labels, 3);
    std::uint64_t before = 0;
    std::size_t in_use = 0;
    for (std::uint64_t step = 0; step < 6; ++step) {
      Pass pass{cpu(), &tape, true, 1, step << 24};
      const Tensor x(cpu(), {4, 8, 8, 3}, dtype);
      cpu().fill(x, 0.5);
      tape.backward(functions::cross_entropy(model->forward(Variable(x), pass), labels, 0.0, 1.0, pass));
      const MemoryStats stats = cpu().memory_stats();
      if (step > 1) {
        CHECK(stats.system_allocations == before);
        CHECK(stats.in_use == in_use);
      }
      before = stats.system_allocations;
      in_use = stats.in_use;
    }
  }
}

TEST_CASE("layers/functions: nothing is recorded, and no gradient computed, where none is wanted") {
  const auto model = model_from(R"({"type": "sequential", "layers": [{"type": "conv2d", "out_channels": 2, "kernel_size": 2, "bias": true},
      {"type": "relu"}, {"type": "flatten"}, {"type": "linear", "out_features": 10}]})",
                                {3, 3, 1});
  model->allocate(cpu(), DType::kFloat64);
  model->initialise(1);
  model->parameters()[0]->trainable = false;  // conv weight frozen, its bias not
  cpu().fill(model->parameters()[0]->grad, 7.0);
  Tape tape(cpu());
  Pass pass{cpu(), &tape, true};
  std::vector<std::string> ready;
  tape.set_ready_observer([&](Parameter& parameter) { ready.push_back(parameter.name); });
  tape.backward(weighted_total(model->forward(Variable(noise_tensor(1, {2, 3, 3, 1})), pass), pass));
  CHECK(ready == std::vector<std::string>{"3.weight", "3.bias", "0.bias"});
  CHECK(numbers_of(model->parameters()[0]->grad) == std::vector<double>(8, 7.0));

  for (Parameter* parameter : model->parameters()) parameter->trainable = false;
  model->forward(Variable(noise_tensor(1, {2, 3, 3, 1})), pass);
  CHECK(tape.nodes() == 0);
}

TEST_CASE("layers/batch_norm: statistics in training, their use in evaluation, the count of batches") {
  const auto model = model_from(
      R"({"type": "sequential", "num_classes": 3, "layers": [{"type": "batch_norm", "momentum": 0.25}, {"type": "relu"}]})", {3});
  model->allocate(cpu(), DType::kFloat64);
  model->initialise(1);
  const std::vector<double> x{1, 5, -2, 3, 5, 0, 5, 8, 4, 7, -2, 2};  // 4 samples of 3 features
  Pass pass{cpu()};
  pass.training = true;
  const auto y = numbers_of(model->forward(Variable(tensor_of(x, {4, 3})), pass).value());
  const double mean[3] = {4, 4, 1}, variance[3] = {5, 13.5, 5};  // biased
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double expected = (x[i] - mean[i % 3]) / std::sqrt(variance[i % 3] + 1e-5);
    CHECK(y[i] == doctest::Approx(std::max(0.0, expected)).epsilon(1e-12));
  }
  const auto running_mean = numbers_of(model->buffers()[0]->value), running_var = numbers_of(model->buffers()[1]->value);
  for (std::size_t c = 0; c < 3; ++c) {
    CHECK(running_mean[c] == doctest::Approx(0.25 * mean[c]).epsilon(1e-12));
    CHECK(running_var[c] == doctest::Approx(0.75 + 0.25 * variance[c] * 4 / 3).epsilon(1e-12));
  }
  CHECK(count_of(model->buffers()[2]->value) == 1);

  pass.training = false;
  const auto z = numbers_of(model->forward(Variable(tensor_of(x, {4, 3})), pass).value());
  for (std::size_t i = 0; i < z.size(); ++i) {
    CHECK(z[i] == doctest::Approx(std::max(0.0, (x[i] - running_mean[i % 3]) / std::sqrt(running_var[i % 3] + 1e-5))).epsilon(1e-12));
  }
  CHECK(numbers_of(model->buffers()[0]->value) == running_mean);
  CHECK(count_of(model->buffers()[2]->value) == 1);
}

TEST_CASE("layers/batch_norm: the fused operations give the numbers of the separate ones") {
  std::string kind;
  SUBCASE("relu") { kind = "relu"; }
  SUBCASE("relu6") { kind = "relu6"; }
  const std::string active = R"({"type": ")" + kind + R"("})";
  const std::string body = R"({"type": "conv2d", "out_channels": 3, "kernel_size": 3, "padding": 1}, {"type": "batch_norm"})";
  const std::string tail = R"({"type": "global_avg_pool"}, {"type": "linear", "out_features": 10})";
  // A sequential of one layer hides the ReLU, so that nothing fuses.
  const std::string apart = R"({"type": "sequential", "layers": [)" + active + "]}";
  const auto run = [&](const std::string& relu, bool training) {
    const auto model = model_from(R"({"type": "sequential", "layers": [{"type": "batch_norm"}, )" + relu +
                                      R"(, {"type": "residual", "layers": [)" + body + "]}, " + relu + ", " + tail + "]}",
                                  {4, 4, 3});
    model->allocate(cpu(), DType::kFloat64);
    model->initialise(4);
    for (const Parameter* parameter : model->parameters()) {  // values beyond 6, too
      if (parameter->name == "0.weight" || parameter->name == "2.layers.1.weight") cpu().fill(parameter->value, 5.0);
    }
    Tape tape(cpu());
    Pass pass{cpu(), training ? &tape : nullptr, training};
    const Variable y = model->forward(Variable(noise_tensor(1, {3, 4, 4, 3})), pass);
    std::vector<double> result = numbers_of(y.value());
    if (training) {
      tape.backward(weighted_total(y, pass));
      for (const Parameter* parameter : model->parameters()) {
        for (double value : numbers_of(parameter->grad)) result.push_back(value);
      }
    }
    return result;
  };
  for (const bool training : {false, true}) {
    const auto fused = run(active, training), separate = run(apart, training);
    REQUIRE(fused.size() == separate.size());
    for (std::size_t i = 0; i < fused.size(); ++i) CHECK(fused[i] == doctest::Approx(separate[i]).epsilon(1e-11));
  }
}

TEST_CASE("layers/batch_norm: over the batches of all ranks, of which there is one, it is a batch norm, with what follows it") {
  struct OneRank final : RankSums {
    int ranks() const override { return 1; }
    void sum(const Tensor&) override { ++sums; }
    int sums = 0;
  } one;
  const std::string norm = R"({"type": "batch_norm"})";
  for (const std::string kind : {"relu", "relu6", "silu"}) {
    CAPTURE(kind);
    const std::string active = R"({"type": ")" + kind + R"("})";
    const auto model = model_from(R"({"type": "sequential", "layers": [)" + norm + "," + active + R"(, {"type": "residual", "layers": [)" +
                                      norm + "]}," + active + R"(, {"type": "global_avg_pool"}, {"type": "linear", "out_features": 10}]})",
                                  {4, 4, 3});
    model->allocate(cpu(), DType::kFloat64);
    const auto run = [&](RankSums* over) {
      model->initialise(4);
      for (const Parameter* parameter : model->parameters()) {
        if (parameter->shape.rank() == 1 && parameter->name.ends_with("weight")) cpu().fill(parameter->value, 5.0);
      }
      Tape tape(cpu());
      Pass pass{.backend = cpu(), .tape = &tape, .training = true, .norms_over = over};
      const Variable x = tape.leaf(noise_tensor(1, {3, 4, 4, 3}));
      const Variable y = model->forward(x, pass);
      std::vector<double> result = numbers_of(y.value());
      tape.backward(weighted_total(y, pass));
      for (const double value : numbers_of(Tape::gradient(x))) result.push_back(value);
      for (const Parameter* parameter : model->parameters()) {
        for (const double value : numbers_of(parameter->grad)) result.push_back(value);
      }
      return result;
    };
    const auto plain = run(nullptr), over_ranks = run(&one);
    REQUIRE(plain.size() == over_ranks.size());
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(over_ranks[i] == doctest::Approx(plain[i]).epsilon(1e-9));
  }
  CHECK(one.sums == 3 * 2 * 2);
}

TEST_CASE("layers/dropout: masks follow key and counter, are unbiased, and vanish in evaluation") {
  const std::int64_t n = 40000;
  const Tensor ones = tensor_of(std::vector<double>(static_cast<std::size_t>(n), 1.0), {1, n});
  const auto run = [&](std::uint64_t key, std::uint64_t counter, bool training = true) {
    Pass pass{cpu(), nullptr, training, key, counter};
    const auto y = numbers_of(functions::dropout(Variable(ones), 0.3, pass).value());
    CHECK(pass.dropout_counter == counter + (training ? 1 : 0));
    return y;
  };
  const auto mask = run(1, 5);
  double sum = 0.0;
  for (const double value : mask) {
    CHECK((value == 0.0 || value == doctest::Approx(1 / 0.7)));
    sum += value;
  }
  CHECK(std::abs(sum / static_cast<double>(n) - 1.0) < 4 * std::sqrt(0.3 / 0.7 / static_cast<double>(n)));
  CHECK(run(1, 5) == mask);
  for (const auto& other : {run(1, 6), run(2, 5)}) {
    double both = 0.0;
    for (std::size_t i = 0; i < other.size(); ++i) both += other[i] > 0 && mask[i] > 0 ? 1.0 : 0.0;
    CHECK(std::abs(both / static_cast<double>(n) - 0.49) < 0.01);  // independent
  }
  CHECK(run(1, 5, false) == numbers_of(ones));
}

TEST_CASE("layers/flatten: PyTorch's order C, H, W whatever the memory layout") {
  std::vector<double> image(12);
  for (std::size_t i = 0; i < image.size(); ++i) image[i] = static_cast<double>(i);  // H=2, W=2, C=3
  Pass pass{cpu()};
  const auto y = numbers_of(functions::flatten(Variable(tensor_of(image, {1, 2, 2, 3})), pass).value());
  CHECK(y == std::vector<double>{0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11});
  const Tensor grey = noise_tensor(1, {2, 3, 3, 1});
  CHECK(functions::flatten(Variable(grey), pass).value().raw() == grey.raw());  // no copy where none is needed
}

TEST_CASE("layers/cross_entropy: the loss's own gradient scales the logits'") {
  const Tensor logits = noise_tensor(1, {3, 4});
  Tensor labels(cpu(), {3}, DType::kInt32);
  const std::int32_t numbers[3] = {0, 3, 1};
  cpu().copy_from_host(numbers, labels);
  const auto gradient = [&](double scale, double seed) {
    Tape tape(cpu());
    Pass pass{cpu(), &tape, true};
    const Variable x = tape.leaf(logits);
    tape.backward(functions::cross_entropy(x, labels, 0.0, scale, pass), seed);
    return numbers_of(Tape::gradient(x));
  };
  const auto one = gradient(1, 1), scaled = gradient(2, 1), seeded = gradient(1, 2);
  for (std::size_t i = 0; i < one.size(); ++i) {
    CHECK(scaled[i] == doctest::Approx(2 * one[i]).epsilon(1e-14));
    CHECK(seeded[i] == doctest::Approx(2 * one[i]).epsilon(1e-14));
  }
}

TEST_CASE("layers/mse: value and gradient are the formula's, in fp64, fp32 and bf16, and finite differences agree") {
  constexpr std::int64_t kRows = 5, kWidth = 3;
  const std::vector<double> a = noise(1, kRows * kWidth), b = noise(2, kRows * kWidth);
  const auto in = [&](const std::vector<double>& numbers, DType dtype) {
    const Tensor wide = tensor_of(numbers, {kRows, kWidth});
    if (dtype == DType::kFloat64) return wide;
    const Tensor narrow(cpu(), wide.shape(), dtype);
    cpu().cast({.x = wide, .y = narrow});
    return narrow;
  };
  const auto wide = [&](const Tensor& x) {
    const Tensor y(cpu(), x.shape(), DType::kFloat64);
    cpu().cast({.x = x, .y = y});
    return numbers_of(y);
  };
  const auto value = [&](const std::vector<double>& numbers) {
    Pass pass{cpu()};
    return numbers_of(
        functions::mean_squared_error(Variable(tensor_of(numbers, {kRows, kWidth})), in(b, DType::kFloat64), 0.5, pass).value())[0];
  };
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
    CAPTURE(name_of(dtype));
    const double tolerance = dtype == DType::kFloat64 ? 1e-14 : dtype == DType::kFloat32 ? 1e-6 : 4e-3;
    // Targets come as fp32 whatever the model computes in.
    const Tensor target = in(b, dtype == DType::kFloat64 ? dtype : DType::kFloat32);
    for (const double seed : {1.0, 3.0}) {
      Tape tape(cpu());
      Pass pass{.backend = cpu(), .tape = &tape, .training = true, .loss_scale = 4.0};
      const Variable x = tape.leaf(in(a, dtype));
      const std::vector<double> rounded = wide(x.value()), wanted = wide(target);
      const Variable loss = functions::mean_squared_error(x, target, 0.5, pass);
      CHECK(loss.dtype() == (dtype == DType::kFloat64 ? dtype : DType::kFloat32));
      CHECK(loss.shape() == Shape{});
      double sum = 0.0;
      for (std::size_t i = 0; i < a.size(); ++i) sum += (rounded[i] - wanted[i]) * (rounded[i] - wanted[i]);
      CHECK(wide(loss.value())[0] == doctest::Approx(0.5 * sum / 15.0).epsilon(std::min(tolerance, 1e-6)));
      tape.backward(loss, seed);
      const std::vector<double> gradient = wide(Tape::gradient(x));
      for (std::size_t i = 0; i < a.size(); ++i)
        CHECK(gradient[i] == doctest::Approx(seed * 4.0 * 2.0 * 0.5 / 15.0 * (rounded[i] - wanted[i])).epsilon(tolerance));
      if (dtype != DType::kFloat64) continue;
      for (std::size_t i = 0; i < a.size(); ++i) {
        constexpr double kStep = 1e-5;
        std::vector<double> up = a, down = a;
        up[i] += kStep;
        down[i] -= kStep;
        CHECK(gradient[i] == doctest::Approx(seed * 4.0 * (value(up) - value(down)) / (2 * kStep)).epsilon(1e-7));
      }
    }
  }
  Pass pass{cpu()};
  CHECK(test::error_text([&] {
          functions::mean_squared_error(Variable(in(a, DType::kFloat64)), noise_tensor(1, {kWidth, kRows}), 1.0, pass);
        }).find("5×3") != std::string::npos);
}
