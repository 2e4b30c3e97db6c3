// The losses: against PyTorch's numbers, finite differences and each other.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/operations/losses.h"
#include "layers/functions.h"
#include "tests/layers/support.h"

namespace starling::testing {
namespace {

using functions::TargetLossSettings;

struct Found {
  double value = 0.0;
  std::vector<double> gradient;
};
Found loss_of(const Tensor& x, const Tensor& targets, const TargetLossSettings& settings,
              double scale = 1.0, double seed = 1.0, double loss_scale = 1.0) {
  Tape tape(cpu());
  Pass pass{.backend = cpu(), .tape = &tape, .training = true, .loss_scale = loss_scale};
  const Variable leaf = tape.leaf(x);
  const Variable loss = functions::target_loss(leaf, targets, settings, scale, pass);
  Found found{numbers_of(loss.value())[0], {}};
  tape.backward(loss, seed);
  found.gradient = numbers_of(Tape::gradient(leaf));
  return found;
}

const TargetLossSettings kAllLosses[] = {
    {LossKind::kCrossEntropy}, {LossKind::kCrossEntropy, 0.0, 0.1},
    {LossKind::kFocal, 2.0},   {LossKind::kFocal, 0.5},
    {LossKind::kLogistic},     {LossKind::kSquared},
    {LossKind::kAbsolute},     {LossKind::kHuber, 1.0},
    {LossKind::kHuber, 0.3}};
const char* const kGoldenNames[] = {"cross_entropy",
                                    "cross_entropy smoothed",
                                    "focal",
                                    "focal 0.5",
                                    "bce_with_logits",
                                    "mse",
                                    "l1",
                                    "huber",
                                    "huber 0.3",
                                    "cross_entropy weighted",
                                    "cross_entropy weighted smoothed"};

/// All losses, and those of a softmax with these weights of classes, in the golden file's order.
std::vector<TargetLossSettings> with_weighted(const std::vector<double>& weights) {
  std::vector<TargetLossSettings> all(std::begin(kAllLosses), std::end(kAllLosses));
  for (const double smoothing : {0.0, 0.1}) {
    all.push_back({LossKind::kCrossEntropy, 0.0, smoothing,
                   tensor_of(weights, {static_cast<std::int64_t>(weights.size())})});
  }
  return all;
}

}  // namespace

TEST_CASE(
    "layers/loss: values and gradients are PyTorch's, for class numbers and for probabilities") {
  const nlohmann::json document = read_json_file("golden/losses.json");
  const Shape shape{document["shape"][0].get<std::int64_t>(),
                    document["shape"][1].get<std::int64_t>()};
  const Tensor x = tensor_of(document["outputs"].get<std::vector<double>>(), shape);
  const Tensor labels = labels_of(document["labels"].get<std::vector<std::int32_t>>());
  const Tensor soft = tensor_of(document["soft"].get<std::vector<double>>(), shape);
  const std::vector<TargetLossSettings> losses =
      with_weighted(document["weights"].get<std::vector<double>>());
  REQUIRE(document["cases"].size() == losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const nlohmann::json& item = document["cases"][i];
    REQUIRE(item["name"] == kGoldenNames[i]);
    CAPTURE(kGoldenNames[i]);
    for (const bool by_number : {true, false}) {
      CAPTURE(by_number);
      const nlohmann::json& expected = item[by_number ? "labels" : "soft"];
      const Found found = loss_of(x, by_number ? labels : soft, losses[i]);
      CHECK(found.value == doctest::Approx(expected["value"].get<double>()).epsilon(1e-14));
      for (std::size_t k = 0; k < found.gradient.size(); ++k)
        CHECK(std::abs(found.gradient[k] - expected["gradient"][k].get<double>()) < 1e-15);
      // bf16 holds the outputs to 8 bits; the loss is fp32.
      const Tensor low = cast_to(x, DType::kBFloat16);
      const Found exact =
          loss_of(cast_to(low, DType::kFloat64), by_number ? labels : soft, losses[i]);
      const Found narrow =
          loss_of(low, by_number ? labels : cast_to(soft, DType::kFloat32), losses[i]);
      CHECK(narrow.value == doctest::Approx(exact.value).epsilon(1e-6));
      for (std::size_t k = 0; k < exact.gradient.size(); ++k)
        CHECK(std::abs(narrow.gradient[k] - exact.gradient[k]) <=
              0x1p-8 * std::abs(exact.gradient[k]) + 1e-9);
    }
  }
}

TEST_CASE("layers/loss: finite differences agree in fp64, whatever scales the loss") {
  const Shape shape{3, 4};
  const std::vector<double> x = noise(1, 12);
  std::vector<double> weights = noise(2, 12);
  for (double& w : weights) w = std::abs(w);
  std::vector<TargetLossSettings> losses = with_weighted({0.0, 2.5, 0.75, 1.5});
  losses.push_back({LossKind::kFocal, 2.0, 0.0, losses.back().class_weights});
  for (const TargetLossSettings& settings : losses) {
    CAPTURE(static_cast<int>(settings.kind));
    for (const Tensor& targets : {labels_of({3, 0, 1}), tensor_of(weights, shape)}) {
      const Found found = loss_of(tensor_of(x, shape), targets, settings, 0.5, 3.0, 4.0);
      for (std::size_t i = 0; i < x.size(); ++i) {
        constexpr double kStep = 1e-5;
        std::vector<double> up = x, down = x;
        up[i] += kStep;
        down[i] -= kStep;
        const double difference = loss_of(tensor_of(up, shape), targets, settings, 0.5).value -
                                  loss_of(tensor_of(down, shape), targets, settings, 0.5).value;
        CHECK(found.gradient[i] ==
              doctest::Approx(3.0 * 4.0 * difference / (2 * kStep)).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE(
    "layers/loss: class numbers are one-hot rows, and the plain cross entropy is the same by both "
    "ways") {
  const Shape shape{5, 7};
  const Tensor x = noise_tensor(3, shape);
  const std::vector<std::int32_t> labels{6, 0, 3, 3, 1};
  std::vector<double> rows(35, 0.0);
  for (std::size_t r = 0; r < 5; ++r) rows[r * 7 + static_cast<std::size_t>(labels[r])] = 1.0;
  for (const TargetLossSettings& settings : kAllLosses) {
    const Found a = loss_of(x, labels_of(labels), settings),
                b = loss_of(x, tensor_of(rows, shape), settings);
    if (settings.kind == LossKind::kCrossEntropy) {  // classes take a pass of their own
      CHECK(a.value == doctest::Approx(b.value).epsilon(1e-12));
      CHECK(relative_error(a.gradient, b.gradient) < 1e-12);
    } else {
      CHECK(a.value == b.value);
      CHECK(a.gradient == b.gradient);
    }
  }
  Pass pass{cpu()};
  for (const double smoothing : {0.0, 0.2}) {
    const double by_number = numbers_of(
        functions::cross_entropy(Variable(x), labels_of(labels), smoothing, 0.5, pass).value())[0];
    const double by_rows = numbers_of(
        functions::cross_entropy(Variable(x), tensor_of(rows, shape), smoothing, 0.5, pass)
            .value())[0];
    CHECK(by_number == doctest::Approx(by_rows).epsilon(1e-14));
    const TargetLossSettings focal{LossKind::kFocal, 0.0};
    if (smoothing == 0.0)
      CHECK(loss_of(x, labels_of(labels), focal, 0.5).value ==
            doctest::Approx(by_number).epsilon(1e-14));
  }
}

TEST_CASE(
    "layers/loss: with weights of classes a batch of labels is its weighted mean, one of no weight "
    "is nothing") {
  const std::vector<double> x = noise(4, 12);
  const Tensor weights = tensor_of({0.0, 1.0, 4.0}, {3});
  for (const LossKind kind : {LossKind::kCrossEntropy, LossKind::kFocal}) {
    const double gamma = kind == LossKind::kFocal ? 2.0 : 0.0;
    const TargetLossSettings weighted{kind, gamma, 0.0, weights}, plain{kind, gamma};
    const auto of_row = [&](std::ptrdiff_t row, std::int32_t label) {
      return loss_of(tensor_of({x.begin() + 3 * row, x.begin() + 3 * row + 3}, {1, 3}),
                     labels_of({label}), plain)
          .value;
    };
    const std::vector<std::int32_t> labels{2, 0, 1, 2};
    const double mean = (4.0 * of_row(0, 2) + of_row(2, 1) + 4.0 * of_row(3, 2)) / 9.0;
    CHECK(loss_of(tensor_of(x, {4, 3}), labels_of(labels), weighted).value ==
          doctest::Approx(mean).epsilon(1e-14));
    const Found none = loss_of(tensor_of(x, {4, 3}), labels_of({0, 0, 0, 0}), weighted);
    CHECK(none.value == 0.0);
    CHECK(none.gradient == std::vector<double>(12, 0.0));
  }
}

TEST_CASE("layers/loss: outputs far from anything overflow nowhere, and NaN shows") {
  const double inf = std::numeric_limits<double>::infinity(),
               nan = std::numeric_limits<double>::quiet_NaN();
  const Shape shape{1, 3};
  for (const TargetLossSettings& settings : kAllLosses) {
    CAPTURE(static_cast<int>(settings.kind));
    const Found far = loss_of(tensor_of({800.0, -800.0, 0.0}, shape), labels_of({0}), settings);
    CHECK(std::isfinite(far.value));
    CHECK(std::all_of(far.gradient.begin(), far.gradient.end(),
                      [](double g) { return std::isfinite(g); }));
    CHECK(std::isnan(loss_of(tensor_of({1.0, nan, 0.0}, shape), labels_of({0}), settings).value));
    CHECK_FALSE(
        std::isfinite(loss_of(tensor_of({-inf, 1.0, 0.0}, shape), labels_of({0}), settings).value));
  }
  CHECK(loss_of(tensor_of({800.0, -800.0, 0.0}, shape), labels_of({0}), {LossKind::kLogistic})
            .value == doctest::Approx(std::log(2.0) / 3.0));
  CHECK(loss_of(tensor_of({-800.0, 800.0, 0.0}, shape), labels_of({0}), {LossKind::kFocal, 2.0})
            .value == doctest::Approx(1600.0));
}

TEST_CASE(
    "layers/loss: a label outside the classes names sample and label, and outputs of another shape "
    "both shapes") {
  const Tensor x = noise_tensor(1, {2, 3});
  Pass pass{cpu()};
  CHECK(fails(ExitCode::kUsage, "the label 3 of sample 1", [&] {
    functions::target_loss(Variable(x), labels_of({0, 3}), {}, 1.0, pass);
  }));
  CHECK(fails(ExitCode::kUsage, "2×3", [&] {
    functions::target_loss(Variable(x), labels_of({0, 1, 2}), {}, 1.0, pass);
  }));
  CHECK(fails(ExitCode::kUsage, "3×2", [&] {
    functions::target_loss(Variable(x), noise_tensor(1, {3, 2}), {}, 1.0, pass);
  }));
}

}  // namespace starling::testing
