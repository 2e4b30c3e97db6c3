#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/operations/map.h"
#include "layers/functions.h"
#include "tests/layers/support.h"

// What goes into a layer: one value or several, of any rank, floating or not.
namespace starling::testing {
namespace {

/// W · x + table[token] for each sample: x {F}, and a token, {}.
class LabelledLinear final : public Layer {
 protected:
  Shape build_several(Shapes inputs) override {
    if (inputs.size() != 2 || inputs[0].rank() != 1) bad_shape(inputs[0], "a vector, and a token,");
    const std::int64_t width = inputs[0].back();
    weight_ = &add_parameter("weight", {width, width}, Init::normal(1.0));
    table_ = &add_parameter("table", {5, width}, Init::normal(1.0));
    return inputs[0];
  }
  Variable compute_several(Values inputs, Pass& pass) override {
    return functions::add(functions::linear(inputs[0], *weight_, nullptr, pass),
                          functions::embedding(inputs[1].value(), *table_, pass), pass);
  }

 private:
  Parameter* weight_ = nullptr;
  Parameter* table_ = nullptr;
};

/// A layer of layers, of which one takes several values.
class Twice final : public Layer {
 protected:
  Shape build_several(Shapes inputs) override {
    first_ = &add_child("first", std::make_unique<LabelledLinear>(), inputs);
    second_ = &add_child("second", std::make_unique<LabelledLinear>(), inputs);
    return inputs[0];
  }
  Variable compute_several(Values inputs, Pass& pass) override {
    return second_->forward(std::vector{first_->forward(inputs, pass), inputs[1]}, pass);
  }

 private:
  LabelledLinear* first_ = nullptr;
  LabelledLinear* second_ = nullptr;
};

const std::vector<Shape> kShapes{{3}, {}};

std::string refusal(const std::vector<Shape>& shapes) {
  return error_of(ExitCode::kUsage, [&] { Model(std::make_unique<LabelledLinear>(), shapes); });
}

}  // namespace

TEST_CASE(
    "layers/values: a layer takes several values, and hands gradients to each that wants it") {
  Model model(std::make_unique<Twice>(), kShapes);
  CHECK(model.parameters()[3]->name == "second.table");
  model.allocate(cpu(), DType::kFloat64);
  model.initialise(2);
  const Tensor tokens = labels_of({4, 0}), numbers = noise_tensor(1, {2, 3});
  std::vector<std::string> seen;
  const auto value = [&](Tape* tape, const Variable& x) {
    Pass pass{cpu(), tape, true};
    pass.layer_observer = [&](std::string_view layer, Values in, const Variable& out) {
      seen.emplace_back(layer);
      CHECK(in.size() == 2);
      CHECK(out.shape() == Shape{2, 3});
    };
    const Variable total =
        weighted_total(model.forward(std::vector{x, Variable(tokens)}, pass), pass);
    if (tape) tape->backward(total);
    return numbers_of(total.value())[0];
  };
  Tape tape(cpu());
  const Variable x = tape.leaf(numbers);
  value(&tape, x);
  CHECK(seen == std::vector<std::string>{"first", "second", "model"});
  const auto check = [&](const Tensor& of, const Tensor& gradient) {
    const std::vector<double> at = numbers_of(of), slopes = numbers_of(gradient);
    for (std::size_t i = 0; i < at.size(); ++i) {
      double difference = 0.0;
      for (const double sign : {1.0, -1.0}) {
        std::vector<double> moved = at;
        moved[i] += sign * 1e-6;
        cpu().copy_from_host(moved.data(), of);
        difference += sign * value(nullptr, Variable(numbers)) / 2e-6;
      }
      cpu().copy_from_host(at.data(), of);
      CHECK(slopes[i] == doctest::Approx(difference).epsilon(1e-6));
    }
  };
  check(numbers, Tape::gradient(x));
  for (const Parameter* parameter : model.parameters()) check(parameter->value, parameter->grad);
}

TEST_CASE("layers/values: values that are not those that were declared are refused by name") {
  CHECK(contains(refusal({{2, 3}, {}}),
                 "[layer] model: an input of 2×3, but a vector, and a token,"));
  register_builtin_layers();
  const auto single = [](const std::vector<Shape>& shapes) {
    return error_of(ExitCode::kUsage, [&] {
      ConfigSection section(nlohmann::json::object(), "test");
      Model(layers().make("relu", "", section), shapes);
    });
  };
  CHECK(single({{3}, {3}}) == "[layer] model: it takes one value, and 2 were given");
  Model model(std::make_unique<LabelledLinear>(), kShapes);
  model.allocate(meta_backend(), DType::kFloat32);
  Pass pass{meta_backend()};
  const auto given = [&](const std::vector<Shape>& shapes, DType second) {
    return error_of(ExitCode::kInternal, [&] {
      std::vector<Variable> values;
      for (const Shape& shape : shapes)
        values.emplace_back(
            Tensor(meta_backend(), shape, values.empty() ? DType::kFloat32 : second));
      model.forward(values, pass);
    });
  };
  CHECK(given({{2, 3}}, DType::kInt32) == "[layer] model: 1 values, but 2 were declared");
  CHECK(given({{2, 3}, {3}}, DType::kInt32) == "[layer] model: inputs of 2 and 3 samples");
  CHECK(given({{2, 4}, {2}}, DType::kInt32) ==
        "[layer] model: an input of 2×4, but batches of 3 were declared");
  CHECK(given({{2, 3}, {2}}, DType::kInt64) ==
        "[layer] model: [embedding] the tokens must be an int32 tensor");
  CHECK(given({{2, 3}, {2}}, DType::kBFloat16) == "[layer] weight is fp32, but its input is bf16");
}

TEST_CASE("layers/values: a layer without build() or compute() is told what it lacks") {
  class Empty final : public Layer {};
  class Half final : public Layer {
    Shape build(const Shape& input) override { return input; }
  };
  CHECK(error_of(ExitCode::kInternal, [] { Model(std::make_unique<Empty>(), {3}); }) ==
        "[layer] model: has no build(); a layer has one, or build_several()");
  Model model(std::make_unique<Half>(), {3});
  Pass pass{cpu()};
  CHECK(error_of(ExitCode::kInternal, [&] {
          model.forward(Variable(noise_tensor(1, {2, 3})), pass);
        }) == "[layer] model: has no compute(); a layer has one, or compute_several()");
}

TEST_CASE("layers/values: tokens go in, of any length, and what needs floating numbers says so") {
  const auto model = model_from(
      R"({"type": "sequential", "layers": [{"type": "embedding", "num_embeddings": 7, "embedding_dim": 4},
      {"type": "linear", "out_features": 2}]})",
      {3});
  CHECK(model->output_shape() == Shape{3, 2});
  for (const DType format : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
    const bool low = format == DType::kBFloat16;
    model->allocate(cpu(), low ? DType::kFloat32 : format, format);
    model->initialise(1);
    model->refresh_low();
    Pass pass{cpu()};
    for (const std::int64_t length : {3, 5}) {
      const Tensor tokens =
          labels_of(std::vector<std::int32_t>(2 * length, 6)).reshaped({2, length});
      const Variable y = model->forward(Variable(tokens), pass);
      CHECK(y.shape() == Shape{2, length, 2});
      CHECK(y.dtype() == format);
    }
    CHECK(fails(ExitCode::kUsage, "[layer] 0: ", [&] {
      model->forward(Variable(labels_of({1, 7, 2}).reshaped({1, 3})), pass);
    }));
  }
  const auto plain = model_from(R"({"type": "sequential", "layers": [{"type": "gelu"}]})", {3});
  Pass pass{cpu()};
  CHECK(fails(ExitCode::kUsage, "[layer] 0: ", [&] {
    plain->forward(Variable(labels_of({1, 7, 2}).reshaped({1, 3})), pass);
  }));
  CHECK(contains(
      model_error(
          R"({"type": "sequential", "layers": [{"type": "embedding", "num_embeddings": 7}]})", {3}),
      "layers[0].embedding_dim"));
}

TEST_CASE(
    "layers/embedding: a table that is not trained gets no gradient, and a token outside it is the "
    "data's fault") {
  Parameter table{.name = "table", .shape = {5, 4}};
  table.trainable = false;
  table.value = noise_tensor(3, table.shape);
  Tape tape(cpu());
  Pass pass{cpu(), &tape, true};
  const Tensor tokens = labels_of({4, 0, 4, 4, 2, 0}).reshaped({2, 3});
  const Variable rows = functions::embedding(tokens, table, pass);
  CHECK(rows.shape() == Shape{2, 3, 4});
  CHECK(!rows.requires_grad());
  CHECK(tape.nodes() == 0);
  for (const std::int32_t token : {-1, 5}) {
    const std::string text = error_of(ExitCode::kUsage, [&] {
      functions::embedding(labels_of({0, token}), table, pass);
    });
    CHECK(contains(text, std::to_string(token) + " at position 1"));
    CHECK(contains(text, "5 rows"));
  }
}

}  // namespace starling::testing
