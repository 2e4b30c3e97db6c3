#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "tests/cuda/compare.h"
#include "tests/cuda/support.h"

namespace starling::tests {
namespace {

double value_of(const Tensor& x, std::size_t i = 0) { return numbers_of(x)[i]; }
Tensor doubles(Backend& backend, const std::vector<double>& numbers) {
  Tensor result(backend, {static_cast<std::int64_t>(numbers.size())}, DType::kFloat64);
  backend.copy_from_host(numbers.data(), result);
  return result;
}

}  // namespace

TEST_CASE("cuda/reduce: sums of rows") {
  in_every_order([] {
    for (const Shape& shape : {Shape{1, 1}, Shape{1, 10}, Shape{77, 3}, Shape{1500, 16}, Shape{300, 130}, Shape{40, 520}, Shape{9000, 2},
                               Shape{2, 3, 5, 8}, Shape{33, 1000}}) {
      CAPTURE(shape.text());
      for (const bool accumulate : {false, true}) {
        compare({.in = {random_given(shape, 1)},
                 .out = {random_given({shape.back()}, 2)},
                 .call =
                     [&](Backend& b, const auto& in, const auto& out) {
                       b.sum_rows({in[0], out[0], accumulate});
                     },
                 .agreement = Agreement::kClose,
                 .wide_out = true});
      }
    }
  });
}

TEST_CASE("cuda/reduce: squared distances have the CPU's bits") {
  in_every_order([] {
    for (const std::int64_t n : {1, 31, 32, 33, 255, 4095, 4096, 4097, 8192, 50003}) {
      CAPTURE(n);
      for (const DType dtype : kFloatingTypes) {
        CAPTURE(name_of(dtype));
        const Given a = random_given({n}, 1), b = random_given({n}, 2);
        for (const std::int64_t offset : {0, 1}) {
          for (const bool difference : {false, true}) {
            CAPTURE(difference);
            const auto run = [&](Backend& backend) {
              const Tensor totals = doubles(backend, {1.0, 2.0, 3.0});
              const Tensor x = placed(backend, a, dtype, offset), y = placed(backend, b, dtype, 2 * offset);
              backend.squared_distance({x, difference ? y : Tensor(), totals, 1});
              return numbers_of(totals);
            };
            const auto found = run(gpu()), expected = run(plain_cpu());
            // A GPU's fused multiply-add keeps bits of products that fp64 does not hold: those of differences, and of fp64.
            const bool rounds = on_gpu() && (difference || dtype == DType::kFloat64);
            CHECK(found[0] == 1.0);
            CHECK(found[2] == 3.0);
            CHECK(std::abs(found[1] - expected[1]) <= (rounds ? 1e-14 * expected[1] : 0.0));
          }
        }
      }
    }
  });
}

TEST_CASE("cuda/reduce: squared distances of more terms than chains have the CPU's bits") {
  const Given given = random_given({70 * 4096 + 7}, 3);
  const auto run = [&](Backend& backend) {
    const Tensor totals = doubles(backend, {0.5});
    backend.squared_distance({placed(backend, given, DType::kFloat32, 0), Tensor(), totals, 0});
    return value_of(totals);
  };
  const double expected = run(plain_cpu());
  in_every_order([&] { CHECK(run(gpu()) == expected); });
}

TEST_CASE("cuda/reduce: squared distances notice numbers that are not finite") {
  Given given = random_given({5000}, 1);
  given.numbers[4990] = std::numeric_limits<double>::infinity();
  const Tensor totals = doubles(gpu(), {0.0});
  gpu().squared_distance({placed(gpu(), given, DType::kFloat16, 0), Tensor(), totals, 0});
  CHECK(std::isinf(value_of(totals)));
  given.numbers[7] = std::numeric_limits<double>::quiet_NaN();
  gpu().squared_distance({placed(gpu(), given, DType::kFloat32, 0), Tensor(), totals, 0});
  CHECK(std::isnan(value_of(totals)));
}

TEST_CASE("cuda/reduce: gradient control is the CPU's") {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const double odd : {0.0, 7.0, infinity, nan}) {
    CAPTURE(odd);
    for (const double clip : {0.0, 0.1, 100.0}) {
      CAPTURE(clip);
      for (const bool check : {false, true}) {
        const auto run = [&](Backend& backend) {
          const Tensor totals = doubles(backend, {50.0, 1.5, odd, 0.25, 60.0}), control = doubles(backend, {9.0, 9.0});
          backend.gradient_control({totals, 1, 3, 1.0 / 3.0, clip, check, control});
          return std::pair(value_of(control, 0), value_of(control, 1));
        };
        CHECK(run(gpu()) == run(plain_cpu()));
      }
    }
  }
}

TEST_CASE("cuda/reduce: what does not belong together is refused") {
  const Tensor four(gpu(), {4}, DType::kFloat32), five(gpu(), {5}, DType::kFloat32), table(gpu(), {4, 4}, DType::kBFloat16);
  const Tensor totals(gpu(), {2}, DType::kFloat64);
  CHECK_THROWS_AS(gpu().sum_rows({four, four}), Error);
  CHECK_THROWS_AS(gpu().sum_rows({table, five}), Error);
  CHECK_THROWS_AS(gpu().sum_rows({table, Tensor(gpu(), {4}, DType::kBFloat16)}), Error);
  CHECK_THROWS_AS(gpu().squared_distance({four, five, totals, 0}), Error);
  CHECK_THROWS_AS(gpu().squared_distance({four, four, totals, 2}), Error);
  CHECK_THROWS_AS(gpu().squared_distance({four, four, four, 0}), Error);
  CHECK_THROWS_AS(gpu().gradient_control({totals, 1, 2, 1.0, 0.0, false, totals}), Error);
  CHECK_THROWS_AS(gpu().gradient_control({totals, 0, 2, 1.0, 0.0, false, four}), Error);
}

}  // namespace starling::tests
