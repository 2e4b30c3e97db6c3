#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "tests/cuda/compare.h"
#include "tests/cuda/support.h"

namespace starling::tests {
namespace {

std::vector<std::int32_t> random_labels(std::int64_t rows, std::int64_t classes) {
  std::vector<std::int32_t> result;
  for (std::int64_t r = 0; r < rows; ++r) result.push_back(static_cast<std::int32_t>((r * 7919 + 3) % classes));
  return result;
}

const Shape kTables[] = {{1, 1}, {16, 10}, {17, 300}, {3, 2}, {2, 2500}, {70, 33}, {5, 2048}};

}  // namespace

TEST_CASE("cuda/loss: softmax cross entropy and its gradient") {
  in_every_order([] {
    for (const Shape& shape : kTables) {
      CAPTURE(shape.text());
      for (const auto& [smoothing, scale] : {std::pair(0.0, 1.0), std::pair(0.1, 1.0 / 64)}) {
        CAPTURE(smoothing);
        const auto call = [&, smooth = smoothing, factor = scale](Backend& b, const Tensor& logits, const Tensor& loss,
                                                                  const Tensor& dlogits) {
          b.softmax_cross_entropy({.logits = logits,
                                   .labels = int_tensor(b, random_labels(shape[0], shape[1]), {shape[0]}),
                                   .loss = loss,
                                   .dlogits = dlogits,
                                   .label_smoothing = smooth,
                                   .scale = factor,
                                   .gradient_scale = factor == 1.0 ? 1.0 : 1024.0});
        };
        // The gradient; then the loss, which is fp32 for low precision.
        compare({.in = {random_given(shape, 1, 8.0)},
                 .out = {zeros(shape)},
                 .call = [&](Backend& b, const auto& in, const auto& out) { call(b, in[0], Tensor(), out[0]); },
                 .agreement = Agreement::kClose});
        compare({.in = {random_given(shape, 1, 8.0)},
                 .out = {random_given({1}, 2)},
                 .call = [&](Backend& b, const auto& in, const auto& out) { call(b, in[0], out[0], Tensor()); },
                 .agreement = Agreement::kClose,
                 .wide_out = true});
      }
    }
  });
}

TEST_CASE("cuda/loss: large logits do not overflow, and NaN shows") {
  const auto loss_of = [](const std::vector<double>& row, DType dtype) {
    const auto n = static_cast<std::int64_t>(row.size());
    Tensor loss(gpu(), {1}, dtype == DType::kFloat64 ? dtype : DType::kFloat32);
    gpu().softmax_cross_entropy({.logits = placed(gpu(), {row, {1, n}}, dtype, 0), .labels = int_tensor(gpu(), {1}, {1}), .loss = loss});
    return numbers_of(loss)[0];
  };
  for (const DType dtype : kFloatingTypes) {
    CAPTURE(name_of(dtype));
    CHECK(loss_of({60000.0, 0.0}, dtype) == doctest::Approx(60000.0).epsilon(0.01));
    CHECK(loss_of({-60000.0, 0.0, -50000.0}, dtype) == doctest::Approx(0.0));
    CHECK(std::isnan(loss_of({std::numeric_limits<double>::quiet_NaN(), 0.0}, dtype)));
    CHECK(std::isnan(loss_of({0.0, std::numeric_limits<double>::quiet_NaN(), 1.0}, dtype)));
    CHECK(std::isnan(loss_of({std::numeric_limits<double>::infinity(), 0.0, 1.0}, dtype)));
  }
}

TEST_CASE("cuda/loss: a label outside the classes makes its own row NaN") {
  const Shape shape{3, 5};
  for (const std::int32_t label : {-1, 5, 1000000}) {
    CAPTURE(label);
    Tensor loss(gpu(), {1}, DType::kFloat32), totals(gpu(), {4}, DType::kFloat64);
    const Tensor logits = placed(gpu(), random_given(shape, 1), DType::kFloat32, 0);
    const Tensor dlogits = placed(gpu(), zeros(shape), DType::kFloat32, 0), labels = int_tensor(gpu(), {2, label, 4}, {3});
    gpu().softmax_cross_entropy({.logits = logits, .labels = labels, .loss = loss, .dlogits = dlogits});
    CHECK(std::isnan(numbers_of(loss)[0]));
    const auto gradient = numbers_of(dlogits);
    for (std::size_t i = 0; i < gradient.size(); ++i) CHECK(std::isnan(gradient[i]) == (i / 5 == 1));
    gpu().fill(totals, 0.0);
    gpu().classification_metrics({logits, labels, totals});
    CHECK(std::isnan(numbers_of(totals)[0]));
    CHECK(numbers_of(totals)[2] == 2.0);  // all of the other rows' labels are among the 5 largest of 5
    CHECK(numbers_of(totals)[3] == 3.0);
  }
}

TEST_CASE("cuda/loss: metrics count as the CPU does, ties and NaN too") {
  in_every_order([] {
    for (const Shape& shape : kTables) {
      CAPTURE(shape.text());
      for (const DType dtype : kFloatingTypes) {
        CAPTURE(name_of(dtype));
        Given logits = random_given(shape, 1, 3.0);
        for (std::size_t i = 0; i < logits.numbers.size(); i += 2) logits.numbers[i] = std::round(logits.numbers[i]);  // ties
        const auto run = [&](Backend& b, DType as) {
          Tensor totals(b, {4}, DType::kFloat64);
          const std::vector<double> before = {0.5, 1.0, 2.0, 3.0};
          b.copy_from_host(before.data(), totals);
          // The same numbers on both sides: rounded to dtype first.
          const Given held{numbers_of(placed(plain_cpu(), logits, dtype, 0)), shape};
          b.classification_metrics({placed(b, held, as, 1), int_tensor(b, random_labels(shape[0], shape[1]), {shape[0]}), totals});
          return numbers_of(totals);
        };
        const auto expected = run(plain_cpu(), dtype == DType::kFloat64 ? dtype : DType::kFloat32);
        const auto found = run(gpu(), dtype);
        CHECK(std::abs(found[0] - expected[0]) <=
              (dtype == DType::kFloat64 ? 1e-12 : 1e-6) * std::abs(expected[0]) + 1e-7 * static_cast<double>(shape[0]));
        for (std::size_t i = 1; i < 4; ++i) CHECK(found[i] == expected[i]);
      }
    }
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const std::vector<std::vector<double>> rows = {{1, nan, 0}, {nan, 1, 0}, {1, 1, 1}, {0, 2, 2}};
    for (const auto& row : rows) {
      const auto run = [&](Backend& b) {
        Tensor totals(b, {4}, DType::kFloat64);
        b.fill(totals, 0.0);
        b.classification_metrics({placed(b, {row, {1, 3}}, DType::kFloat32, 0), int_tensor(b, {1}, {1}), totals});
        auto result = numbers_of(totals);
        result[0] = 0.0;
        return result;
      };
      CHECK(run(gpu()) == run(plain_cpu()));
    }
  });
}

TEST_CASE("cuda/loss: what does not belong together is refused") {
  const Tensor logits(gpu(), {2, 3}, DType::kFloat16), labels(gpu(), {2}, DType::kInt32), loss(gpu(), {1}, DType::kFloat32);
  const Tensor totals(gpu(), {4}, DType::kFloat64);
  CHECK_THROWS_AS(gpu().softmax_cross_entropy({.logits = labels, .labels = labels, .loss = loss}), Error);
  CHECK_THROWS_AS(gpu().softmax_cross_entropy({.logits = logits, .labels = loss, .loss = loss}), Error);
  CHECK_THROWS_AS(gpu().softmax_cross_entropy({.logits = logits, .labels = labels, .loss = Tensor(gpu(), {1}, DType::kFloat16)}), Error);
  CHECK_THROWS_AS(gpu().softmax_cross_entropy({.logits = logits, .labels = labels, .loss = loss, .dlogits = loss}), Error);
  CHECK_THROWS_AS(gpu().classification_metrics({logits, labels, loss}), Error);
  CHECK_THROWS_AS(gpu().classification_metrics({logits, Tensor(), totals}), Error);
}

}  // namespace starling::tests
