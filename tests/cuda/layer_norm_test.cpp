#include <doctest/doctest.h>

#include "core/error.h"
#include "tests/cuda/compare.h"
#include "tests/cuda/support.h"
#include "tests/operations/operation_table.h"

namespace starling::tests {
namespace {

using Index = std::int64_t;

/// y, mean, 1/σ, dx, dgamma, dbeta. The backward pass takes the statistics of `given`, or of its own forward pass.
std::vector<Numbers> layer_norm(Backend& backend, Index rows, Index channels, DType dtype, DType rounding, bool affine, bool accumulate,
                                Index offset) {
  const DType parameters = parameter_dtype(dtype);
  const auto made = [&](const Shape& shape, std::uint64_t seed, DType as, DType through) {
    const Numbers numbers = numbers_of(placed(plain_cpu(), random_given(shape, seed), through, 0));
    return placed(backend, {numbers, shape}, as, offset);
  };
  const Shape matrix{rows, channels};
  const Tensor x = made(matrix, 1, dtype, rounding), dy = made(matrix, 2, dtype, rounding);
  const Tensor gamma = affine ? made({channels}, 3, parameters, DType::kFloat32) : Tensor();
  const Tensor beta = affine ? made({channels}, 4, parameters, DType::kFloat32) : Tensor();
  const Tensor y = placed(backend, zeros(matrix), dtype, offset), dx = placed(backend, zeros(matrix), dtype, offset);
  const Tensor mean(backend, {rows}, parameters), inv(backend, {rows}, parameters);
  const Tensor dgamma = made({channels}, 5, parameters, DType::kFloat32), dbeta = made({channels}, 6, parameters, DType::kFloat32);
  backend.layer_norm_forward({.x = x, .gamma = gamma, .beta = beta, .y = y, .saved_mean = mean, .saved_inv_std = inv});
  backend.layer_norm_backward({.x = x,
                               .dy = dy,
                               .gamma = gamma,
                               .saved_mean = mean,
                               .saved_inv_std = inv,
                               .dx = dx,
                               .dgamma = dgamma,
                               .dbeta = dbeta,
                               .accumulate = accumulate});
  return {numbers_of(y), numbers_of(mean), numbers_of(inv), numbers_of(dx), numbers_of(dgamma), numbers_of(dbeta)};
}

}  // namespace

TEST_CASE("cuda/layer norm: every dtype, shape and place equals the CPU's fp64") {
  struct Size {
    Index rows, channels;
  };
  for (const DType dtype : kFloatingTypes) {
    CAPTURE(name_of(dtype));
    const double wide = dtype == DType::kFloat64 ? 1e-11 : 3e-5;
    const double narrow = dtype == DType::kBFloat16 ? 8e-3 : dtype == DType::kFloat16 ? 1e-3 : wide;
    for (const Size& size : {Size{5, 7}, Size{33, 64}, Size{3, 520}, Size{600, 40}}) {
      CAPTURE(size.rows);
      CAPTURE(size.channels);
      for (const bool affine : {true, false}) {
        const auto expected = layer_norm(plain_cpu(), size.rows, size.channels, DType::kFloat64, dtype, affine, affine, 0);
        for (const Index offset : {0, 1}) {
          CAPTURE(offset);
          const auto found = layer_norm(gpu(), size.rows, size.channels, dtype, dtype, affine, affine, offset);
          for (std::size_t i = 0; i < found.size(); ++i) {
            CAPTURE(i);
            CHECK(distance(found[i], expected[i]) < (i == 0 || i == 3 ? narrow : wide));
          }
        }
      }
    }
  }
}

TEST_CASE("cuda/layer norm: every order of threads gives the same bits") {
  std::vector<Numbers> first;
  in_every_order([&] {
    const auto found = layer_norm(gpu(), 300, 24, DType::kFloat32, DType::kFloat32, true, false, 0);
    if (first.empty()) first = found;
    CHECK(found == first);
  });
}

TEST_CASE("cuda/layer norm: tensors that do not belong together are one clear error") {
  const Tensor x(gpu(), {4, 6}, DType::kFloat32), rows(gpu(), {4}, DType::kFloat32), vector(gpu(), {6}, DType::kFloat32);
  CHECK_THROWS_AS(gpu().layer_norm_forward({.x = x, .gamma = rows, .y = x}), Error);
  CHECK_THROWS_AS(gpu().layer_norm_forward({.x = x}), Error);
  CHECK_THROWS_AS(gpu().layer_norm_backward({.x = x, .dy = x, .saved_mean = vector, .saved_inv_std = rows}), Error);
  const Tensor none(gpu(), {0, 6}, DType::kFloat32), no_rows(gpu(), {0}, DType::kFloat32);
  gpu().layer_norm_forward({.x = none, .y = none});
  gpu().fill(vector, 3.0);
  gpu().layer_norm_backward({.x = none, .dy = none, .saved_mean = no_rows, .saved_inv_std = no_rows, .dgamma = vector});
  CHECK(numbers_of(vector) == Numbers(6, 0.0));
}

}  // namespace starling::tests
