#include <doctest/doctest.h>

#include <bit>
#include <cmath>

#include "core/operations/convolutions.h"
#include "core/operations/losses.h"
#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "core/operations/reduce.h"
#include "core/philox.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/operations/operation_table.h"

// What the operation table does not show of bf16 and fp16 on the CPU: exact roundings, sums beyond
// the type's own precision, and what must not cost memory.
namespace starling::tests {
namespace {

/// The bits of two numbers, or of any two NaN, are alike.
template <class T>
bool same(T a, T b) {
  const auto x = static_cast<float>(a), y = static_cast<float>(b);
  return (std::isnan(x) && std::isnan(y)) ||
         std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
}

template <class T>
void check_casts(Backend& backend) {
  // Every number of the type, its neighbours' midpoints, what lies beside those, and random bits.
  std::vector<float> values;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    T low;
    low.bits = static_cast<std::uint16_t>(bits);
    const auto value = static_cast<float>(low);
    const std::uint32_t half_step = std::is_same_v<T, BFloat16> ? 0x8000u : 0x1000u,
                        wide = std::bit_cast<std::uint32_t>(value);
    values.push_back(value);
    for (const std::uint32_t beside : {half_step - 1, half_step, half_step + 1})
      values.push_back(std::bit_cast<float>(wide + beside));
    values.push_back(std::bit_cast<float>(philox(3, bits, 0).v[0]));
  }
  const auto n = static_cast<std::int64_t>(values.size());
  const Tensor x(backend, {n}, DType::kFloat32), y(backend, {n}, DTypeOf<T>::value),
      back(backend, {n}, DType::kFloat32);
  backend.copy_from_host(values.data(), x);
  backend.cast({x, y});
  backend.cast({y, back});
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T expected(values[i]);
    wrong += !same(y.span<T>()[i], expected) ||
             !same(back.span<float>()[i], static_cast<float>(expected));
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE(
    "kernels/low precision: casts of every number are the type's own (tests/core/dtype_test.cpp) "
    "on every instruction set") {
  for (const cpu::Isa isa : instruction_sets()) {
    CAPTURE(cpu::name_of(isa));
    CpuBackend backend(2, isa);
    check_casts<BFloat16>(backend);
    check_casts<Float16>(backend);
  }
}

TEST_CASE("kernels/low precision: sums of many numbers do not stop at the type's precision") {
  // 4096 ones: a sum in bf16 would stop at 256, one in fp16 at 2048.
  constexpr std::int64_t kRows = 4096;
  for (const cpu::Isa isa : instruction_sets()) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      CAPTURE(name_of(dtype));
      CpuBackend backend(1, isa);
      const Tensor ones(backend, {kRows, 16}, dtype), sums(backend, {16}, DType::kFloat32),
          column(backend, {1, kRows}, dtype);
      backend.fill(ones, 1.0);
      backend.fill(column, 1.0);
      backend.reduce({ones, sums});
      CHECK(to_numbers(sums) == Numbers(16, 4096.0));
      const Tensor product(backend, {1, 16}, dtype);
      backend.matmul({.a = column, .b = ones, .c = product});
      CHECK(to_numbers(product) == Numbers(16, 4096.0));
      const Tensor mean(backend, {1, 16}, dtype);
      Reduce share(ones, mean);
      share.factor = 1.0 / kRows;
      backend.reduce(share);
      CHECK(to_numbers(mean) == Numbers(16, 1.0));
      // Overlapping windows add up to 49 · 9 terms of 1/49 at one pixel.
      const Window2d window{{7, 7}, {1, 1}, {3, 3}};
      const Tensor dy(backend, {1, 21, 21, 3}, dtype), dx(backend, {1, 21, 21, 3}, dtype);
      backend.fill(dy, 1.0);
      backend.pool2d_backward({.kind = Pooling::kAverage, .dy = dy, .dx = dx, .window = window});
      CHECK(to_numbers(dx)[(10 * 21 + 10) * 3] == 1.0);
      const Tensor totals(backend, {1}, DType::kFloat64);
      backend.fill(totals, 0.0);
      backend.reduce(Reduce::squared_distance(ones, {}, totals, 0));
      CHECK(to_numbers(totals)[0] == 16.0 * kRows);
    }
  }
}

TEST_CASE(
    "kernels/low precision: the loss's gradient is scaled before it is rounded, the loss is not") {
  CpuBackend backend(1);
  const Tensor labels(backend, {2}, DType::kInt32), loss(backend, {}, DType::kFloat32),
      scaled_loss(backend, {}, DType::kFloat32);
  backend.fill(labels, 1.0);
  const Tensor logits =
      to_tensor(backend, {0.0, 14.0, 1.0, 2.0, 13.0, 0.0}, {2, 3}, DType::kFloat16);
  const Tensor plain(backend, {2, 3}, DType::kFloat16), scaled(backend, {2, 3}, DType::kFloat16),
      wide(backend, {2, 3}, DType::kFloat32);
  const double scale = 1.0 / 512.0;
  backend.target_loss({.x = logits, .targets = labels, .loss = loss, .dx = plain, .scale = scale});
  backend.target_loss({.x = logits,
                       .targets = labels,
                       .loss = scaled_loss,
                       .dx = scaled,
                       .scale = scale,
                       .gradient_scale = 65536.0});
  const Tensor logits32 = to_tensor(backend, to_numbers(logits), {2, 3}, DType::kFloat32);
  backend.target_loss(
      {.x = logits32, .targets = labels, .dx = wide, .scale = scale, .gradient_scale = 65536.0});
  CHECK(to_numbers(loss) == to_numbers(scaled_loss));
  CHECK(to_numbers(plain)[0] == 0.0);  // 1.6e-9 is nothing in fp16
  const Numbers found = to_numbers(scaled), expected = to_numbers(wide);
  for (std::size_t i = 0; i < found.size(); ++i)
    CHECK(found[i] == doctest::Approx(expected[i]).epsilon(0x1p-10));
}

TEST_CASE("kernels/low precision: the steady state asks the system for nothing, nor in fp32") {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    CpuBackend backend(1);
    const auto step = [&] {
      for (const Operation& op : operation_table())
        run(op, backend, dtype, random_inputs(op, dtype), random_seed(op, dtype));
    };
    step();
    const MemoryStats before = backend.memory_stats();
    step();
    CHECK(backend.memory_stats().system_allocations == before.system_allocations);
    CHECK(backend.memory_stats().in_use == before.in_use);
  }
}

}  // namespace starling::tests
