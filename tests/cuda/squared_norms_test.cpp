#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "core/error.h"
#include "core/operations/pointwise.h"
#include "core/operations/reduce.h"
#include "tests/cuda/support.h"
#include "tests/operations/operation_table.h"

namespace starling::tests {
namespace {

std::vector<double> many(const std::vector<Tensor>& x) {
  const Tensor totals(gpu(), {static_cast<std::int64_t>(x.size()) + 2}, DType::kFloat64);
  gpu().fill(totals, -1.0);
  gpu().squared_norms({x, totals, 1});
  return to_numbers(totals);
}
std::vector<double> one_by_one(const std::vector<Tensor>& x) {
  const Tensor totals(gpu(), {static_cast<std::int64_t>(x.size()) + 2}, DType::kFloat64);
  gpu().fill(totals, 0.0);
  for (std::size_t i = 0; i < x.size(); ++i)
    gpu().reduce(Reduce::squared_distance(x[i], {}, totals, static_cast<std::int64_t>(i) + 1));
  std::vector<double> numbers = to_numbers(totals);
  numbers.front() = numbers.back() = -1.0;
  return numbers;
}

}  // namespace

TEST_CASE(
    "cuda/squared_norms: many tensors at once have the bits of each alone, and nothing else is "
    "written") {
  in_every_order([] {
    std::vector<Tensor> x;
    for (const std::int64_t n : {1, 31, 32, 33, 255, 4095, 4096, 4097, 8192, 50003, 163847}) {
      for (const std::int64_t offset : {0, 1}) {
        x.push_back(to_tensor(gpu(), random_numbers(n, static_cast<std::uint64_t>(n + offset)), {n},
                              DType::kFloat32, offset));
      }
    }
    CHECK(many(x) == one_by_one(x));
  });
}

TEST_CASE("cuda/squared_norms: more tensors than one launch takes, empty ones, and fp64") {
  std::vector<Tensor> x;
  for (int i = 0; i < 200; ++i)
    x.push_back(to_tensor(gpu(), random_numbers(1 + 37 * i, static_cast<std::uint64_t>(i)),
                          {1 + 37 * i}, DType::kFloat32));
  CHECK(many(x) == one_by_one(x));
  const Tensor some = to_tensor(gpu(), random_numbers(100, 5), {100}, DType::kFloat32);
  const Tensor none = some.slice(0, Shape{0});
  const std::vector<double> found = many({none, some, none, none, some, none});
  CHECK(found[1] == 0.0);
  CHECK(found[2] > 0.0);
  CHECK(found[3] == 0.0);
  CHECK(found[4] == 0.0);
  CHECK(found[5] == found[2]);
  CHECK(found[6] == 0.0);
  CHECK(many({none}) == std::vector<double>{-1.0, 0.0, -1.0});
  std::vector<Tensor> wide;
  for (const std::int64_t n : {5, 4096, 9001})
    wide.push_back(to_tensor(gpu(), random_numbers(n, 3), {n}, DType::kFloat64));
  CHECK(many(wide) == one_by_one(wide));
}

TEST_CASE("cuda/squared_norms: numbers that do not go together are refused") {
  const auto of = [](DType dtype) { return to_tensor(gpu(), random_numbers(8, 1), {8}, dtype); };
  CHECK_THROWS_AS(many({of(DType::kBFloat16), of(DType::kBFloat16)}), Error);
  CHECK_THROWS_AS(many({of(DType::kFloat64), of(DType::kFloat32)}), Error);
  CHECK_THROWS_AS(many({of(DType::kFloat32), Tensor()}), Error);
}

}  // namespace starling::tests
