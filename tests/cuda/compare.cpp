#include "tests/cuda/compare.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "core/philox.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/cuda/support.h"

namespace starling::tests {

Backend& plain_cpu() {
  static CpuBackend backend(1, cpu::Isa::kScalar);
  return backend;
}

Given random_given(const Shape& shape, std::uint64_t seed, double scale) {
  Given result{std::vector<double>(static_cast<std::size_t>(shape.elements())), shape};
  for (std::size_t i = 0; i < result.numbers.size(); ++i) {
    result.numbers[i] = scale * (2.0 * static_cast<double>(uniform_float(philox(seed, i, 91).v[0])) - 1.0);
  }
  return result;
}
Given zeros(const Shape& shape) { return {std::vector<double>(static_cast<std::size_t>(shape.elements()), 0.0), shape}; }

Tensor int_tensor(Backend& backend, const std::vector<std::int32_t>& numbers, const Shape& shape) {
  Tensor result(backend, shape, DType::kInt32);
  backend.copy_from_host(numbers.data(), result);
  return result;
}

namespace {

/// Casts on the CPU, for the GPU's are under test.
Tensor rounded_tensor(const std::vector<double>& numbers, DType dtype) {
  const Shape shape{static_cast<std::int64_t>(numbers.size())};
  Tensor wide(plain_cpu(), shape, DType::kFloat64), result(plain_cpu(), shape, dtype);
  plain_cpu().copy_from_host(numbers.data(), wide);
  plain_cpu().cast({wide, result});
  return result;
}

constexpr double kAround = 77.0;
constexpr std::int64_t kMargin = 40;

/// The whole memory that a placed tensor is a view of.
Tensor memory_of(const Tensor& x) {
  const auto elements = static_cast<std::int64_t>(x.storage()->bytes() / size_of(x.dtype()));
  return Tensor(x.storage(), 0, {std::min(elements, x.elements() + kMargin)}, x.dtype());
}

/// How far numbers of dtype lie apart around x.
double step_of(double x, DType dtype) {
  if (x == 0.0 || !std::isfinite(x)) return 0.0;
  const int exponent = std::ilogb(x);
  if (dtype == DType::kBFloat16) return std::ldexp(1.0, exponent - 7);
  return std::ldexp(1.0, std::max(exponent, -14) - 10);
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

void check_close(const std::vector<double>& found, const std::vector<double>& expected, DType dtype, double tolerance,
                 Agreement agreement) {
  REQUIRE(found.size() == expected.size());
  const bool low = dtype == DType::kBFloat16 || dtype == DType::kFloat16;
  const bool bits = agreement == Agreement::kBits || (agreement == Agreement::kPlain && !on_gpu());
  std::vector<double> goal = expected;
  if (low && bits) goal = numbers_of(rounded_tensor(expected, dtype));
  double largest = 1e-2;
  for (const double v : goal) largest = std::isfinite(v) ? std::max(largest, std::abs(v)) : largest;
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = 0; i < goal.size(); ++i) {
    const double slack = bits ? 0.0 : (dtype == DType::kFloat64 ? 1e-12 : tolerance) * largest + (low ? step_of(goal[i], dtype) : 0.0);
    if (same(found[i], goal[i]) || std::abs(found[i] - goal[i]) <= slack) continue;
    if (wrong++ == 0) first = i;
  }
  CAPTURE(first);
  CAPTURE(found[first]);
  CAPTURE(goal[first]);
  CHECK(wrong == 0);
}

}  // namespace

Tensor placed(Backend& backend, const Given& given, DType dtype, std::int64_t offset) {
  const std::int64_t n = given.shape.elements();
  std::vector<double> numbers(static_cast<std::size_t>(n + kMargin), kAround);
  std::copy(given.numbers.begin(), given.numbers.end(), numbers.begin() + offset);
  Tensor memory(backend, {n + kMargin}, dtype);
  backend.copy_from_host(rounded_tensor(numbers, dtype).raw(), memory);
  return memory.slice(offset, given.shape);
}

std::vector<double> numbers_of(const Tensor& x) {
  Tensor here(plain_cpu(), x.shape(), x.dtype()), wide(plain_cpu(), x.shape(), DType::kFloat64);
  x.backend().copy_to_host(x, here.raw());
  plain_cpu().cast({here, wide});
  const auto numbers = wide.span<double>();
  return {numbers.begin(), numbers.end()};
}

void compare(const Comparison& c) {
  for (const DType dtype : kFloatingTypes) {
    CAPTURE(name_of(dtype));
    const bool low = dtype == DType::kBFloat16 || dtype == DType::kFloat16;
    const DType reference = dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    const DType out_type = low && c.wide_out ? DType::kFloat32 : dtype;
    // The CPU's results, from numbers that dtype holds.
    const auto held = [&](const Given& given, DType as) { return Given{numbers_of(rounded_tensor(given.numbers, as)), given.shape}; };
    std::vector<Tensor> in, out;
    for (const Given& given : c.in) in.push_back(placed(plain_cpu(), held(given, dtype), reference, 0));
    for (const Given& given : c.out) out.push_back(placed(plain_cpu(), held(given, out_type), reference, 0));
    c.call(plain_cpu(), in, out);
    for (const int place : {0, 1, 2}) {
      CAPTURE(place);
      std::int64_t next = 0;
      const auto offset = [&] { return place == 0 ? 0 : place == 1 ? 1 : ++next; };
      std::vector<Tensor> gpu_in, gpu_out;
      for (const Given& given : c.in) gpu_in.push_back(placed(gpu(), given, dtype, offset()));
      for (const Given& given : c.out) gpu_out.push_back(placed(gpu(), given, out_type, offset()));
      c.call(gpu(), gpu_in, gpu_out);
      for (std::size_t i = 0; i < out.size(); ++i) {
        CAPTURE(i);
        check_close(numbers_of(gpu_out[i]), numbers_of(out[i]), out_type, c.tolerance, c.agreement);
        const auto memory = numbers_of(memory_of(gpu_out[i]));
        // The margin on both sides; where the view starts, its pointer says.
        const auto start = static_cast<std::size_t>(gpu_out[i].raw() - gpu_out[i].storage()->data()) / size_of(out_type);
        const auto end = start + static_cast<std::size_t>(gpu_out[i].elements());
        bool untouched = true;
        for (std::size_t j = 0; j < memory.size(); ++j) untouched = untouched && ((j >= start && j < end) || memory[j] == kAround);
        CHECK(untouched);
      }
    }
  }
}

}  // namespace starling::tests
