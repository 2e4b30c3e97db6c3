#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cpu/cpu_backend.h"
#include "tests/cuda/offset_backend.h"
#include "tests/cuda/support.h"
#include "tests/operations/operation_table.h"

// The operation table, which the CPU backend is tested with too: one row per operation and set of shapes.
namespace starling::tests {
namespace {

/// Empty where all agree. cuDNN writes weights' gradients in the activations' type before they become fp32 (docs/cudnn.md): where it does
/// the convolutions, these carry one rounding more. Everything else is held to the table's tolerance.
std::string off(const Operation& op, DType dtype, const Results& found, const Results& expected) {
  const bool rounds = is_low_precision(dtype) && op.name.starts_with("conv2d") && gpu().description().find("cuDNN") != std::string::npos;
  if (!rounds || found.gradients.size() < 2 || expected.gradients.size() < 2) return difference(op, dtype, found, expected);
  Results others = found, others_expected = expected;
  others.gradients[1].clear();
  others_expected.gradients[1].clear();
  const std::string strict = difference(op, dtype, others, others_expected);
  Operation rounded = op;
  rounded.carried += 1;
  return strict.empty() ? difference(rounded, dtype, found, expected) : strict;
}

void table(DType dtype) {
  CpuBackend cpu(1, cpu::Isa::kScalar);
  for (const Operation& op : operation_table()) {
    CAPTURE(op.name);
    const auto inputs = random_inputs(op, dtype);
    const Numbers seed = random_seed(op, dtype);
    const Results expected = run(op, cpu, DType::kFloat64, inputs, seed);
    Results first;
    in_every_order([&] {
      const Results found = run(op, gpu(), dtype, inputs, seed);
      CHECK(off(op, dtype, found, expected) == "");
      // Every order of threads, and every run, gives the same bits.
      if (first.outputs.empty()) first = on_gpu() ? run(op, gpu(), dtype, inputs, seed) : found;
      CHECK(found.outputs == first.outputs);
      CHECK(found.gradients == first.gradients);
    });
    if (op.aligned) continue;
    // Memory that no 16-byte access may touch at its start.
    OffsetBackend misaligned(gpu());
    CHECK(off(op, dtype, run(op, misaligned, dtype, inputs, seed), expected) == "");
  }
}

}  // namespace

TEST_CASE("cuda/operations: fp64 equals the CPU's") { table(DType::kFloat64); }
TEST_CASE("cuda/operations: fp32 equals the CPU's fp64 within its rounding") { table(DType::kFloat32); }
TEST_CASE("cuda/operations: bf16 equals the CPU's fp64 within its rounding") { table(DType::kBFloat16); }
TEST_CASE("cuda/operations: fp16 equals the CPU's fp64 within its rounding") { table(DType::kFloat16); }

TEST_CASE("cuda/operations: a matrix product's relu keeps NaN, and gives the bits of relu afterwards") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    CAPTURE(name_of(dtype));
    const DType bias_type = parameter_dtype(dtype);
    Numbers a = random_numbers(70 * 24, 1);
    a[3 * 24 + 5] = std::nan("");
    const Tensor left = to_tensor(gpu(), a, {70, 24}, dtype), right = to_tensor(gpu(), random_numbers(40 * 24, 2), {40, 24}, dtype);
    const Tensor bias = to_tensor(gpu(), random_numbers(40, 3), {40}, bias_type);
    for (const bool biased : {false, true}) {
      CAPTURE(biased);
      const Tensor fused(gpu(), {70, 40}, dtype), plain(gpu(), {70, 40}, dtype);
      Matmul args{.a = left, .b = right, .c = plain, .transpose_b = true};
      if (biased) args.bias = bias;
      gpu().matmul(args);
      gpu().activation_forward({.kind = Activation::kRelu, .x = plain, .y = plain});
      args.c = fused;
      args.relu = true;
      gpu().matmul(args);
      const Numbers found = to_numbers(fused), expected = to_numbers(plain);
      for (std::size_t i = 0; i < found.size(); ++i) {
        const bool nan = i / 40 == 3;
        CHECK(std::isnan(found[i]) == nan);
        if (!nan) CHECK(found[i] >= 0.0);
        // A library may take another algorithm with the epilogue.
        if (!nan) CHECK(std::abs(found[i] - expected[i]) <= (on_gpu() ? 2e-2 * std::max(1.0, expected[i]) : 0.0));
      }
    }
  }
}

}  // namespace starling::tests
