#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "tests/cuda/compare.h"
#include "tests/cuda/support.h"

namespace starling::tests {
namespace {

constexpr LossKind kTargetLosses[] = {LossKind::kCrossEntropy, LossKind::kFocal,    LossKind::kLogistic,
                                      LossKind::kSquared,      LossKind::kAbsolute, LossKind::kHuber};
const Shape kTargetTables[] = {{1, 1}, {16, 10}, {3, 2}, {2, 700}, {70, 33}};

std::vector<std::int32_t> scattered_labels(const Shape& shape) {
  std::vector<std::int32_t> result;
  for (std::int64_t r = 0; r < shape[0]; ++r) result.push_back(static_cast<std::int32_t>((r * 7919 + 3) % shape[1]));
  return result;
}

}  // namespace

TEST_CASE("cuda/target_loss: values and gradients are the CPU's, for class numbers and for probabilities") {
  in_every_order([] {
    for (const Shape& shape : kTargetTables) {
      CAPTURE(shape.text());
      for (const LossKind kind : kTargetLosses) {
        CAPTURE(static_cast<int>(kind));
        for (const bool by_number : {true, false}) {
          CAPTURE(by_number);
          // Probabilities are fp32 beside outputs in low precision.
          const auto call = [&](Backend& b, const Tensor& x, const Tensor& loss, const Tensor& dx) {
            const DType wide = x.dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
            Given shares = random_given(shape, 5);
            for (double& share : shares.numbers) share = static_cast<double>(static_cast<float>(std::abs(share)));
            b.target_loss({.kind = kind,
                           .x = x,
                           .targets = by_number ? int_tensor(b, scattered_labels(shape), {shape[0]}) : placed(b, shares, wide, 1),
                           .loss = loss,
                           .dx = dx,
                           .parameter = kind == LossKind::kHuber   ? 0.7
                                        : kind == LossKind::kFocal ? 1.5
                                                                   : 0.0,
                           .label_smoothing = kind == LossKind::kCrossEntropy ? 0.1 : 0.0,
                           .scale = 1.0 / 16,
                           .gradient_scale = 8.0});
          };
          compare({.in = {random_given(shape, 1, 4.0)},
                   .out = {zeros(shape)},
                   .call = [&](Backend& b, const auto& in, const auto& out) { call(b, in[0], Tensor(), out[0]); },
                   .agreement = Agreement::kClose});
          compare({.in = {random_given(shape, 1, 4.0)},
                   .out = {zeros({1})},
                   .call = [&](Backend& b, const auto& in, const auto& out) { call(b, in[0], out[0], Tensor()); },
                   .agreement = Agreement::kClose,
                   .wide_out = true});
        }
      }
    }
  });
}

TEST_CASE("cuda/target_loss: a label outside the classes makes its own row NaN") {
  const Shape shape{3, 5};
  for (const std::int32_t label : {-1, 5, 1000000}) {
    CAPTURE(label);
    for (const LossKind kind : kTargetLosses) {
      Tensor loss(gpu(), {1}, DType::kFloat32);
      const Tensor x = placed(gpu(), random_given(shape, 1), DType::kFloat32, 0), dx = placed(gpu(), zeros(shape), DType::kFloat32, 0);
      gpu().target_loss({.kind = kind, .x = x, .targets = int_tensor(gpu(), {2, label, 4}, {3}), .loss = loss, .dx = dx, .parameter = 1.0});
      CHECK(std::isnan(numbers_of(loss)[0]));
      const auto gradient = numbers_of(dx);
      for (std::size_t i = 0; i < gradient.size(); ++i) CHECK(std::isnan(gradient[i]) == (i / 5 == 1));
    }
  }
}

TEST_CASE("cuda/target_loss: predictions are counted as the CPU counts them, ties and NaN too") {
  const auto counts_of = [](Backend& b, const Given& logits, DType dtype, const std::vector<std::int32_t>& labels) {
    const std::int64_t classes = logits.shape[1];
    const Tensor counts(b, {classes, classes + 1}, DType::kFloat64);
    b.fill(counts, 2.0);
    b.confusion_counts({placed(b, logits, dtype, 1), int_tensor(b, labels, {logits.shape[0]}), counts});
    return numbers_of(counts);
  };
  in_every_order([&] {
    for (const Shape& shape : kTargetTables) {
      CAPTURE(shape.text());
      for (const DType dtype : kFloatingTypes) {
        Given logits = random_given(shape, 1, 3.0);
        for (double& x : logits.numbers) x = std::round(x);
        if (shape[1] > 1) logits.numbers[1] = std::numeric_limits<double>::quiet_NaN();
        const auto found = counts_of(gpu(), logits, dtype, scattered_labels(shape));
        CHECK(found == counts_of(plain_cpu(), logits, dtype, scattered_labels(shape)));
        double sum = 0.0;
        for (const double count : found) sum += count - 2.0;
        CHECK(sum == static_cast<double>(shape[0]));
      }
    }
    // One outside the classes counts nowhere.
    CHECK(counts_of(gpu(), {{1, 2, 3, 4}, {2, 2}}, DType::kFloat32, {0, 7}) == std::vector<double>{2, 3, 2, 2, 2, 2});
  });
}

TEST_CASE("cuda/target_loss: what does not belong together is refused") {
  const Tensor x(gpu(), {2, 3}, DType::kFloat16), labels(gpu(), {2}, DType::kInt32), loss(gpu(), {1}, DType::kFloat32);
  const Tensor counts(gpu(), {3, 4}, DType::kFloat64);
  CHECK_THROWS_AS(gpu().target_loss({.x = labels, .targets = labels, .loss = loss}), Error);
  CHECK_THROWS_AS(gpu().target_loss({.x = x, .targets = x, .loss = loss}), Error);  // not fp32
  CHECK_THROWS_AS(gpu().target_loss({.x = x, .targets = Tensor(), .loss = loss}), Error);
  CHECK_THROWS_AS(gpu().target_loss({.x = x, .targets = labels, .loss = Tensor(gpu(), {1}, DType::kFloat16)}), Error);
  CHECK_THROWS_AS(gpu().confusion_counts({x, labels, Tensor(gpu(), {3, 3}, DType::kFloat64)}), Error);
  CHECK_THROWS_AS(gpu().confusion_counts({x, Tensor(), counts}), Error);
}

}  // namespace starling::tests
