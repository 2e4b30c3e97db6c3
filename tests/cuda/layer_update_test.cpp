#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/error.h"
#include "kernels/gpu_update.h"
#include "kernels/open_backend.h"
#include "tests/cuda/support.h"
#include "tests/kernels/layer_reference.h"

// The update of rules that measure layers, on a GPU against the CPU's: the same bits.
namespace starling::tests {
namespace {

using test::elements_of;
using test::layer_extents;
using test::LayerReference;
using test::make_rule;
using test::normal_numbers;

struct LayerCase {
  int terms = 1;
  bool in_place = true;
  std::int64_t offset = 0;               ///< elements by which all buffers start off an aligned address
  DType low = DType::kFloat32;           ///< of the copy
  DType low_gradient = DType::kFloat32;  ///< the second layer's gradient lies in this precision on a GPU
  bool controlled = false;
};

template <class T>
struct LayerSide {
  /// With the states that the rule's own steps have.
  LayerSide(Backend& to, const LayerCase& how, const OptimizerRule& rule, const std::vector<LayerExtent>& extents)
      : LayerSide(to, how, 0, extents) {
    std::int64_t state = 0;
    for (const LayerExtent& layer : extents) state += state_elements_of(rule, layer);
    for (std::size_t s = 0; s < rule.state_names().size(); ++s)
      args.states.push_back(put(std::vector<T>(static_cast<std::size_t>(state), T(0))));
  }
  LayerSide(Backend& to, const LayerCase& how, std::size_t states, const std::vector<LayerExtent>& extents = layer_extents())
      : backend(to), layers(extents), offset(how.offset) {
    const std::int64_t elements = elements_of(layers);
    const auto n = static_cast<std::size_t>(elements);
    args.x = args.x_out = put(random(1));
    if (!how.in_place) args.x_out = put(random(2));
    args.gradient = put(random(3));
    for (std::size_t s = 0; s < states; ++s) args.states.push_back(put(std::vector<T>(n, T(0))));
    for (int k = 0; k < how.terms; ++k) {
      args.received.push_back(put(random(10 + static_cast<unsigned>(k))));
      args.weights.push_back(1.0 / (how.terms + 1.5 + k));
    }
    args.self_weight = 0.37;
    args.gradient_scale = 0.77;
    std::vector<std::uint8_t> decay(n / 32, kDecays);
    for (std::size_t i = static_cast<std::size_t>(layers[2].first) / 32; i < decay.size(); ++i) decay[i] = 0;
    if (how.low_gradient != DType::kFloat32) {
      rounded_from = static_cast<std::size_t>(layers[1].first);
      rounded_to = rounded_from + static_cast<std::size_t>(layers[1].elements);
      rounding = how.low_gradient;
      if (backend.device() == DeviceType::kCuda) {
        args.gradient_low = Tensor(backend, Shape{elements + offset}, rounding).slice(offset, Shape{elements});
        for (std::size_t i = rounded_from / 32; i < rounded_to / 32; ++i) decay[i] |= kGradientIsLow;
      }
    }
    args.decay = Tensor(backend, Shape{elements / 32}, DType::kUInt8);
    backend.copy_from_host(decay.data(), args.decay);
    if (how.low != DType::kFloat32) args.low = Tensor(backend, Shape{elements + offset}, how.low).slice(offset, Shape{elements});
    if (how.controlled) args.control = Tensor(backend, Shape{2}, DType::kFloat64);
    args.layers = make_update_layers(backend, layers, elements);
    args.lr = 0.3;
  }

  /// The padding is zero.
  std::vector<T> random(unsigned seed) const {
    std::vector<T> result = normal_numbers<T>(static_cast<std::size_t>(elements_of(layers)), seed);
    for (const LayerExtent& layer : layers) std::fill_n(result.begin() + layer.first + layer.elements - layer.padding, layer.padding, T(0));
    return result;
  }
  Tensor put(const std::vector<T>& values) const {
    const auto n = static_cast<std::int64_t>(values.size());
    const Tensor tensor = Tensor(backend, Shape{n + offset}, DTypeOf<T>::value).slice(offset, Shape{n});
    backend.copy_from_host(values.data(), tensor);
    return tensor;
  }
  void set_step(std::int64_t step) {
    args.step = step;
    std::vector<T> gradient = random(100 + static_cast<unsigned>(step));
    if (args.control) {
      const double control[2] = {1.0 / (0.9 + static_cast<double>(step)), step == 2 ? 1.0 : 0.0};
      backend.copy_from_host(control, args.control);
    }
    std::vector<std::uint16_t> low(gradient.size(), 0xffff);  // NaN
    for (std::size_t i = rounded_from; i < rounded_to; ++i) {
      const auto number = static_cast<float>(gradient[i]);
      const bool bf16 = rounding == DType::kBFloat16;
      low[i] = bf16 ? BFloat16(number).bits : Float16(number).bits;
      gradient[i] = static_cast<T>(bf16 ? static_cast<float>(BFloat16(number)) : static_cast<float>(Float16(number)));
      if (args.gradient_low) gradient[i] = static_cast<T>(1e30);  // must not be read
    }
    if (args.gradient_low) backend.copy_from_host(low.data(), args.gradient_low);
    backend.copy_from_host(gradient.data(), args.gradient);
  }
  std::vector<std::byte> bytes_of(const Tensor& tensor) const {
    std::vector<std::byte> result(tensor.bytes());
    backend.copy_to_host(tensor, result.data());
    return result;
  }

  Backend& backend;
  std::vector<LayerExtent> layers;
  std::int64_t offset;
  UpdateArgs args;
  std::size_t rounded_from = 0, rounded_to = 0;
  DType rounding = DType::kFloat32;
};

template <class T>
void compare_sides(const LayerReference& reference, const LayerCase& how) {
  CAPTURE(reference.type);
  CAPTURE(how.terms);
  CAPTURE(sizeof(T));
  const auto rule = make_rule(reference.type, reference.config());
  CHECK(runs_on_gpu(*rule));
  const std::unique_ptr<Backend> cpu = open_backend(DeviceType::kCpu, 1);
  const std::size_t states = rule->state_names().size();
  LayerSide<T> expected(*cpu, how, states), found(gpu(), how, states);
  for (std::int64_t step = 1; step <= 3; ++step) {
    CAPTURE(step);
    const auto before = expected.bytes_of(expected.args.x_out);
    for (LayerSide<T>* side : {&expected, &found}) {
      side->set_step(step);
      side->backend.update({*rule, side->args});
    }
    const bool stands_still = how.controlled && step == 2 && how.terms == 0 && how.in_place;
    CHECK((expected.bytes_of(expected.args.x_out) == before) == stands_still);
    CHECK(found.bytes_of(found.args.x_out) == expected.bytes_of(expected.args.x_out));
    if (!how.controlled || step != 2) CHECK(found.bytes_of(found.args.layers.factors) == expected.bytes_of(expected.args.layers.factors));
    for (std::size_t s = 0; s < states; ++s) CHECK(found.bytes_of(found.args.states[s]) == expected.bytes_of(expected.args.states[s]));
    if (how.low != DType::kFloat32) CHECK(found.bytes_of(found.args.low) == expected.bytes_of(expected.args.low));
    if (!how.in_place) {
      std::swap(expected.args.x, expected.args.x_out);
      std::swap(found.args.x, found.args.x_out);
    }
  }
}

/// By all that the rule issues, to rounding: products and means are summed in another order on a GPU.
void compare_issued(const LayerReference& reference, const LayerCase& how, const std::vector<LayerExtent>& layers = layer_extents()) {
  CAPTURE(reference.type);
  const std::unique_ptr<Backend> cpu = open_backend(DeviceType::kCpu, 1);
  const auto rule = make_rule(reference.type, reference.config());
  LayerSide<float> expected(*cpu, how, *rule, layers), found(gpu(), how, *rule, layers);
  for (LayerSide<float>* side : {&expected, &found}) add_matrices(side->backend, *rule, DType::kFloat32, layers, side->args.layers);
  const auto compare = [](const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
    const auto* x = reinterpret_cast<const float*>(a.data());
    const auto* y = reinterpret_cast<const float*>(b.data());
    float worst = 0.0f;
    for (std::size_t i = 0; i < a.size() / sizeof(float); ++i) worst = std::max(worst, std::abs(x[i] - y[i]) / (1.0f + std::abs(x[i])));
    CHECK(worst < 2e-5f);
  };
  for (std::int64_t step = 1; step <= 3; ++step) {
    CAPTURE(step);
    const auto before = found.bytes_of(found.args.states[0]);
    for (LayerSide<float>* side : {&expected, &found}) {
      side->set_step(step);
      run_update(side->backend, *rule, side->args);
    }
    CHECK((found.bytes_of(found.args.states[0]) == before) == (how.controlled && step == 2));
    compare(expected.bytes_of(expected.args.x_out), found.bytes_of(found.args.x_out));
    compare(expected.bytes_of(expected.args.states[0]), found.bytes_of(found.args.states[0]));
    if (!how.in_place) {
      for (LayerSide<float>* side : {&expected, &found}) std::swap(side->args.x, side->args.x_out);
    }
    if (how.low == DType::kFloat32) continue;
    const auto low = found.bytes_of(found.args.low), x = found.bytes_of(found.args.x_out);
    const auto* rounded = reinterpret_cast<const std::uint16_t*>(low.data());
    for (std::size_t i = 0; i < low.size() / 2; ++i) REQUIRE(rounded[i] == BFloat16(reinterpret_cast<const float*>(x.data())[i]).bits);
  }
}

}  // namespace

TEST_CASE("cuda/layers: every rule that measures layers gives the CPU's bits, for any number of neighbours") {
  for (const LayerReference& reference : test::layer_rules()) {
    for (const int terms : {0, 1, 2, 3, 17}) {
      compare_sides<float>(reference, {.terms = terms});
      compare_sides<double>(reference, {.terms = terms});
    }
  }
}

TEST_CASE("cuda/layers: another output, a low-precision copy, a clip factor, a skipped step, and unaligned buffers") {
  in_every_order([] {
    for (const LayerReference& reference : {test::layer_rules()[1], test::layer_rules()[3]}) {
      compare_sides<float>(reference, {.terms = 0, .low = DType::kBFloat16, .controlled = true});
      compare_sides<float>(reference, {.terms = 1, .in_place = false, .low = DType::kFloat16, .controlled = true});
      compare_sides<float>(reference, {.terms = 1, .offset = 1});
    }
  });
}

TEST_CASE("cuda/layers: muon's and adafactor's operations give the CPU's numbers to rounding, and a skipped step changes nothing") {
  in_every_order([] {
    for (const LayerReference& reference : test::layer_rules()) {
      if (reference.type == "muon" || reference.type == "adafactor")
        compare_issued(reference, {.terms = 1, .low = DType::kBFloat16, .controlled = true});
    }
  });
  const LayerReference adafactor{.type = "adafactor"};
  compare_issued(adafactor, {.terms = 0, .in_place = false, .controlled = true}, test::odd_extents());
  compare_issued(adafactor, {.terms = 2, .low_gradient = DType::kFloat16}, test::odd_extents());
}

TEST_CASE("cuda/layers: gradients that lie in low precision in some layers") {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const LayerReference& reference : test::layer_rules()) compare_sides<float>(reference, {.terms = 1, .low_gradient = dtype});
  }
}

}  // namespace starling::tests
