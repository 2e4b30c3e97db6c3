#include "kernels/cuda/operations/update.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/operations/codecs.h"
#include "kernels/gpu_update.h"
#include "kernels/open_backend.h"
#include "tests/cuda/support.h"
#include "tests/cuda/update_side.h"
#include "tests/kernels/layer_reference.h"
#include "tests/kernels/optimizer_reference.h"

// The fused update on a GPU against the CPU's, of rules that measure layers too: the same bits.
namespace starling::tests {
namespace {

using test::elements_of;
using test::layer_extents;
using test::LayerReference;
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

/// With states as long as the bucket, or as the rule's own steps have them.
template <class T>
UpdateSide<T> layer_side(Backend& to, const UpdateCase& how, const OptimizerRule& rule,
                         bool own_states = false,
                         const std::vector<LayerExtent>& layers = layer_extents()) {
  const std::int64_t elements = elements_of(layers);
  const auto random = [layers, elements](unsigned seed) {
    std::vector<T> result = normal_numbers<T>(static_cast<std::size_t>(elements), seed);
    // The padding is zero.
    for (const LayerExtent& layer : layers)
      std::fill_n(result.begin() + layer.first + layer.elements - layer.padding, layer.padding,
                  T(0));
    return result;
  };
  UpdateSide<T> side(to, how, random, [&](std::size_t block) {
    return static_cast<std::int64_t>(32 * block) < layers[2].first;
  });
  std::int64_t own = 0;
  for (const LayerExtent& layer : layers) own += state_elements_of(rule, layer);
  side.add_states(rule.facts().states.size(), own_states ? own : elements);
  side.args.layers = make_update_layers(to, layers, elements);
  side.args.lr = 0.3;
  return side;
}

template <class T>
void compare_sides(const LayerReference& reference, UpdateCase how) {
  CAPTURE(reference.type);
  CAPTURE(how.terms);
  CAPTURE(sizeof(T));
  how.steps = 3;
  const auto rule = make_rule(reference.type, reference.config());
  CHECK(runs_on_gpu(*rule));
  const std::unique_ptr<Backend> cpu = open_backend(DeviceType::kCpu, 1);
  UpdateSide<T> expected = layer_side<T>(*cpu, how, *rule),
                found = layer_side<T>(gpu(), how, *rule);
  compare_steps(*rule, how, expected, found);
}

/// By all that the rule issues, to rounding: products and means are summed in another order on a
/// GPU.
void compare_issued(const LayerReference& reference, const UpdateCase& how,
                    const std::vector<LayerExtent>& layers = layer_extents()) {
  CAPTURE(reference.type);
  const std::unique_ptr<Backend> cpu = open_backend(DeviceType::kCpu, 1);
  const auto rule = make_rule(reference.type, reference.config());
  UpdateSide<float> expected = layer_side<float>(*cpu, how, *rule, true, layers),
                    found = layer_side<float>(gpu(), how, *rule, true, layers);
  for (UpdateSide<float>* side : {&expected, &found})
    add_matrices(side->backend, *rule, DType::kFloat32, layers, side->args.layers);
  const auto compare = [](const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
    const auto* x = reinterpret_cast<const float*>(a.data());
    const auto* y = reinterpret_cast<const float*>(b.data());
    float worst = 0.0f;
    for (std::size_t i = 0; i < a.size() / sizeof(float); ++i)
      worst = std::max(worst, std::abs(x[i] - y[i]) / (1.0f + std::abs(x[i])));
    CHECK(worst < 2e-5f);
  };
  for (std::int64_t step = 1; step <= 3; ++step) {
    CAPTURE(step);
    const auto before = found.bytes_of(found.args.states[0]);
    for (UpdateSide<float>* side : {&expected, &found}) {
      side->set_step(step);
      run_update(side->backend, *rule, side->args);
    }
    CHECK((found.bytes_of(found.args.states[0]) == before) == (how.controlled && step == 2));
    compare(expected.bytes_of(expected.args.x_out), found.bytes_of(found.args.x_out));
    compare(expected.bytes_of(expected.args.states[0]), found.bytes_of(found.args.states[0]));
    if (!how.in_place) {
      for (UpdateSide<float>* side : {&expected, &found}) std::swap(side->args.x, side->args.x_out);
    }
    if (how.low == DType::kFloat32) continue;
    const auto low = found.bytes_of(found.args.low), x = found.bytes_of(found.args.x_out);
    const auto* rounded = reinterpret_cast<const std::uint16_t*>(low.data());
    for (std::size_t i = 0; i < low.size() / 2; ++i)
      REQUIRE(rounded[i] == BFloat16(reinterpret_cast<const float*>(x.data())[i]).bits);
  }
}

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

TEST_CASE(
    "cuda/layers: every rule that measures layers gives the CPU's bits, for any number of "
    "neighbours") {
  for (const LayerReference& reference : test::layer_rules()) {
    for (const int terms : {0, 1, 2, 3, 17}) compare_sides<float>(reference, {.terms = terms});
    for (const int terms : {0, 17})
      compare_sides<double>(reference, {.terms = terms});  // one kernel
  }
}

TEST_CASE(
    "cuda/layers: another output, a low-precision copy, a clip factor, a skipped step, and "
    "unaligned buffers") {
  in_every_order([] {
    for (const LayerReference& reference : {test::layer_rules()[1], test::layer_rules()[3]}) {
      compare_sides<float>(reference, {.terms = 0, .low = DType::kBFloat16, .controlled = true});
      compare_sides<float>(
          reference, {.terms = 1, .in_place = false, .low = DType::kFloat16, .controlled = true});
      compare_sides<float>(reference, {.terms = 1, .offset = 1});
    }
  });
}

TEST_CASE(
    "cuda/layers: muon's and adafactor's operations give the CPU's numbers to rounding, and a "
    "skipped step changes nothing") {
  in_every_order([] {
    for (const LayerReference& reference : test::layer_rules()) {
      if (reference.type == "muon" || reference.type == "adafactor")
        compare_issued(reference, {.terms = 1, .low = DType::kBFloat16, .controlled = true});
    }
  });
  const LayerReference adafactor{.type = "adafactor"};
  compare_issued(adafactor, {.terms = 0, .in_place = false, .controlled = true},
                 test::odd_extents());
  compare_issued(adafactor, {.terms = 2}, test::odd_extents());
}

}  // namespace starling::tests
