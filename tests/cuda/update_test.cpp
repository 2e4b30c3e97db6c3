#include "kernels/cuda/operations/update.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/error.h"
#include "core/operations/codecs.h"
#include "kernels/open_backend.h"
#include "tests/cuda/support.h"
#include "tests/cuda/update_side.h"
#include "tests/kernels/optimizer_reference.h"

// The fused update on a GPU against the CPU's: the same bits.
namespace starling::tests {
namespace {

using test::make_rule;
using test::normal_numbers;

template <class T>
void compare(const nlohmann::json& config, const UpdateCase& how) {
  CAPTURE(config.dump());
  CAPTURE(how.n);
  CAPTURE(how.terms);
  CAPTURE(static_cast<int>(how.code));
  CAPTURE(how.in_place);
  CAPTURE(how.offset);
  CAPTURE(sizeof(T));
  const auto rule = make_rule(config);
  const std::unique_ptr<Backend> cpu = open_backend(DeviceType::kCpu, 1);
  const std::size_t states = rule->facts().states.size();
  UpdateSide<T> expected = bucket_side<T>(*cpu, how, states),
                found = bucket_side<T>(gpu(), how, states);
  compare_steps(*rule, how, expected, found);
}

void compare_all(const UpdateCase& how) {
  for (const nlohmann::json& config : test::every_rule()) {
    compare<float>(config, how);
    compare<double>(config, how);
  }
}

/// Uploads for launchers that a test calls itself.
struct Slot {
  Tensor memory;
  static const void* upload(void* owner, const void* from, std::size_t bytes) {
    Slot& slot = *static_cast<Slot*>(owner);
    slot.memory = Tensor(gpu(), Shape{static_cast<std::int64_t>(bytes)}, DType::kUInt8);
    gpu().copy_from_host(from, slot.memory);
    return slot.memory.raw();
  }
};

}  // namespace

TEST_CASE("cuda/update: every rule gives the CPU's bits, for any number of neighbours") {
  in_every_order([] {
    for (int terms = 0; terms <= 4; ++terms) compare_all({.n = 32 * 5, .terms = terms});
  });
}

TEST_CASE("cuda/update: sizes from one decay entry to several blocks, the last of them not full") {
  for (const std::int64_t n : {32, 64, 2048, 2048 + 32, 4096 * 3 + 96})
    compare_all({.n = n, .terms = 1, .low = DType::kBFloat16, .steps = 2});
}

TEST_CASE(
    "cuda/update: another output, a whole group's sum, a low-precision copy, a clip factor and a "
    "skipped step") {
  in_every_order([] {
    for (const int terms : {0, 1, 2, 3}) {
      compare_all({.terms = terms, .in_place = false});
      compare_all({.terms = terms, .low = DType::kFloat16, .controlled = true, .steps = 4});
      compare_all({.terms = terms,
                   .in_place = false,
                   .low = DType::kBFloat16,
                   .controlled = true,
                   .steps = 4});
      if (terms > 0) compare_all({.terms = terms, .whole_sum = true, .low = DType::kFloat16});
    }
  });
}

TEST_CASE("cuda/update: buffers that start off a 16-byte address") {
  for (const std::int64_t offset : {1, 3}) {
    for (const int terms : {0, 1, 3})
      compare_all(
          {.n = 2048 + 64, .terms = terms, .offset = offset, .low = DType::kFloat16, .steps = 2});
  }
}

TEST_CASE("cuda/update: more neighbours than a launch's parameters hold, and as many") {
  for (const int terms : {16, 17, 40}) compare_all({.n = 32 * 5, .terms = terms, .steps = 2});
}

TEST_CASE("cuda/update: messages decoded on the way, of every code and any number") {
  in_every_order([] {
    for (const Code code : {Code::kInt8, Code::kMinMax8, Code::kInt4, Code::kBf16}) {
      for (const int terms : {1, 2, 5})
        compare_all({.n = 32 * 5, .terms = terms, .encoded = true, .code = code, .steps = 2});
    }
    // Of more terms a CPU adds numbers that are as they are with fused multiply-adds.
    compare_all({.n = 32 * 5, .terms = 1, .encoded = true, .code = Code::kNone, .steps = 2});
  });
  compare_all({.n = 4096 * 3 + 96,
               .terms = 3,
               .in_place = false,
               .low = DType::kBFloat16,
               .encoded = true,
               .code = Code::kInt8,
               .steps = 2});
  compare_all({.n = 2048 + 64,
               .terms = 2,
               .offset = 1,
               .encoded = true,
               .code = Code::kMinMax8,
               .steps = 2});
  compare_all({.terms = 20, .controlled = true, .encoded = true, .code = Code::kInt8, .steps = 4});
}

TEST_CASE("cuda/update: blocks that take several tiles each") {
  const auto rule = make_rule("accum_adamw", {{"weight_decay", 0.1}, {"accum_iter", 4}});
  const GpuUpdateLauncher launcher = cuda::builtin_update(*rule);
  REQUIRE((launcher != nullptr));
  const std::unique_ptr<Backend> cpu = open_backend(DeviceType::kCpu, 1);
  for (const int terms : {1, 3}) {
    // a device of one multiprocessor has 32 blocks
    const UpdateCase how{.n = 32 * 2048 * 2 + 32 * 17, .terms = terms};
    UpdateSide<float> expected = bucket_side<float>(*cpu, how, 3),
                      found = bucket_side<float>(gpu(), how, 3);
    for (std::int64_t step = 1; step <= 2; ++step) {
      expected.set_step(step);
      found.set_step(step);
      cpu->update({*rule, expected.args});
      Slot slot;
      launcher(*rule, found.args,
               {.stream = gpu().handle(), .owner = &slot, .upload = &Slot::upload});
      CHECK(found.bytes_of(found.args.x) == expected.bytes_of(expected.args.x));
      CHECK(found.bytes_of(found.args.states[2]) == expected.bytes_of(expected.args.states[2]));
    }
  }
}

}  // namespace starling::tests
