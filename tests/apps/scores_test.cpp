// What an evaluation counts of rows of scores: against a plain loop.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "apps/training/tasks/metric.h"
#include "core/backend.h"
#include "core/operations/pointwise.h"
#include "kernels/open_backend.h"

namespace starling {

TEST_CASE(
    "metrics: scores' cross entropy, the largest and the five largest, whatever ties, padding and "
    "ignored rows there are") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr std::int64_t kClasses = 7, kPadding = 3;
  const auto backend = open_backend(DeviceType::kCpu, 1);
  // Of the second row three scores are equal, of the third the label's is none; the fourth is
  // ignored.
  const std::vector<std::vector<double>> rows{{0.5, -1.0, 2.0, 0.0, 1.0, -2.0, 0.25},
                                              {1.0, 3.0, 3.0, 0.0, 3.0, 2.0, 2.5},
                                              {0.0, kNan, 1.0, 2.0, 3.0, 4.0, 5.0},
                                              {9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0},
                                              {6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0}};
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const std::int64_t padding : {std::int64_t{0}, kPadding}) {
      for (const std::int32_t third : {1, 6}) {
        const std::vector<std::int32_t> labels{2, 2, third, -100, 5};
        std::vector<double> numbers;
        double loss = 0.0, first = 0.0, fifth = 0.0;
        for (std::size_t r = 0; r < rows.size(); ++r) {
          numbers.insert(numbers.end(), rows[r].begin(), rows[r].end());
          numbers.insert(numbers.end(), static_cast<std::size_t>(padding),
                         -std::numeric_limits<double>::infinity());
          if (labels[r] < 0) continue;
          const auto label = static_cast<std::size_t>(labels[r]);
          double sum = 0.0, before = 0.0;
          for (std::size_t c = 0; c < rows[r].size(); ++c) {
            sum += std::exp(rows[r][c]);
            const bool comes_before =
                !(rows[r][c] <= rows[r][label]) || (rows[r][c] == rows[r][label] && c < label);
            before += c != label && comes_before ? 1.0 : 0.0;
          }
          loss += std::log(sum) - rows[r][label];
          first += before < 1.0 ? 1.0 : 0.0;
          fifth += before < 5.0 ? 1.0 : 0.0;
        }
        const Shape shape{5, kClasses + padding};
        const Tensor wide(*backend, shape, DType::kFloat64), scores(*backend, shape, dtype),
            targets(*backend, {5}, DType::kInt32), totals(*backend, {4}, DType::kFloat64);
        backend->copy_from_host(numbers.data(), wide);
        backend->copy_from_host(labels.data(), targets);
        backend->fill(totals, 1.0);  // they are added to
        backend->cast({.x = wide, .y = scores});
        add_scores(scores, kClasses, targets, true, true, totals);
        std::vector<double> found(4);
        backend->copy_to_host(totals, found.data());
        CHECK(std::isnan(found[0]));
        CHECK(std::isnan(loss));
        CHECK(found[1] == 1.0 + first);
        CHECK(found[2] == 1.0 + fifth);
        CHECK(found[3] == 5.0);
        // Without the row that has no number, the loss too.
        const auto without = [&](const Tensor& tensor, std::int64_t width) {
          return tensor.slice(3 * width, tensor.shape().rank() == 1 ? Shape{2} : Shape{2, width});
        };
        backend->fill(totals, 0.0);
        add_scores(without(scores, shape.back()), kClasses, without(targets, 1), true, false,
                   totals);
        backend->copy_to_host(totals, found.data());
        CHECK(found[0] ==
              doctest::Approx(std::log(std::exp(6.0) + std::exp(5.0) + std::exp(4.0) +
                                       std::exp(3.0) + std::exp(2.0) + std::exp(1.0) + 1.0) -
                              1.0)
                  .epsilon(1e-6));
        CHECK(found[2] == 0.0);
        CHECK(found[3] == 1.0);
      }
    }
  }
}

}  // namespace starling
