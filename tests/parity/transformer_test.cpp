#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/operations/map.h"
#include "core/safetensors.h"
#include "layers/functions.h"
#include "layers/language_model.h"
#include "layers/layer.h"
#include "layers/linear.h"
#include "tests/parity/numbers.h"

// Steps of SGD of small Transformers against Hugging Face's and torchvision's classes, whose losses
// golden/make_transformers.py wrote; with adapters against PEFT's, golden/make_lora.py.
using namespace starling;
using namespace starling::testing;

namespace {

nlohmann::json golden(const char* file) { return nlohmann::json::parse(std::ifstream(file)); }

/// Adapters in every linear layer but the head; `lora`: their settings, and what else is trained.
void adapt(const nlohmann::json& lora, Model& model) {
  const auto whole = lora["train"].get<std::vector<std::string>>();
  for (Parameter* parameter : model.parameters()) {
    parameter->trainable = std::ranges::any_of(
        whole, [&](const std::string& module) { return parameter->name.starts_with(module); });
    if (!parameter->trainable) parameter->in = Parameter::In::kBase;
  }
  model.for_each([&](Layer& layer) {
    auto* const linear = dynamic_cast<Linear*>(&layer);
    if (linear && &linear->weight() != &model.language_model()->head())
      linear->adapt({.rank = lora["rank"], .alpha = lora["alpha"]});
  });
  model.collect();
}

std::unique_ptr<Model> model_of(const nlohmann::json& config, const Shape& input) {
  register_builtin_models();
  ConfigSection section(config, "model");
  return make_model(section, input, 5);
}

Tensor of_int32(const std::vector<std::int32_t>& numbers, const Shape& shape) {
  const Tensor tensor(cpu(), shape, DType::kInt32);
  cpu().copy_from_host(numbers.data(), tensor);
  return tensor;
}

/// A tensor's numbers in a file's order.
std::vector<double> numbers(const Tensor& from, TensorLayout layout = TensorLayout::kPlain) {
  std::vector<double> memory(static_cast<std::size_t>(from.elements())), result(memory.size());
  cpu().copy_to_host(functions::in_format(from, DType::kFloat64, cpu()), memory.data());
  to_file_layout(reinterpret_cast<const std::byte*>(memory.data()), from.shape(), layout,
                 sizeof(double), reinterpret_cast<std::byte*>(result.data()));
  return result;
}

/// What transformers computes in fp64.
void check_close(double found, double expected, DType dtype) {
  const double within = dtype == DType::kFloat64 ? 1e-10 : 1e-5;
  CHECK(std::abs(found - expected) <= within * std::max(1.0, std::abs(expected)));
}

/// Logits behind the first sample.
void check_logits(const nlohmann::json& given, Model& model, const Variable& tokens) {
  Pass pass{cpu()};
  const Tensor all = model.forward(tokens, pass).value();
  const auto expected = given["logits"].get<std::vector<double>>();
  const std::vector<double> found = numbers(all);
  const std::size_t first = (given["length"].get<std::size_t>() - 1) * expected.size();
  for (std::size_t k = 0; k < expected.size(); ++k)
    check_close(found[first + k], expected[k], all.dtype());
}

/// Each tensor's gradient as one number: its product with hashed ones.
void check_gradients(const nlohmann::json& given, const Model& model) {
  for (const Parameter* parameter : model.parameters()) {
    CAPTURE(parameter->name);
    const std::vector<double> g = numbers(parameter->grad, parameter->layout),
                              u = hashed(1000 + static_cast<std::uint64_t>(parameter->index),
                                         g.size());
    double sum = 0.0;
    for (std::size_t i = 0; i < g.size(); ++i) sum += g[i] * (u[i] - 0.5);
    check_close(sum, given["gradients"][static_cast<std::size_t>(parameter->index)],
                parameter->grad.dtype());
  }
}

/// The losses of a case, in `compute`'s arithmetic.
std::vector<double> losses_of(const nlohmann::json& given, double rate, DType compute) {
  const std::int64_t samples = given["samples"], length = given["length"];
  const nlohmann::json& config = given["model"];
  const std::int64_t side = length == 0 ? config["image_size"].get<std::int64_t>() : 0;
  const auto model = model_of(config, length == 0 ? Shape{side, side, 3} : Shape{length});
  if (given.contains("lora")) adapt(given["lora"], *model);
  const DType wide = compute == DType::kFloat64 ? compute : DType::kFloat32;
  model->allocate(cpu(), wide, compute);
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensors;
  for (const Parameter* parameter : model->parameters()) {
    std::vector<double> u = hashed(static_cast<std::uint64_t>(1 + parameter->index),
                                   static_cast<std::size_t>(parameter->shape.elements()));
    const Shape shape = file_shape(parameter->shape, parameter->layout);
    const bool scale = shape.rank() == 1 && parameter->name.ends_with("weight");
    for (double& number : u)
      number = scale ? 0.5 + number : (shape.rank() > 1 ? 0.4 : 0.2) * (number - 0.5);
    load(u, parameter->value, parameter->layout);
    tensors.emplace_back(parameter->name,
                         std::vector<std::int64_t>(shape.sizes().begin(), shape.sizes().end()));
  }
  CHECK(nlohmann::json(tensors) == given["tensors"]);
  std::vector<double> losses;
  Tape tape(cpu());
  for (std::uint64_t step = 0; step < given["losses"].size(); ++step) {
    model->refresh_low();
    Pass pass{cpu(), &tape, true};
    Variable loss;
    if (LanguageModel* const text = model->language_model()) {
      const auto u = hashed(500 + step % 3, static_cast<std::size_t>(samples * (length + 1)));
      std::vector<std::int32_t> tokens, targets;
      for (std::size_t i = 0; i < u.size(); ++i) {
        const auto token = static_cast<std::int32_t>(u[i] * static_cast<double>(text->vocab()));
        const std::size_t place = i % static_cast<std::size_t>(length + 1);
        if (place > 0) targets.push_back(token);
        if (place < static_cast<std::size_t>(length)) tokens.push_back(token);
      }
      const Shape shape{samples, length};
      const Variable x(of_int32(tokens, shape));
      const Tensor y = of_int32(targets, shape);
      if (step == 0 && given.contains("logits") && wide == compute) check_logits(given, *model, x);
      // Both ways to the loss, in turn.
      loss = step % 2 == 0 ? functions::linear_cross_entropy(text->hidden(x, pass), text->head(), y,
                                                             1.0, pass, 4)
                           : functions::cross_entropy(model->forward(x, pass), y, 0.0, 1.0, pass);
    } else {
      std::vector<double> u =
          hashed(500 + step % 3, static_cast<std::size_t>(samples * 3 * side * side));
      for (double& number : u) number = 2 * number - 1;
      const Tensor images(cpu(), {samples, side, side, 3}, compute);
      load(u, images, TensorLayout::kConvWeight);
      std::vector<std::int32_t> labels;
      for (std::int32_t i = 0; i < samples; ++i) labels.push_back(i % 5);
      loss = functions::cross_entropy(model->forward(Variable(images), pass),
                                      of_int32(labels, {samples}), 0.0, 1.0, pass);
    }
    double number = 0.0;
    cpu().copy_to_host(functions::in_format(loss.value(), DType::kFloat64, cpu()), &number);
    losses.push_back(number);
    tape.backward(loss);
    if (step == 0 && given.contains("gradients") && wide == compute) check_gradients(given, *model);
    for (const Parameter* parameter : model->parameters()) {
      if (!parameter->trainable) continue;
      const Tensor& p = parameter->value;
      cpu().map({{{MapFunction::kMultiply, 1, kMapNumbers}, {MapFunction::kAdd, 0, kMapResults}},
                 {p, parameter->grad},
                 p,
                 {-rate}});
    }
  }
  return losses;
}

/// The losses of a file's cases are PyTorch's.
void check_losses(const char* file) {
  const nlohmann::json all = golden(file);
  for (const auto& [name, given] : all["cases"].items()) {
    CAPTURE(name);
    const auto expected = given["losses"].get<std::vector<double>>();
    const auto distance = [&](DType compute) {
      const std::vector<double> found = losses_of(given, all["lr"], compute);
      REQUIRE(found.size() == expected.size());
      std::vector<double> result;
      for (std::size_t i = 0; i < found.size(); ++i)
        result.push_back(std::abs(found[i] - expected[i]) / std::max(1.0, expected[i]));
      return result;
    };
    for (const double each : distance(DType::kFloat64)) CHECK(each <= 1e-10);
    for (const double each : distance(DType::kFloat32)) CHECK(each <= 1e-5);
    const std::vector<double> low = distance(DType::kBFloat16);
    double sum = 0.0;
    for (const double each : low) {
      CHECK(each <= 0.05);
      sum += each;
    }
    CHECK(sum <= 0.02 * static_cast<double>(low.size()));
  }
}

}  // namespace

TEST_CASE("parity/transformers: losses of ten steps, logits and gradients are PyTorch's") {
  check_losses("golden/transformers.json");
}

TEST_CASE("parity/transformers: with adapters they are PEFT's") {
  check_losses("golden/lora.json");
}

TEST_CASE("parity/transformers: models of usual sizes have as many parameters") {
  const nlohmann::json counts = golden("golden/transformers.json")["parameter_counts"];
  for (const auto& [name, count] : counts.items()) {
    CAPTURE(name);
    nlohmann::json config{{"type", name}};
    if (name == "gpt2") config["vocab"] = 50257;
    if (name == "llama") {
      config = {{"type", name},  {"layers", 16},   {"heads", 32},     {"kv_heads", 8},
                {"width", 2048}, {"hidden", 8192}, {"vocab", 128256}, {"tie", true}};
    }
    const Shape input = name.starts_with("vit") ? Shape{224, 224, 3} : Shape{64};
    CHECK(model_of(config, input)->parameter_count() == count);
  }
}
