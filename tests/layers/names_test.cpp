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
    result.push_back(
        {tensor->name, std::vector<std::int64_t>(shape.sizes().begin(), shape.sizes().end())});
  }
  return result;
}

/// A net for one size has weights that count its pixels.
Shape image_for(const std::string& model) {
  return model == "airbench" ? Shape{32, 32, 3} : Shape{224, 224, 3};
}

}  // namespace

TEST_CASE("layers/names: tensors are named, shaped and ordered as PyTorch's") {
  const nlohmann::json tensors = golden()["tensors"];
  REQUIRE(tensors.size() == 9);
  for (const auto& [name, expected] : tensors.items()) {
    const auto model = model_from(R"({"type": ")" + name + R"("})", image_for(name));
    CAPTURE(name);
    CHECK(listed(model->parameters()) == expected["parameters"]);
    CHECK(listed(model->buffers()) == expected["buffers"]);
    for (std::size_t i = 0; i < model->parameters().size(); ++i)
      CHECK(model->parameters()[i]->index == static_cast<int>(i));
  }
}

TEST_CASE(
    "layers/names: blurs add no tensors, and a convolution that goes without its stride gives the "
    "same image") {
  for (const std::string name : {"resnet20", "resnet18", "resnet50"}) {
    CAPTURE(name);
    const auto plain = model_from(R"({"type": ")" + name + R"("})", {224, 223, 3});
    const auto blurred =
        model_from(R"({"type": ")" + name + R"(", "blur_pool": true})", {224, 223, 3});
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
    CHECK(model_from(R"({"type": ")" + name + R"("})", image_for(name))->parameter_count() ==
          expected.get<std::int64_t>());
  }
}
