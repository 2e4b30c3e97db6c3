#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/operation_table.h"

namespace starling::tests {
namespace {

double largest(const Numbers& numbers) {
  double result = 0.0;
  for (const double v : numbers) result = std::max(result, std::abs(v));
  return result;
}

/// Largest difference relative to the largest number (or to 0.01, so that zeros compare).
double distance(const Numbers& a, const Numbers& b) {
  REQUIRE(a.size() == b.size());
  double result = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    result = std::isnan(d) ? 1e300 : std::max(result, d);
  }
  return result / std::max(largest(b), 1e-2);
}

std::vector<Numbers> random_inputs(const Operation& op) {
  std::vector<Numbers> inputs;
  for (const Shape& shape : op.inputs) inputs.push_back(random_numbers(shape.elements(), 100 + inputs.size()));
  return inputs;
}

struct Results {
  std::vector<Numbers> outputs, gradients;
};

Results run(const Operation& op, Backend& backend, DType dtype, const std::vector<Numbers>& inputs, const Numbers& seed) {
  std::vector<Tensor> in, out, saved, gradients;
  for (std::size_t i = 0; i < inputs.size(); ++i) in.push_back(to_tensor(backend, inputs[i], op.inputs[i], dtype));
  for (const Shape& shape : op.outputs) {
    out.emplace_back(backend, shape, dtype);
    backend.fill(out.back(), 99.0);  // what is not written shows
  }
  op.forward(backend, in, out, saved);
  Results results;
  for (const Tensor& tensor : out) results.outputs.push_back(to_numbers(tensor));
  if (!op.backward) return results;
  for (const Shape& shape : op.inputs) {
    gradients.emplace_back(backend, shape, dtype);
    backend.fill(gradients.back(), 99.0);
  }
  op.backward(backend, in, out, saved, to_tensor(backend, seed, op.outputs[0], dtype), gradients);
  for (const Tensor& tensor : gradients) results.gradients.push_back(to_numbers(tensor));
  return results;
}

std::vector<cpu::Isa> available() {
  std::vector<cpu::Isa> result;
  for (const cpu::Isa isa : {cpu::Isa::kScalar, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (isa <= cpu::hardware_isa()) result.push_back(isa);
  }
  return result;
}

}  // namespace

TEST_CASE("kernels/operations: fp64 equals an independent plain loop") {
  CpuBackend backend(1, cpu::Isa::kScalar);
  for (const Operation& op : operation_table()) {
    CAPTURE(op.name);
    const auto inputs = random_inputs(op);
    std::vector<Numbers> expected;
    for (const Shape& shape : op.outputs) expected.emplace_back(static_cast<std::size_t>(shape.elements()), 0.0);
    op.reference(inputs, expected);
    const Results found = run(op, backend, DType::kFloat64, inputs, random_numbers(op.outputs[0].elements(), 9));
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(distance(found.outputs[i], expected[i]) < 1e-11);
  }
}

TEST_CASE("kernels/operations: gradients equal finite differences in fp64") {
  CpuBackend backend(1);
  constexpr double kStep = 1e-6;
  for (const Operation& op : operation_table()) {
    if (!op.backward) continue;
    CAPTURE(op.name);
    const auto inputs = random_inputs(op);
    const Numbers seed = random_numbers(op.outputs[0].elements(), 9);
    const Results found = run(op, backend, DType::kFloat64, inputs, seed);
    const auto value = [&](const std::vector<Numbers>& point) {
      const Results results = run(op, backend, DType::kFloat64, point, seed);
      double sum = 0.0;
      for (std::size_t i = 0; i < seed.size(); ++i) sum += seed[i] * results.outputs[0][i];
      return sum;
    };
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      CAPTURE(i);
      // Single elements spread over the tensor, and one random direction over all of it.
      const std::size_t n = inputs[i].size(), stride = std::max<std::size_t>(1, n / 12) | 1;
      for (std::size_t j = 0; j < n; j += stride) {
        CAPTURE(j);
        auto point = inputs;
        point[i][j] += kStep;
        const double above = value(point);
        point[i][j] -= 2 * kStep;
        const double slope = (above - value(point)) / (2 * kStep);
        CHECK(std::abs(slope - found.gradients[i][j]) < 1e-6 * std::max(1.0, largest(found.gradients[i])));
      }
      const Numbers direction = random_numbers(static_cast<std::int64_t>(n), 55);
      auto above = inputs, below = inputs;
      double expected = 0.0;
      for (std::size_t j = 0; j < n; ++j) {
        above[i][j] += 1e-7 * direction[j];
        below[i][j] -= 1e-7 * direction[j];
        expected += direction[j] * found.gradients[i][j];
      }
      CHECK(std::abs((value(above) - value(below)) / 2e-7 - expected) < 1e-5 * std::max(1.0, std::abs(expected)));
    }
  }
}

TEST_CASE("kernels/operations: every instruction set, thread count and fp32 agree with fp64") {
  CpuBackend plain(1, cpu::Isa::kScalar);
  for (const cpu::Isa isa : available()) {
    for (const int threads : {1, 2}) {
      CpuBackend backend(threads, isa);
      CAPTURE(backend.description());
      for (const Operation& op : operation_table()) {
        CAPTURE(op.name);
        const auto inputs = random_inputs(op);
        const Numbers seed = random_numbers(op.outputs[0].elements(), 9);
        const Results expected = run(op, plain, DType::kFloat64, inputs, seed);
        for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
          CAPTURE(name_of(dtype));
          const double tolerance = dtype == DType::kFloat64 ? 1e-11 : op.tolerance;
          const Results found = run(op, backend, dtype, inputs, seed);
          for (std::size_t i = 0; i < expected.outputs.size(); ++i) CHECK(distance(found.outputs[i], expected.outputs[i]) < tolerance);
          for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
            CAPTURE(i);
            CHECK(distance(found.gradients[i], expected.gradients[i]) < 3 * tolerance);
          }
          // A second run gives the same bits.
          const Results again = run(op, backend, dtype, inputs, seed);
          CHECK(again.outputs == found.outputs);
          CHECK(again.gradients == found.gradients);
        }
      }
    }
  }
}

}  // namespace starling::tests
