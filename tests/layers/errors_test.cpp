#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "core/config.h"
#include "core/error.h"
#include "tests/layers/support.h"
#include "tests/support/rows.h"

using namespace starling;
using namespace starling::testing;

namespace {

std::string list_error(const std::string& list, const Shape& input = {8, 8, 3}) {
  return model_error(R"({"type": "sequential", "layers": [)" + list + "]}", input);
}

}  // namespace

TEST_CASE(
    "layers/errors: what does not fit names the layer or its key, what came and what is needed") {
  // Words of the error, and the layers for images of 8×8×3.
  for (const auto& row : test::rows_of(R"table(
[layer] 1: an input of 192 | {"type": "flatten"}, {"type": "conv2d", "out_channels": 4, "kernel_size": 3}
an image | {"type": "flatten"}, {"type": "conv2d", "out_channels": 4, "kernel_size": 3}
smaller than the window of 9 pixels | {"type": "conv2d", "out_channels": 4, "kernel_size": 9}
window of 9 pixels | {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "dilation": 4}
2 groups | {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "groups": 2}
that 2 groups divide | {"type": "conv_transpose2d", "out_channels": 4, "kernel_size": 3, "groups": 2}
[layer] 1: | {"type": "flatten"}, {"type": "max_pool2d", "kernel_size": 2}
an image | {"type": "flatten"}, {"type": "global_avg_pool"}
[layer] 0: layers give 6×6×4 but the shortcut gives 8×8×3 | {"type": "residual", "layers": [{"type": "conv2d", "out_channels": 4, "kernel_size": 3}]}
[layer] 0.1: | {"type": "sequential", "layers": [{"type": "flatten"}, {"type": "global_avg_pool"}]}
layers[0].type: unknown layer 'conv2'; did you mean 'conv2d'? | {"type": "conv2", "out_channels": 4, "kernel_size": 3}
layers[0].out_channels | {"type": "conv2d", "kernel_size": 3}
kernel_size | {"type": "conv2d", "out_channels": 4, "kernel": 3}
stride | {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "strid": 3}
3 groups do not divide 5 | {"type": "conv2d", "out_channels": 5, "kernel_size": 3, "groups": 3}
layers[0].out_channels | {"type": "conv2d", "out_channels": 0, "kernel_size": 3}
layers[0].kernel_size | {"type": "conv2d", "out_channels": 4, "kernel_size": [3]}
layers[0].padding | {"type": "max_pool2d", "kernel_size": 2, "padding": 2}
layers[0].padding | {"type": "blur_pool2d", "padding": 2}
layers[0].kernel_size | {"type": "blur_pool2d", "kernel_size": 8}
layers[0].p | {"type": "dropout", "p": 1}
inplace | {"type": "relu", "inplace": true}
layers[0].layers | {"type": "residual", "layers": []}
layers[0].layers[0].type | {"type": "residual", "layers": [{"type": "rel"}]}
[layer] 2: weight would be | {"type": "flatten"}, {"type": "linear", "out_features": 16777216}, {"type": "linear", "out_features": 16777216}
)table"))
    CHECK(contains(list_error(row.at(1)), row.at(0)));
  const std::string wide =
      R"({"type": "conv2d", "out_channels": 16777216, "kernel_size": 1024, "padding": 1024})";
  CHECK(contains(list_error(wide + "," + wide + "," + wide), "2^40"));
  // The same of models, which have an input of their own.
  for (const auto& row : test::rows_of(R"table(
layers | 4 4 1 | {"type": "sequential"}
did you mean 'resnet20' | 4 4 1 | {"type": "resnet21"}
stem | 4 4 1 | {"type": "resnet20", "stem": "cifar"}
cifar | 4 4 1 | {"type": "resnet18", "stem": "cifra"}
the nearest are 28 and 34 | 8 8 3 | {"type": "wide_resnet", "depth": 29}
or the classifier "cifar" | 32 32 3 | {"type": "vgg11"}
32×32 pixels or more | 28 28 1 | {"type": "vgg11", "classifier": "cifar"}
hidden | 4 4 1 | {"type": "mlp", "hidden": [8, 0]}
num_classes | 4 4 1 | {"type": "mlp", "num_classes": 0}
type | 4 4 1 | {}
)table"))
    CHECK(contains(model_error(row.at(2), shape_from(row.at(1))), row.at(0)));
}

TEST_CASE("layers/errors: two tensors of one name") {
  class Twice : public Layer {
    Shape build(const Shape& input) override {
      add_parameter("w", {1}, Init::constant(0));
      add_buffer("w", {1}, Init::constant(0));
      return input;
    }
    Variable compute(const Variable& x, Pass&) override { return x; }
  };
  CHECK(fails(ExitCode::kUsage, "two tensors are named w",
              [] { Model(std::make_unique<Twice>(), {3}); }));
}

TEST_CASE(
    "layers/errors: batches that do not fit the declared shape, and what a backend says, name the "
    "layer") {
  const auto model = model_from(
      R"({"type": "sequential", "layers": [{"type": "flatten"}, {"type": "batch_norm"}, {"type": "linear", "out_features": 10}]})",
      {1, 1, 4});
  model->allocate(meta_backend(), DType::kFloat32);
  Pass pass{meta_backend()};
  pass.training = true;
  const auto run = [&](const Shape& shape, DType dtype) {
    model->forward(Variable(Tensor(meta_backend(), shape, dtype)), pass);
  };
  CHECK_THROWS_WITH_AS(run({2, 1, 2, 2}, DType::kFloat32),
                       "[layer] model: an input of 2×1×2×2, but batches of 1×1×4 were declared",
                       Error);
  CHECK_THROWS_WITH_AS(run({2, 1, 1, 4}, DType::kFloat64),
                       "[layer] 1.weight is fp32, but its input is fp64", Error);
  CHECK(fails(ExitCode::kUsage, "[layer] 1: [batch_norm] one value per channel", [&] {
    run({1, 1, 1, 4}, DType::kFloat32);
  }));
  CHECK_NOTHROW(run({2, 1, 1, 4}, DType::kFloat32));
}

TEST_CASE("layers/describe: every maker declares its keys without input") {
  register_builtin_layers();
  register_builtin_models();
  const auto keys = [](const ConfigSection& section) {
    std::vector<std::string> result;
    for (const ConfigKey& key : section.declared()) result.push_back(key.path);
    return result;
  };
  for (const std::string& name : layers().names()) {
    CAPTURE(name);
    ConfigSection section = ConfigSection::describe();
    CHECK(layers().make(name, "", section) != nullptr);
    CHECK_FALSE(layers().summary(name).empty());
    if (name == "conv2d") {
      CHECK(keys(section) == std::vector<std::string>{"out_channels", "kernel_size", "stride",
                                                      "padding", "dilation", "groups", "bias"});
    }
    if (name == "residual") CHECK(keys(section) == std::vector<std::string>{"layers", "shortcut"});
  }
  for (const std::string& name : models().names()) {
    CAPTURE(name);
    ConfigSection section = ConfigSection::describe();
    CHECK(models().make(name, "", section, ModelOutputs{}) != nullptr);
    CHECK_FALSE(models().summary(name).empty());
    if (name == "wide_resnet")
      CHECK(keys(section) == std::vector<std::string>{"depth", "width", "dropout"});
    if (name == "resnet18") CHECK(keys(section) == std::vector<std::string>{"stem", "blur_pool"});
  }
}

TEST_CASE("layers/errors: images of another size than declared, where the model can follow") {
  const std::string body =
      R"({"type": "sequential", "layers": [{"type": "conv2d", "out_channels": 4, "kernel_size": 3, "stride": 2},
    {"type": "batch_norm"}, {"type": "relu"}, {"type": "max_pool2d", "kernel_size": 2}, )";
  const std::string pooled =
      body + R"({"type": "global_avg_pool"}, {"type": "linear", "out_features": 10}]})";
  const std::string flat =
      body + R"({"type": "flatten"}, {"type": "linear", "out_features": 10}]})";
  const auto made = model_from(pooled, {8, 8, 3}), other = model_from(pooled, {13, 11, 3});
  CHECK_NOTHROW(made->check_takes({13, 11, 3}));
  for (const auto& model : {made.get(), other.get()}) {
    model->allocate(cpu(), DType::kFloat64);
    model->initialise(3);
  }
  const Tensor x = noise_tensor(1, {2, 13, 11, 3});
  Pass pass{cpu()};
  CHECK(numbers_of(made->forward(Variable(x), pass).value()) ==
        numbers_of(other->forward(Variable(x), pass).value()));

  const auto fixed = model_from(flat, {8, 8, 3});
  const std::string text = error_of(ExitCode::kUsage, [&] { fixed->check_takes({13, 11, 3}); });
  CHECK(contains(text,
                 "was made for 8×8×3 and does not take 13×11×3 ([layer] 5: an input of 1×24, but "
                 "batches of 4 were declared)"));
  CHECK(contains(text, "global pooling"));
  CHECK(fails(ExitCode::kUsage, "does not take 13×11×1", [&] { made->check_takes({13, 11, 1}); }));
  CHECK(fails(ExitCode::kUsage, "does not take 2×2×3", [&] { made->check_takes({2, 2, 3}); }));
}
