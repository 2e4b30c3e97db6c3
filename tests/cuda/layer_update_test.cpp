#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/operations/updates.h"
#include "kernels/gpu_update.h"
#include "kernels/open_backend.h"
#include "tests/cuda/support.h"
#include "tests/cuda/update_side.h"
#include "tests/kernels/layer_reference.h"

// The update of rules that measure layers, on a GPU against the CPU's: the same bits.
namespace starling::tests {
namespace {

using test::elements_of;
using test::layer_extents;
using test::LayerReference;
using test::make_rule;
using test::normal_numbers;

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
