#include <doctest/doctest.h>

#include <set>
#include <string>

#include "core/operations/all.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/operations/operation_table.h"

namespace starling::tests {
TEST_CASE("kernels/operations: every operation of a backend has a row") {
  std::set<std::string> called;
  for (const Operation& op : operation_table()) called.merge(names_in(op));
#define STARLING_NAME(Arguments, name) #name,
  for (const char* name : {STARLING_OPERATIONS(STARLING_NAME)}) {
    CAPTURE(name);
    CHECK(called.count(name) == 1);
  }
#undef STARLING_NAME
}

TEST_CASE("kernels/operations: fp64 equals an independent plain loop") {
  CpuBackend backend(1, cpu::Isa::kScalar);
  for (const Operation& op : operation_table()) {
    CAPTURE(op.name);
    const auto inputs = random_inputs(op);
    std::vector<Numbers> expected;
    for (const Shape& shape : op.outputs)
      expected.emplace_back(static_cast<std::size_t>(shape.elements()), 0.0);
    op.reference(inputs, expected);
    const Results found = run(op, backend, DType::kFloat64, inputs, random_seed(op));
    for (std::size_t i = 0; i < expected.size(); ++i)
      CHECK(distance(found.outputs[i], expected[i]) < 1e-11);
  }
}

TEST_CASE("kernels/operations: gradients equal finite differences in fp64") {
  CpuBackend backend(1);
  for (const Operation& op : operation_table()) {
    CAPTURE(op.name);
    CHECK(wrong_slopes(op, backend) == "");
  }
}

TEST_CASE("kernels/operations: every instruction set, thread count and fp32 agree with fp64") {
  CpuBackend plain(1, cpu::Isa::kScalar);
  for (const cpu::Isa isa : instruction_sets()) {
    for (const int threads : {1, 2}) {
      CpuBackend backend(threads, isa);
      CAPTURE(backend.description());
      for (const Operation& op : operation_table()) {
        CAPTURE(op.name);
        const auto inputs = random_inputs(op);
        const Numbers seed = random_seed(op);
        const Results expected = run(op, plain, DType::kFloat64, inputs, seed);
        for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
          CAPTURE(name_of(dtype));
          const Results found = run(op, backend, dtype, inputs, seed);
          CHECK(difference(op, dtype, found, expected) == "");
          // A second run gives the same bits.
          const Results again = run(op, backend, dtype, inputs, seed);
          CHECK(again.outputs == found.outputs);
          CHECK(again.gradients == found.gradients);
        }
      }
    }
  }
}

TEST_CASE(
    "kernels/operations: bf16 and fp16 equal fp64 within their rounding on every instruction set "
    "and thread count") {
  CpuBackend plain(1, cpu::Isa::kScalar);
  const std::vector<Operation> table = operation_table();
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    CAPTURE(name_of(dtype));
    std::vector<Results> expected;
    for (const Operation& op : table) {
      expected.push_back(
          run(op, plain, DType::kFloat64, random_inputs(op, dtype), random_seed(op, dtype)));
    }
    for (const cpu::Isa isa : instruction_sets()) {
      for (const int threads : {1, 2}) {
        CpuBackend backend(threads, isa);
        CAPTURE(backend.description());
        for (std::size_t i = 0; i < table.size(); ++i) {
          const auto inputs = random_inputs(table[i], dtype);
          const Numbers seed = random_seed(table[i], dtype);
          const Results found = run(table[i], backend, dtype, inputs, seed);
          CHECK(difference(table[i], dtype, found, expected[i]) == "");
          if (threads == 1) continue;
          const Results again = run(table[i], backend, dtype, inputs, seed);
          CHECK(again.outputs == found.outputs);
          CHECK(again.gradients == found.gradients);
        }
      }
    }
  }
}

TEST_CASE("kernels/operations: results add up, and lie over inputs, where they may") {
  for (const cpu::Isa isa : {cpu::Isa::kScalar, cpu::hardware_isa()}) {
    CpuBackend backend(2, isa);
    for (const Operation& op : operation_table()) {
      CAPTURE(op.name);
      for (const Way& way : ways_of(op)) {
        CAPTURE(way.over);
        for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
          CAPTURE(name_of(dtype));
          const auto inputs = random_inputs(op, dtype);
          const Numbers seed = random_seed(op, dtype);
          Results expected = run(op, backend, dtype, inputs, seed),
                  found = run(op, backend, dtype, inputs, seed, way);
          if (!way.accumulate) {
            CHECK(found.outputs == expected.outputs);
            CHECK(found.gradients == expected.gradients);
            continue;
          }
          int added = 0;
          const auto add = [&](std::vector<Numbers>& numbers, const std::vector<Numbers>& seen) {
            for (std::size_t i = 0; i < numbers.size(); ++i) {
              Numbers more = numbers[i];
              for (double& v : more) v += 0.5;
              if (numbers[i].empty() || distance(seen[i], numbers[i]) <= distance(seen[i], more))
                continue;
              numbers[i] = more;
              ++added;
            }
          };
          add(expected.outputs, found.outputs);
          add(expected.gradients, found.gradients);
          // gradients of parameters do, and where there is no backward pass outputs; sums may
          bool adds = !op.backward;
          for (std::size_t i = 0; i < inputs.size(); ++i)
            adds = adds || (op.differentiable(i) && op.input_role(i) != Role::kActivation);
          CHECK((added > 0 || !adds));
          CHECK(difference(op, dtype, found, expected) == "");
        }
      }
    }
  }
}

TEST_CASE(
    "kernels/operations: NaN and infinities show where the plain loop has them, on every "
    "instruction set") {
  CpuBackend plain(1, cpu::Isa::kScalar);
  for (const Operation& op : operation_table()) {
    if (op.name.starts_with("conv2d")) continue;  // a library's algorithms may spread them
    // A weight of 0 behind the diagonal may be left out, or multiplied.
    if (op.name.starts_with("attention") && op.name.find("causal") != std::string::npos) continue;
    CAPTURE(op.name);
    const auto inputs = special_inputs(op, DType::kFloat64);
    std::vector<Numbers> reference;
    for (const Shape& shape : op.outputs)
      reference.emplace_back(static_cast<std::size_t>(shape.elements()), 0.0);
    op.reference(inputs, reference);
    const Results wide = run(op, plain, DType::kFloat64, inputs, random_seed(op));
    // The gradient of numbers as targets is of differences, which a NaN spreads over its row.
    for (std::size_t i = op.name.ends_with("of numbers") ? 1 : 0; i < reference.size(); ++i)
      CHECK(distance(wide.outputs[i], reference[i]) < 1e-11);
    for (const cpu::Isa isa : instruction_sets()) {
      CpuBackend backend(1, isa);
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        CAPTURE(name_of(dtype));
        const auto given = special_inputs(op, dtype);
        const Numbers seed = random_seed(op, dtype);
        CHECK(difference(op, dtype, run(op, backend, dtype, given, seed),
                         run(op, plain, DType::kFloat64, given, seed)) == "");
      }
    }
  }
}

TEST_CASE("kernels/operations: tensors that do not belong together are refused") {
  CpuBackend backend(1);
  for (const Operation& op : operation_table()) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16})
      CHECK(taken_wrongly(op, backend, dtype) == "");
  }
}

TEST_CASE("kernels/operations: what is timed is right too, and says what it moves or computes") {
  CpuBackend backend(1);
  for (const Operation& op : timing_table(1)) {
    CAPTURE(op.name);
    const PassWork work = work_of(op, DType::kFloat32);
    CHECK(work.forward.bytes > 0.0);
    CHECK((work.backward.bytes > 0.0) == static_cast<bool>(op.backward));
    const auto inputs = random_inputs(op);
    const Numbers seed = random_seed(op);
    CHECK(difference(op, DType::kFloat32, run(op, backend, DType::kFloat32, inputs, seed),
                     run(op, backend, DType::kFloat64, inputs, seed)) == "");
  }
}

}  // namespace starling::tests
