#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "tests/layers/support.h"

using namespace starling;
using namespace starling::testing;

namespace {

struct Moments {
  double mean = 0, deviation = 0, largest = 0;
};

Moments moments(const Tensor& tensor) {
  const auto x = numbers_of(tensor);
  Moments m;
  for (double value : x) {
    m.mean += value / static_cast<double>(x.size());
    m.largest = std::max(m.largest, std::abs(value));
  }
  for (double value : x) m.deviation += (value - m.mean) * (value - m.mean) / static_cast<double>(x.size());
  m.deviation = std::sqrt(m.deviation);
  return m;
}

std::unique_ptr<Model> initialised(const std::string& json, const Shape& input, std::uint64_t seed = 1) {
  auto model = model_from(json, input);
  model->allocate(cpu(), DType::kFloat64);
  model->initialise(seed);
  return model;
}

const Parameter& find(const Model& model, const std::string& name) {
  for (const Parameter* parameter : model.parameters()) {
    if (parameter->name == name) return *parameter;
  }
  FAIL("no parameter " << name);
  return *model.parameters()[0];
}

/// Within four standard errors of the mean, and 4/sqrt(n) of the deviation.
void check_distribution(const Parameter& parameter, double deviation, bool uniform) {
  CAPTURE(parameter.name);
  const Moments m = moments(parameter.value);
  const double error = 4.0 / std::sqrt(static_cast<double>(parameter.shape.elements()));
  CHECK(std::abs(m.mean) < error * deviation);
  CHECK(std::abs(m.deviation / deviation - 1.0) < error);
  if (uniform) {
    CHECK(m.largest <= std::sqrt(3.0) * deviation);
  } else if (parameter.shape.elements() > 5000) {
    CHECK(m.largest > 3.0 * deviation);
  }
}

}  // namespace

TEST_CASE("layers/init: PyTorch's default of conv2d and linear is U(±1/sqrt(fan_in))") {
  const auto model = initialised(R"({"type": "sequential", "layers": [{"type": "conv2d", "out_channels": 64, "kernel_size": 3, "groups": 2},
      {"type": "flatten"}, {"type": "linear", "out_features": 10}]})",
                                 {5, 5, 32});
  const double conv = 1 / std::sqrt(3.0 * 9 * 16), linear = 1 / std::sqrt(3.0 * 9 * 64);
  check_distribution(find(*model, "0.weight"), conv, true);
  check_distribution(find(*model, "0.bias"), conv, true);
  check_distribution(find(*model, "2.weight"), linear, true);
  CHECK(moments(find(*model, "2.bias").value).largest <= std::sqrt(3.0) * linear);
}

TEST_CASE("layers/init: resnet20 is kaiming normal over fan in, linear too") {
  const auto model = initialised(R"({"type": "resnet20"})", {8, 8, 3});
  check_distribution(find(*model, "conv1.weight"), std::sqrt(2.0 / 27), false);
  check_distribution(find(*model, "layer3.1.conv2.weight"), std::sqrt(2.0 / 576), false);
  check_distribution(find(*model, "fc.weight"), std::sqrt(2.0 / 64), false);
  CHECK(moments(find(*model, "fc.bias").value).largest <= 1.0 / 8);
  CHECK(numbers_of(find(*model, "bn1.weight").value) == std::vector<double>(16, 1.0));
  CHECK(numbers_of(find(*model, "layer1.0.bn2.bias").value) == std::vector<double>(16, 0.0));
  CHECK(numbers_of(model->buffers()[0]->value) == std::vector<double>(16, 0.0));
  CHECK(numbers_of(model->buffers()[1]->value) == std::vector<double>(16, 1.0));
}

TEST_CASE("layers/init: resnet18 is kaiming normal over fan out, its classifier PyTorch's default") {
  const auto model = initialised(R"({"type": "resnet18"})", {32, 32, 3});
  check_distribution(find(*model, "conv1.weight"), std::sqrt(2.0 / (64 * 49)), false);
  check_distribution(find(*model, "layer2.0.conv1.weight"), std::sqrt(2.0 / (128 * 9)), false);
  check_distribution(find(*model, "layer2.0.downsample.0.weight"), std::sqrt(2.0 / 128), false);
  check_distribution(find(*model, "fc.weight"), 1 / std::sqrt(3.0 * 512), true);
}

TEST_CASE("layers/init: wide_resnet is kaiming normal over fan out, its classifier's bias 0") {
  const auto model = initialised(R"({"type": "wide_resnet", "depth": 10, "width": 2})", {8, 8, 3});
  check_distribution(find(*model, "conv1.weight"), std::sqrt(2.0 / (16 * 9)), false);
  check_distribution(find(*model, "block2.layer.0.convShortcut.weight"), std::sqrt(2.0 / 64), false);
  check_distribution(find(*model, "fc.weight"), 1 / std::sqrt(3.0 * 128), true);
  CHECK(numbers_of(find(*model, "fc.bias").value) == std::vector<double>(10, 0.0));
}

TEST_CASE("layers/init: vgg11 is kaiming normal over fan out, its linear layers N(0, 0.01²), biases 0") {
  const auto model = initialised(R"({"type": "vgg11", "classifier": "cifar"})", {32, 32, 3});
  check_distribution(find(*model, "features.0.weight"), std::sqrt(2.0 / (64 * 9)), false);
  check_distribution(find(*model, "classifier.weight"), 0.01, false);
  CHECK(numbers_of(find(*model, "features.3.bias").value) == std::vector<double>(128, 0.0));
  CHECK(numbers_of(find(*model, "classifier.bias").value) == std::vector<double>(10, 0.0));
}

TEST_CASE("layers/init: numbers depend on seed and tensor alone, and differ between both") {
  const std::string json = R"({"type": "mlp", "hidden": [6, 6, 6]})";
  const auto a = initialised(json, {2, 3, 1}), b = initialised(json, {2, 3, 1}), other = initialised(json, {2, 3, 1}, 2);
  CHECK(numbers_of(a->parameters()[0]->value) == numbers_of(b->parameters()[0]->value));
  CHECK(numbers_of(a->parameters()[0]->value) != numbers_of(other->parameters()[0]->value));
  CHECK(numbers_of(a->parameters()[0]->value) != numbers_of(a->parameters()[2]->value));

  // The same in fp32, rounded.
  const auto single = model_from(json, {2, 3, 1});
  single->allocate(cpu(), DType::kFloat32);
  single->initialise(1);
  const auto exact = numbers_of(a->parameters()[0]->value);
  const auto rounded = single->parameters()[0]->value.span<float>();
  for (std::size_t i = 0; i < exact.size(); ++i) CHECK(rounded[i] == static_cast<float>(exact[i]));
}
