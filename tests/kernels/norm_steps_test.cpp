#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/operations/norms.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/operations/operation_table.h"

// Numbers for a batch norm in steps that no row of the operation table has.
namespace starling::tests {

TEST_CASE("kernels/cpu: statistics alone of channels far from zero are a whole batch norm's") {
  constexpr std::int64_t kRows = 30000, kChannels = 6;
  Numbers x = random_numbers(kRows * kChannels, 1);
  for (double& number : x) number += 100.0;
  for (const cpu::Isa isa : instruction_sets()) {
    for (const int threads : {1, 3}) {
      CpuBackend backend(threads, isa);
      const Tensor in = to_tensor(backend, x, {kRows, kChannels}, DType::kFloat32);
      const auto statistics_of = [&](const Tensor& y) {
        const Tensor mean(backend, {kChannels}, DType::kFloat32),
            inv_std(backend, {kChannels}, DType::kFloat32);
        backend.batch_norm_forward({.x = in, .y = y, .saved_mean = mean, .saved_inv_std = inv_std});
        return std::pair(to_numbers(mean), to_numbers(inv_std));
      };
      CHECK(statistics_of({}) == statistics_of(Tensor(backend, in.shape(), DType::kFloat32)));
    }
  }
}

TEST_CASE(
    "kernels/cpu: from sums to a batch norm without variance, with one rounded below zero, and "
    "with NaN") {
  CpuBackend backend(1);
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const auto vector = [&](const Numbers& numbers) {
      return to_tensor(backend, numbers, {3}, dtype);
    };
    const auto sums = [&](const Numbers& numbers) {
      return to_tensor(backend, numbers, {3}, DType::kFloat64);
    };
    BatchNormFinish args{.sum = sums({20, 0.4, std::nan("")}),
                         .square_sum = sums({100, 0.0399, 1})};
    args.running_mean = vector({1, 1, 1});
    args.running_var = vector({2, 2, 2});
    args.saved_mean = vector({0, 0, 0});
    args.saved_inv_std = vector({0, 0, 0});
    args.count = 4;
    args.eps = 0.25;
    args.momentum = 0.5;
    backend.batch_norm_finish(args);
    const double nan = std::nan("");  // divergence shows
    CHECK(distance(to_numbers(args.saved_mean), {5, 0.1, nan}) < 1e-6);
    CHECK(distance(to_numbers(args.saved_inv_std), {2, 2, nan}) < 1e-6);
    CHECK(distance(to_numbers(args.running_mean), {3, 0.55, nan}) < 1e-6);
    CHECK(distance(to_numbers(args.running_var), {1, 1, nan}) < 1e-6);
    args.count = 1;
    backend.batch_norm_finish(args);
    CHECK(std::isfinite(to_numbers(args.running_var)[0]));
  }
}

}  // namespace starling::tests
