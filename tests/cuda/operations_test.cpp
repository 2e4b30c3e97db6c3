#include <doctest/doctest.h>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/operations/operation_table.h"
#include "tests/cuda/offset_backend.h"
#include "tests/cuda/support.h"

// The operation table, which the CPU backend is tested with too: one row per operation and set of shapes.
namespace starling::tests {
namespace {

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
      CHECK(difference(op, dtype, found, expected) == "");
      // Every order of threads, and every run, gives the same bits.
      if (first.outputs.empty()) first = on_gpu() ? run(op, gpu(), dtype, inputs, seed) : found;
      CHECK(found.outputs == first.outputs);
      CHECK(found.gradients == first.gradients);
    });
    // Memory that no 16-byte access may touch at its start.
    OffsetBackend misaligned(gpu());
    CHECK(difference(op, dtype, run(op, misaligned, dtype, inputs, seed), expected) == "");
  }
}

}  // namespace

TEST_CASE("cuda/operations: fp64 equals the CPU's") { table(DType::kFloat64); }
TEST_CASE("cuda/operations: fp32 equals the CPU's fp64 within its rounding") { table(DType::kFloat32); }
TEST_CASE("cuda/operations: bf16 equals the CPU's fp64 within its rounding") { table(DType::kBFloat16); }
TEST_CASE("cuda/operations: fp16 equals the CPU's fp64 within its rounding") { table(DType::kFloat16); }

}  // namespace starling::tests
