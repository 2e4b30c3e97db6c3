#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "core/config.h"
#include "core/safetensors.h"
#include "tests/layers/support.h"

using namespace starling;
using namespace starling::testing;

namespace {

nlohmann::json golden() { return read_json_file("golden/models/names.json"); }

template <class T>
nlohmann::json listed(const std::vector<T*>& tensors) {
  nlohmann::json result = nlohmann::json::array();
  for (const T* tensor : tensors) {
    TensorLayout layout = TensorLayout::kPlain;
    if constexpr (std::is_same_v<T, Parameter>) layout = tensor->layout;
    const Shape shape = file_shape(tensor->shape, layout);
    result.push_back({tensor->name, std::vector<std::int64_t>(shape.sizes().begin(), shape.sizes().end())});
  }
  return result;
}

/// A net for one size has weights that count its pixels.
Shape image_for(const std::string& model) { return model == "airbench" ? Shape{32, 32, 3} : Shape{224, 224, 3}; }

}  // namespace

TEST_CASE("layers/names: tensors are named, shaped and ordered as PyTorch's") {
  const nlohmann::json tensors = golden()["tensors"];
  REQUIRE(tensors.size() == 9);
  for (const auto& [name, expected] : tensors.items()) {
    const auto model = model_from(R"({"type": ")" + name + R"("})", image_for(name));
    CAPTURE(name);
    CHECK(listed(model->parameters()) == expected["parameters"]);
    CHECK(listed(model->buffers()) == expected["buffers"]);
    for (std::size_t i = 0; i < model->parameters().size(); ++i) CHECK(model->parameters()[i]->index == static_cast<int>(i));
  }
}

TEST_CASE("layers/names: blurs add no tensors, and a convolution that goes without its stride gives the same image") {
  for (const std::string name : {"resnet20", "resnet18", "resnet50"}) {
    CAPTURE(name);
    const auto plain = model_from(R"({"type": ")" + name + R"("})", {224, 223, 3});
    const auto blurred = model_from(R"({"type": ")" + name + R"(", "blur_pool": true})", {224, 223, 3});
    CHECK(listed(blurred->parameters()) == listed(plain->parameters()));
    CHECK(listed(blurred->buffers()) == listed(plain->buffers()));
    CHECK(blurred->output_shape() == plain->output_shape());
  }
}

TEST_CASE("layers/names: parameter counts of all image models") {
  const nlohmann::json counts = golden()["parameter_counts"];
  REQUIRE(counts.size() == 16);
  for (const auto& [name, expected] : counts.items()) {
    CAPTURE(name);
    CHECK(model_from(R"({"type": ")" + name + R"("})", image_for(name))->parameter_count() == expected.get<std::int64_t>());
  }
}

TEST_CASE("layers/names: a small classifier of vgg11 is one linear layer, and batch norms move the numbers") {
  const auto model = model_from(R"({"type": "vgg11", "classifier": "cifar", "batch_norm": true})", {32, 32, 3});
  const auto& parameters = model->parameters();
  CHECK(parameters[2]->name == "features.1.weight");
  CHECK(parameters[4]->name == "features.4.weight");
  CHECK(parameters[parameters.size() - 2]->name == "classifier.weight");
  CHECK(parameters[parameters.size() - 2]->shape == Shape{10, 512});
}

TEST_CASE("layers/names: mlp is named as the sequential that it is") {
  const auto names = [](const Model& model) {
    std::vector<std::string> result;
    for (const Parameter* parameter : model.parameters()) result.push_back(parameter->name);
    return result;
  };
  const std::vector<std::string> expected{"1.weight", "1.bias", "3.weight", "3.bias", "5.weight", "5.bias"};
  CHECK(names(*model_from(R"({"type": "mlp", "hidden": [8, 6]})", {4, 4, 1})) == expected);
  CHECK(names(*model_from(R"({"type": "sequential", "layers": [{"type": "flatten"}, {"type": "linear", "out_features": 8}, {"type": "relu"},
      {"type": "linear", "out_features": 6}, {"type": "relu"}, {"type": "linear", "out_features": 10}]})",
                          {4, 4, 1})) == expected);
  CHECK(names(*model_from(R"({"type": "mlp", "hidden": []})", {4, 4, 1})) == std::vector<std::string>{"1.weight", "1.bias"});
}

TEST_CASE("layers/names: fused layers and nested ones keep their names") {
  const auto model = model_from(R"({"type": "sequential", "layers": [
      {"type": "residual", "layers": [{"type": "batch_norm"}, {"type": "relu"}, {"type": "conv2d", "out_channels": 2, "kernel_size": 1, "bias": false}],
       "shortcut": [{"type": "conv2d", "out_channels": 2, "kernel_size": 1}]},
      {"type": "relu"}, {"type": "sequential", "layers": [{"type": "batch_norm"}]}, {"type": "relu"}, {"type": "global_avg_pool"},
      {"type": "linear", "out_features": 10}]})",
                                {4, 4, 1});
  std::vector<std::string> names;
  for (const Parameter* parameter : model->parameters()) names.push_back(parameter->name);
  CHECK(names == std::vector<std::string>{"0.layers.0.weight", "0.layers.0.bias", "0.layers.2.weight", "0.shortcut.0.weight",
                                          "0.shortcut.0.bias", "2.0.weight", "2.0.bias", "5.weight", "5.bias"});
  names.clear();
  for (const ModelBuffer* buffer : model->buffers()) names.push_back(buffer->name);
  CHECK(names == std::vector<std::string>{"0.layers.0.running_mean", "0.layers.0.running_var", "0.layers.0.num_batches_tracked",
                                          "2.0.running_mean", "2.0.running_var", "2.0.num_batches_tracked"});
}
