#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "core/operations/convolutions.h"
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
  for (double value : x)
    m.deviation += (value - m.mean) * (value - m.mean) / static_cast<double>(x.size());
  m.deviation = std::sqrt(m.deviation);
  return m;
}

std::unique_ptr<Model> initialised(const std::string& json, const Shape& input,
                                   std::uint64_t seed = 1) {
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
  const auto model = initialised(
      R"({"type": "sequential", "layers": [{"type": "conv2d", "out_channels": 64, "kernel_size": 3, "groups": 2},
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

TEST_CASE(
    "layers/init: resnet18 is kaiming normal over fan out, its classifier PyTorch's default") {
  const auto model = initialised(R"({"type": "resnet18"})", {32, 32, 3});
  check_distribution(find(*model, "conv1.weight"), std::sqrt(2.0 / (64 * 49)), false);
  check_distribution(find(*model, "layer2.0.conv1.weight"), std::sqrt(2.0 / (128 * 9)), false);
  check_distribution(find(*model, "layer2.0.downsample.0.weight"), std::sqrt(2.0 / 128), false);
  check_distribution(find(*model, "fc.weight"), 1 / std::sqrt(3.0 * 512), true);
}

TEST_CASE("layers/init: wide_resnet is kaiming normal over fan out, its classifier's bias 0") {
  const auto model = initialised(R"({"type": "wide_resnet", "depth": 10, "width": 2})", {8, 8, 3});
  check_distribution(find(*model, "conv1.weight"), std::sqrt(2.0 / (16 * 9)), false);
  check_distribution(find(*model, "block2.layer.0.convShortcut.weight"), std::sqrt(2.0 / 64),
                     false);
  check_distribution(find(*model, "fc.weight"), 1 / std::sqrt(3.0 * 128), true);
  CHECK(numbers_of(find(*model, "fc.bias").value) == std::vector<double>(10, 0.0));
}

TEST_CASE(
    "layers/init: vgg11 is kaiming normal over fan out, its linear layers N(0, 0.01²), biases 0") {
  const auto model = initialised(R"({"type": "vgg11", "classifier": "cifar"})", {32, 32, 3});
  check_distribution(find(*model, "features.0.weight"), std::sqrt(2.0 / (64 * 9)), false);
  check_distribution(find(*model, "classifier.weight"), 0.01, false);
  CHECK(numbers_of(find(*model, "features.3.bias").value) == std::vector<double>(128, 0.0));
  CHECK(numbers_of(find(*model, "classifier.bias").value) == std::vector<double>(10, 0.0));
}

TEST_CASE("layers/init: numbers depend on seed and tensor alone, and differ between both") {
  const std::string json = R"({"type": "mlp", "hidden": [6, 6, 6]})";
  const auto a = initialised(json, {2, 3, 1}), b = initialised(json, {2, 3, 1}),
             other = initialised(json, {2, 3, 1}, 2);
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

TEST_CASE("layers/init: mobilenet_v2 and convnext_tiny begin as torchvision's") {
  const auto mobile = initialised(R"({"type": "mobilenet_v2"})", {32, 32, 3});
  check_distribution(find(*mobile, "features.0.0.weight"), std::sqrt(2.0 / (32 * 9)), false);
  // fan out of all groups
  check_distribution(find(*mobile, "features.17.conv.1.0.weight"), std::sqrt(2.0 / (960 * 9)),
                     false);
  check_distribution(find(*mobile, "classifier.1.weight"), 0.01, false);
  const auto next = initialised(R"({"type": "convnext_tiny"})", {32, 32, 3});
  check_distribution(find(*next, "features.1.0.block.0.weight"), 0.02, false);
  check_distribution(find(*next, "features.7.2.block.5.weight"), 0.02, false);
  CHECK(numbers_of(find(*next, "features.1.0.layer_scale").value) == std::vector<double>(96, 1e-6));
  CHECK(numbers_of(find(*next, "features.1.0.block.3.bias").value) ==
        std::vector<double>(384, 0.0));
}

TEST_CASE(
    "layers/init: airbench whitens the patches of the first images, and its convolutions begin as "
    "copies of their channels") {
  const auto model = model_from(R"({"type": "airbench"})", {27, 26, 3});
  model->allocate(cpu(), DType::kFloat64);
  CHECK(model->first_samples() == 5000);
  const Shape batch{40, 27, 26, 3};
  const Tensor images = noise_tensor(5, batch);
  FirstSamples first{batch.without_batch(), numbers_of(images)};
  // Channels of different size that go together, so that there is something to whiten.
  for (std::size_t i = 0; i < first.numbers.size(); i += 3)
    first.numbers[i + 1] = 3 * first.numbers[i] + 0.1 * first.numbers[i + 1];
  cpu().copy_from_host(first.numbers.data(), images);
  model->initialise(1, first);
  const Parameter& weight = find(*model, "0.weight");
  CHECK_FALSE(weight.trainable);
  CHECK(numbers_of(find(*model, "0.bias").value) == std::vector<double>(24, 0.0));
  const Tensor y(cpu(), {40, 26, 25, 24}, DType::kFloat64);
  cpu().conv2d_forward(
      {.x = images, .weight = weight.value, .bias = {}, .y = y, .window = {.kernel = {2, 2}}});
  const std::vector<double> out = numbers_of(y);
  double off = 0.0, least = 1e300, most = 0.0;
  for (std::size_t a = 0; a < 12; ++a) {
    for (std::size_t b = 0; b < 12; ++b) {
      double sum = 0.0;
      for (std::size_t i = 0; i < out.size(); i += 24) sum += out[i + a] * out[i + b];
      sum /= static_cast<double>(out.size() / 24);
      if (a != b) off = std::max(off, std::abs(sum));
      if (a == b) {
        least = std::min(least, sum);
        most = std::max(most, sum);
      }
    }
  }
  CHECK(off < 1e-12);
  CHECK(most < 1.0);   // λ/(λ + 0.0005)
  CHECK(least > 0.3);  // the smallest λ is that of what the second channel has of its own
  const std::vector<double> w = numbers_of(weight.value);
  for (std::size_t i = 0; i < w.size() / 2; ++i) CHECK(w[w.size() / 2 + i] == -w[i]);

  const std::vector<double> conv = numbers_of(find(*model, "2.conv1.weight").value);  // 64×3×3×24
  for (std::size_t o = 0; o < 24; ++o) {
    for (std::size_t i = 0; i < std::size_t{9} * 24; ++i)
      CHECK(conv[o * 9 * 24 + i] == (i == 4 * 24 + o ? 1.0 : 0.0));
  }
  CHECK(std::abs(conv[std::size_t{30} * 9 * 24]) > 0.0);
  // Without images the filters are what was drawn.
  model->initialise(1);
  CHECK(numbers_of(weight.value) != w);
}
