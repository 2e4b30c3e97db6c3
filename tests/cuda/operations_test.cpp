#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/forwarding_backend.h"
#include "core/operations/attention.h"
#include "core/operations/convolutions.h"
#include "core/operations/products.h"
#include "kernels/cuda/operations/plain.h"
#include "tests/cuda/compare.h"
#include "tests/cuda/support.h"
#include "tests/operations/operation_table.h"

// The operation table, which the CPU backend is tested with too: one row per operation and set of
// shapes.
namespace starling::tests {
namespace {

/// Gives every tensor memory that starts 8 bytes past a 16-byte boundary: aligned for its numbers,
/// but not for packs of them.
class OffsetBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  std::shared_ptr<Storage> allocate(std::size_t bytes) override {
    return std::make_shared<Shifted>(*this, inner().allocate(bytes + kOffset), bytes);
  }

 private:
  static constexpr std::size_t kOffset = 8;
  class Shifted final : public Storage {
   public:
    Shifted(Backend& backend, const std::shared_ptr<Storage>& memory, std::size_t bytes)
        : Storage(backend, memory->data() + kOffset, bytes), memory_(memory) {}

   private:
    std::shared_ptr<Storage> memory_;
  };
};

bool uses_libraries() { return gpu().description().find("cuDNN") != std::string::npos; }

/// Empty where all agree. cuDNN writes weights' gradients in the activations' type before they
/// become fp32 (docs/checks.md): where it does the convolutions, these carry one rounding more.
/// Everything else is held to the table's tolerance.
std::string off(const Operation& op, DType dtype, const Results& found, const Results& expected) {
  const bool rounds = is_low_precision(dtype) && op.name.starts_with("conv2d") && uses_libraries();
  if (!rounds || found.gradients.size() < 2 || expected.gradients.size() < 2)
    return difference(op, dtype, found, expected);
  Results others = found, others_expected = expected;
  others.gradients[1].clear();
  others_expected.gradients[1].clear();
  const std::string strict = difference(op, dtype, others, others_expected);
  Operation rounded = op;
  rounded.carried += 1;
  return strict.empty() ? difference(rounded, dtype, found, expected) : strict;
}

/// Whether the CPU's bits are to be found. A GPU's fused multiply-add keeps bits of products that
/// fp64 does not hold.
bool has_bits_of_cpu(const Operation& op, DType dtype) {
  return op.exact && !(on_gpu() && op.name.starts_with("squared_") &&
                       (dtype == DType::kFloat64 || op.name.find("two") != std::string::npos));
}

void compare_with_cpu(DType dtype) {
  OffsetBackend misaligned(gpu());  // what rows keep between the passes
  for (const Operation& op : operation_table()) {
    CAPTURE(op.name);
    const auto inputs = random_inputs(op, dtype);
    const Numbers seed = random_seed(op, dtype);
    const Results expected = run(op, plain_cpu(), DType::kFloat64, inputs, seed);
    // On the shim types that share their kernels share the orders, places and ways, too.
    const bool again = on_gpu() || dtype == DType::kFloat32 || dtype == DType::kBFloat16;
    const auto in_orders = [&](const std::function<void()>& test) {
      again ? in_every_order(test) : test();
    };
    Results first;
    in_orders([&] {
      const Results found = run(op, gpu(), dtype, inputs, seed);
      CHECK(off(op, dtype, found, expected) == "");
      // Every order of threads, and every run, gives the same bits.
      if (first.outputs.empty()) first = on_gpu() ? run(op, gpu(), dtype, inputs, seed) : found;
      CHECK(found.outputs == first.outputs);
      CHECK(found.gradients == first.gradients);
    });
    if (has_bits_of_cpu(op, dtype))
      CHECK(first.outputs == run(op, plain_cpu(), dtype, inputs, seed).outputs);
    for (const int place : {1, 2}) {
      if (op.aligned || (!again && place == 1)) continue;
      CHECK(off(op, dtype, run(op, misaligned, dtype, inputs, seed, {.place = place}), expected) ==
            "");
    }
    for (Way way : ways_of(op)) {
      if (!again) break;
      CAPTURE(way.over);
      if (!op.aligned) way.place = way.over == 0 ? 2 : 0;
      const Results found = run(op, gpu(), dtype, inputs, seed, way);
      CHECK(off(op, dtype, found,
                way.accumulate ? run(op, plain_cpu(), DType::kFloat64, inputs, seed, way)
                               : expected) == "");
    }
  }
}

/// The backend's own products, past the libraries.
class WithoutLibraries final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void issue(const Conv2dForward& args) override { cuda::plain_conv2d_forward(gpu(), args); }
  void issue(const Conv2dBackwardData& args) override {
    cuda::plain_conv2d_backward_data(gpu(), args);
  }
  void issue(const Conv2dBackwardWeights& args) override {
    cuda::plain_conv2d_backward_weights(gpu(), args);
    if (args.dbias) gpu().reduce({args.dy, args.dbias, args.accumulate});
  }
  void issue(const Matmul& args) override {
    args.in_steps() ? matmul_in_steps(*this, args) : cuda::plain_matmul(gpu(), args);
  }
  void issue(const AttentionForward& args) override { cuda::plain_attention_forward(gpu(), args); }
  void issue(const AttentionBackward& args) override {
    cuda::plain_attention_backward(gpu(), args);
  }
};

bool is_product(const Operation& op) {
  return op.name.starts_with("matmul") || op.name.starts_with("conv2d") ||
         op.name.starts_with("attention");
}

void compare_special(DType dtype) {
  for (const Operation& op : operation_table()) {
    // they have algorithms that spread them, and round otherwise
    if (uses_libraries() && is_product(op)) continue;
    // A weight of 0 behind the diagonal may be left out, or multiplied.
    if (op.name.starts_with("attention") && op.name.find("causal") != std::string::npos) continue;
    CAPTURE(op.name);
    const auto inputs = special_inputs(op, dtype);
    const Numbers seed = random_seed(op, dtype);
    const Results expected = run(op, plain_cpu(), op.exact ? dtype : DType::kFloat64, inputs, seed);
    CHECK(difference(op, dtype, run(op, gpu(), dtype, inputs, seed), expected) == "");
  }
}

}  // namespace

TEST_CASE("cuda/operations: fp64 equals the CPU's") { compare_with_cpu(DType::kFloat64); }
TEST_CASE("cuda/operations: fp32 equals the CPU's fp64 within its rounding") {
  compare_with_cpu(DType::kFloat32);
}
TEST_CASE("cuda/operations: bf16 equals the CPU's fp64 within its rounding") {
  compare_with_cpu(DType::kBFloat16);
}
TEST_CASE("cuda/operations: fp16 equals the CPU's fp64 within its rounding") {
  compare_with_cpu(DType::kFloat16);
}

TEST_CASE("cuda/operations: products without libraries equal the CPU's fp64") {
  WithoutLibraries plain(gpu());
  for (const Operation& op : operation_table()) {
    if (!is_product(op)) continue;
    CAPTURE(op.name);
    for (const DType dtype : kFloatingTypes) {
      if (!on_gpu() && dtype != DType::kFloat32) continue;  // on the shim most are those from above
      CAPTURE(name_of(dtype));
      const auto inputs = random_inputs(op, dtype);
      const Numbers seed = random_seed(op, dtype);
      for (const Way& way : {Way{}, Way{.place = 2}, Way{.accumulate = true}}) {
        const Results expected =
            run(op, plain_cpu(), DType::kFloat64, inputs, seed, {.accumulate = way.accumulate});
        CHECK(difference(op, dtype, run(op, plain, dtype, inputs, seed, way), expected) == "");
      }
    }
  }
}

// A case for each type: a group of cases has 90 s on a GPU.
TEST_CASE("cuda/operations: NaN and infinities show where they do on the CPU, fp64") {
  compare_special(DType::kFloat64);
}
TEST_CASE("cuda/operations: NaN and infinities show where they do on the CPU, fp32") {
  compare_special(DType::kFloat32);
}
TEST_CASE("cuda/operations: NaN and infinities show where they do on the CPU, bf16") {
  compare_special(DType::kBFloat16);
}
TEST_CASE("cuda/operations: NaN and infinities show where they do on the CPU, fp16") {
  compare_special(DType::kFloat16);
}

TEST_CASE("cuda/operations: tensors that do not belong together are refused") {
  for (const Operation& op : operation_table()) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16})
      CHECK(taken_wrongly(op, gpu(), dtype) == "");
  }
}

}  // namespace starling::tests
