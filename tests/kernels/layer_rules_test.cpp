#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/error.h"
#include "core/operations/updates.h"
#include "kernels/open_backend.h"
#include "kernels/optimizer.h"
#include "tests/kernels/built_in.h"
#include "tests/kernels/layer_reference.h"

namespace starling::test {
namespace {

/// A bucket on a backend, with contents in every buffer but the states.
template <class T>
struct LayerBucket {
  Backend& backend;
  std::vector<LayerExtent> layers;
  UpdateArgs args;

  LayerBucket(Backend& to, const OptimizerRule& rule, int terms,
              std::vector<LayerExtent> extents = layer_extents())
      : backend(to), layers(std::move(extents)) {
    const std::int64_t n = elements_of(layers);
    const auto count = static_cast<std::size_t>(n);
    args.x = args.x_out = put(random(1));
    args.gradient = put(random(2));
    std::size_t state = 0;
    for (const LayerExtent& layer : layers)
      state += static_cast<std::size_t>(state_elements_of(rule, layer));
    for (std::size_t s = 0; s < rule.facts().states.size(); ++s)
      args.states.push_back(put(std::vector<T>(state, T(0))));
    for (int k = 0; k < terms; ++k) {
      args.received.push_back(put(random(10 + static_cast<unsigned>(k))));
      args.weights.push_back(static_cast<double>(static_cast<T>(1.0 / (terms + 1.5 + k))));
    }
    args.self_weight = 0.5;
    args.gradient_scale = 0.75;
    std::vector<std::uint8_t> decay(count / 32, 0);
    for (const LayerExtent& layer : layers) {
      if (layer.weight) std::fill_n(decay.begin() + layer.first / 32, layer.elements / 32, kDecays);
    }
    args.decay = Tensor(backend, Shape{n / 32}, DType::kUInt8);
    backend.copy_from_host(decay.data(), args.decay);
    args.layers = make_update_layers(backend, layers, n);
    add_matrices(backend, rule, DTypeOf<T>::value, layers, args.layers);
    backend.synchronize();
  }

  /// As many as the bucket has; the padding is zero.
  std::vector<T> random(unsigned seed) const {
    std::vector<T> result = normal_numbers<T>(static_cast<std::size_t>(elements_of(layers)), seed);
    for (const LayerExtent& layer : layers)
      std::fill_n(result.begin() + layer.first + layer.elements - layer.padding, layer.padding,
                  T(0));
    return result;
  }
  Tensor put(const std::vector<T>& values) const {
    Tensor tensor(backend, Shape{static_cast<std::int64_t>(values.size())}, DTypeOf<T>::value);
    backend.copy_from_host(values.data(), tensor);
    backend.synchronize();
    return tensor;
  }
  std::vector<T> numbers(const Tensor& tensor) const {
    std::vector<T> result(static_cast<std::size_t>(tensor.elements()));
    backend.copy_to_host(tensor, result.data());
    return result;
  }
  void step(const OptimizerRule& rule, std::int64_t s, double lr = 0.01) {
    backend.copy_from_host(random(100 + static_cast<unsigned>(s)).data(), args.gradient);
    args.lr = lr;
    args.step = s;
    run_update(backend, rule, args);
    backend.synchronize();
    if (args.x.raw() != args.x_out.raw()) std::swap(args.x, args.x_out);
  }
  /// Parameters, then states.
  std::vector<std::vector<T>> contents() const {
    std::vector<std::vector<T>> result{numbers(args.x)};
    for (const Tensor& state : args.states) result.push_back(numbers(state));
    return result;
  }
};

double largest_difference(const std::vector<std::vector<float>>& a,
                          const std::vector<std::vector<float>>& b) {
  double largest = 0.0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    for (std::size_t i = 0; i < a[k].size(); ++i)
      largest = std::max(largest, std::abs(static_cast<double>(a[k][i]) - b[k][i]));
  }
  return largest;
}

std::unique_ptr<OptimizerRule> layer_rule(const LayerReference& reference) {
  return make_rule(reference.type, reference.config());
}

template <class T>
void compare_layers(const LayerReference& reference, int terms, double tolerance,
                    std::vector<LayerExtent> layers = layer_extents()) {
  const auto backend = open_backend(DeviceType::kCpu, 2);
  const auto rule = layer_rule(reference);
  LayerBucket<T> bucket(*backend, *rule, terms, std::move(layers));
  const std::vector<T> start = bucket.numbers(bucket.args.x);
  std::vector<double> x(start.begin(), start.end()), first(x.size()), second(x.size());
  std::vector<std::vector<T>> received;
  for (const Tensor& tensor : bucket.args.received) received.push_back(bucket.numbers(tensor));
  for (std::int64_t s = 1; s <= 3; ++s) {
    const double lr =
        reference.type == "lars" ? 2.0 / static_cast<double>(s) : 0.02 / static_cast<double>(s);
    bucket.step(*rule, s, lr);
    const std::vector<T> gradient = bucket.numbers(bucket.args.gradient);
    for (const LayerExtent& layer : bucket.layers) {
      const auto from = static_cast<std::size_t>(layer.first),
                 to = from + static_cast<std::size_t>(layer.elements - layer.padding);
      std::vector<double> p, g,
          m(first.begin() + layer.first, first.begin() + layer.first + layer.elements),
          v(second.begin() + layer.first, second.begin() + layer.first + layer.elements);
      for (std::size_t i = from; i < to; ++i) {
        double c = terms == 0 ? x[i] : 0.5 * x[i];
        for (std::size_t k = 0; k < received.size(); ++k)
          c += bucket.args.weights[k] * static_cast<double>(received[k][i]);
        p.push_back(c);
        g.push_back(0.75 * static_cast<double>(gradient[i]));
      }
      reference.step(p, g, m, v, layer, lr, s);
      std::copy(p.begin(), p.end(), x.begin() + layer.first);
      std::copy(m.begin(), m.end(), first.begin() + layer.first);
      std::copy(v.begin(), v.end(), second.begin() + layer.first);
    }
    double worst = 0;
    const std::vector<T> found = bucket.numbers(bucket.args.x);
    for (std::size_t i = 0; i < x.size(); ++i)
      worst =
          std::max(worst, std::abs(static_cast<double>(found[i]) - x[i]) / (1 + std::abs(x[i])));
    INFO(reference.type, " terms ", terms, " step ", s);
    REQUIRE(worst < tolerance);
  }
}

/// measure_span of every instruction set that this machine has: the same bits, and not zero.
template <class T>
void check_measured(const OptimizerRule& rule) {
  for (int terms = 0; terms <= 3; ++terms) {
    with_step_of<T>(rule, 0.01, 3, [&](const auto& step) {
      using Step = std::remove_cvref_t<decltype(step)>;
      if constexpr (kMeasuresLayers<Step>) {
        Bucket<T> bucket = filled_bucket<T>(1024, Step::kStates, terms);
        std::vector<const T*> pointers;
        const UpdateSpan<T> span = bucket.span(0, 1024, pointers);
        std::vector<double> scalar(2 * kLayerLanes), wide(2 * kLayerLanes);
        cpu::scalar::measure_span(step, span, scalar.data());
        CHECK(std::count(scalar.begin(), scalar.end(), 0.0) == 0);
        if (cpu::hardware_isa() >= cpu::Isa::kAvx2) {
          cpu::avx2::measure_span(step, span, wide.data());
          CHECK(scalar == wide);
        }
        if (cpu::hardware_isa() >= cpu::Isa::kAvx512) {
          wide.assign(wide.size(), 0.0);
          cpu::avx512::measure_span(step, span, wide.data());
          CHECK(scalar == wide);
        }
      }
    });
  }
}

}  // namespace

TEST_CASE(
    "kernels/layers: every rule agrees with its plain definition, alone and with neighbours, over "
    "layers of several pieces") {
  for (const LayerReference& reference : layer_rules()) {
    // Each type with each of its loops (fp64 has one) and with each kind of layers, one of which is
    // for even numbers. Of muon's products of odd matrices the tolerance is another one.
    for (const int terms : {0, 1, 2, 3}) {
      const bool odd = terms % 2 == 1 && reference.type != "muon",
                 even = terms % 2 == 0 && reference.type != "muon";
      if (terms % 3 == 0)
        compare_layers<double>(reference, terms, 1e-12, odd ? odd_extents() : layer_extents());
      compare_layers<float>(reference, terms, 3e-5, even ? odd_extents() : layer_extents());
    }
  }
}

TEST_CASE(
    "kernels/layers: parity with timm and torch in fp64, with a layer of zeros and one without "
    "gradient") {
  const nlohmann::json document = read_json_file("golden/layer_optimizers.json");
  const auto backend = open_backend(DeviceType::kCpu, 1);
  std::vector<LayerExtent> layers;
  for (const auto& shape : document["shapes"]) {
    std::int64_t elements = 1;
    for (const auto& size : shape) elements *= size.get<std::int64_t>();
    const std::int64_t padded = (elements + 31) / 32 * 32;
    layers.push_back({.first = layers.empty() ? 0 : elements_of(layers),
                      .elements = padded,
                      .weight = shape.size() > 1,
                      .padding = padded - elements});
    if (shape.size() > 1) layers.back().columns = elements / (layers.back().rows = shape[0]);
  }
  const auto laid_out = [&](const nlohmann::json& numbers) {
    std::vector<double> result(static_cast<std::size_t>(elements_of(layers)));
    for (std::size_t k = 0; k < layers.size(); ++k) {
      for (std::size_t i = 0; i < numbers[k].size(); ++i)
        result[static_cast<std::size_t>(layers[k].first) + i] = numbers[k][i];
    }
    return result;
  };
  int cases = 0;
  for (const auto& item : document["optimizers"]) {
    const auto rule = make_rule(item["type"], item["config"]);
    LayerBucket<double> bucket(*backend, *rule, 0, layers);
    bucket.args.x = bucket.args.x_out = bucket.put(laid_out(document["x"]));
    bucket.args.gradient_scale = 1.0;
    std::size_t kept = 0;
    for (std::size_t step = 0; step < document["gradients"].size(); ++step) {
      bucket.args.gradient = bucket.put(laid_out(document["gradients"][step]));
      bucket.args.lr = document["rates"][step];
      bucket.args.step = static_cast<std::int64_t>(step) + 1;
      run_update(*backend, *rule, bucket.args);
      if (kept == document["kept_steps"].size() || document["kept_steps"][kept] != step + 1)
        continue;
      const std::vector<double> expected = laid_out(item["x"][kept]),
                                found = bucket.numbers(bucket.args.x);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        INFO(item["type"].dump(), item["config"].dump(), " step ", step + 1, " element ", i);
        CHECK(std::abs(found[i] - expected[i]) < 1e-13);
      }
      ++kept;
    }
    CHECK(kept == 3);
    ++cases;
  }
  CHECK(cases == 32);
}

TEST_CASE(
    "kernels/layers: no bit depends on threads, on another output, or on how layers are put into "
    "buckets") {
  for (const LayerReference& reference : layer_rules()) {
    const auto rule = layer_rule(reference);
    for (const int terms : {0, 1, 3}) {
      const auto one = open_backend(DeviceType::kCpu, 1);
      LayerBucket<float> expected(*one, *rule, terms);
      const auto before = expected.contents();
      for (std::int64_t s = 1; s <= 3; ++s) expected.step(*rule, s);
      CHECK(expected.contents() != before);
      const auto backend = open_backend(DeviceType::kCpu, terms == 1 ? 2 : 3);
      LayerBucket<float> found(*backend, *rule, terms);
      if (terms != 1) found.args.x_out = Tensor(*backend, found.args.x.shape(), DType::kFloat32);
      for (std::int64_t s = 1; s <= 3; ++s) found.step(*rule, s);
      // A library's products of matrices may add up in another order with other threads, and Muon's
      // iterations enlarge a rounding.
      if (rule->workspace(expected.layers) > 0)
        CHECK(largest_difference(found.contents(), expected.contents()) < 1e-3);
      else
        CHECK(found.contents() == expected.contents());
      // Each layer a bucket of its own.
      LayerBucket<float> apart(*one, *rule, terms);
      for (std::int64_t s = 1; s <= 3; ++s) {
        one->copy_from_host(normal_numbers<float>(static_cast<std::size_t>(apart.args.x.elements()),
                                                  100 + static_cast<unsigned>(s))
                                .data(),
                            apart.args.gradient);
        std::int64_t state_first = 0;
        for (const LayerExtent& layer : apart.layers) {
          const auto part = [&](const Tensor& tensor) {
            return tensor.slice(layer.first, Shape{layer.elements});
          };
          UpdateArgs args = apart.args;
          args.x = args.x_out = part(args.x);
          args.gradient = part(args.gradient);
          const std::int64_t own = state_elements_of(*rule, layer);
          for (Tensor& state : args.states) state = state.slice(state_first, Shape{own});
          state_first += own;
          for (Tensor& received : args.received) received = part(received);
          args.decay = args.decay.slice(layer.first / 32, Shape{layer.elements / 32});
          std::vector<LayerExtent> alone{layer};
          alone[0].first = 0;
          args.layers = make_update_layers(*one, alone, layer.elements);
          add_matrices(*one, *rule, DType::kFloat32, alone, args.layers);
          args.lr = 0.01;
          args.step = s;
          run_update(*one, *rule, args);
        }
      }
      CHECK(apart.contents() == expected.contents());
    }
  }
}

TEST_CASE("kernels/layers: a sum's terms, a low-precision copy, a clip factor and a skipped step") {
  const auto backend = open_backend(DeviceType::kCpu, 2);
  for (const LayerReference& reference : layer_rules()) {
    const auto rule = layer_rule(reference);
    LayerBucket<float> terms(*backend, *rule, 3), sum(*backend, *rule, 1);
    terms.args.sum_received = true;
    terms.args.weights = sum.args.weights = {0.25};
    std::vector<float> total = terms.numbers(terms.args.received[0]);
    for (std::size_t k = 1; k < 3; ++k) {
      const std::vector<float> term = terms.numbers(terms.args.received[k]);
      for (std::size_t i = 0; i < total.size(); ++i) total[i] += term[i];
    }
    sum.args.received = {sum.put(total)};
    terms.args.low = Tensor(*backend, terms.args.x.shape(), DType::kBFloat16);
    for (std::int64_t s = 1; s <= 2; ++s) {
      terms.step(*rule, s);
      sum.step(*rule, s);
    }
    CHECK(terms.contents() == sum.contents());
    const std::vector<float> x = terms.numbers(terms.args.x);
    for (std::size_t i = 0; i < x.size(); ++i)
      REQUIRE(terms.args.low.data<BFloat16>()[i].bits == BFloat16(x[i]).bits);

    LayerBucket<float> clipped(*backend, *rule, 0), scaled(*backend, *rule, 0);
    clipped.args.control = Tensor(*backend, Shape{2}, DType::kFloat64);
    const double control[2] = {0.5, 0.0}, skip[2] = {0.5, 1.0};
    backend->copy_from_host(control, clipped.args.control);
    scaled.args.gradient_scale *= 0.5;
    clipped.step(*rule, 1);
    scaled.step(*rule, 1);
    CHECK(clipped.contents() == scaled.contents());
    backend->copy_from_host(skip, clipped.args.control);
    clipped.step(*rule, 2);
    CHECK(clipped.contents() == scaled.contents());
  }
}

TEST_CASE("kernels/layers: every instruction set measures the same bits") {
  for (const LayerReference& reference : layer_rules()) {
    check_measured<float>(*layer_rule(reference));
    check_measured<double>(*layer_rule(reference));
  }
}

TEST_CASE("kernels/layers: adafactor keeps a row and a column of a matrix") {
  const auto backend = open_backend(DeviceType::kCpu, 2);
  const auto rule = make_rule("adafactor", {{"d", 1.0}});
  const std::vector<LayerExtent> layers{{0, 4096, true, 64, 64}, {4096, 32, false, 0, 0, 12}};
  CHECK(rule->state_elements(layers[0]) == 128);
  CHECK(rule->state_elements({0, 64, true, 5, 9, 19}) == 64);
  CHECK(rule->state_elements(layers[1]) == 0);
  CHECK(rule->facts().states == std::vector<std::string>{"variance"});
  const LayerBucket<double> bucket(*backend, *rule, 0, layers);
  CHECK(bucket.args.states[0].elements() == 128 + 32);
  CHECK(bucket.args.layers.workspace.elements() == 4128 + 160 + 2 * 64 + 32);
}

TEST_CASE("kernels/layers: adafactor refuses states and layers of another bucket") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const auto rule = make_rule("adafactor", nlohmann::json::object());
  const auto refuses = [&](const std::function<void(UpdateArgs&)>& change) {
    LayerBucket<float> bucket(*backend, *rule, 0);
    change(bucket.args);
    bucket.args.lr = 0.1;
    CHECK_THROWS_AS(run_update(*backend, *rule, bucket.args), Error);
  };
  refuses([](UpdateArgs& args) { args.layers.extents.clear(); });
  refuses([](UpdateArgs& args) { args.states[0] = args.x; });
  refuses([](UpdateArgs& args) { args.states.clear(); });
  UpdateLayers tables = make_update_layers(*backend, {{0, 64, true, 8, 8}}, 64);
  CHECK_THROWS_AS(add_matrices(*backend, *rule, DType::kFloat32, {{0, 64, true, 9, 8}}, tables),
                  Error);
  const Tensor small(*backend, Shape{64}, DType::kFloat32);
  CHECK_THROWS_AS(
      add_matrices(*backend, *rule, DType::kFloat32, {{0, 64, true, 8, 8}}, tables, small), Error);
  CHECK_THROWS_AS(make_update_layers(*backend, {{0, 64, true, 8, 8, 64}}, 64), Error);
}

TEST_CASE("kernels/layers: a step is as long as the rule says, whatever the gradient's scale") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  for (const double scale : {1e-12, 1.0, 1e12}) {
    for (const std::string type : {"lars", "lamb"}) {
      const auto rule = make_rule(type, {{"weight_decay", 0.0}, {"eps", 1e-30}});
      LayerBucket<float> bucket(*backend, *rule, 0, {{0, 4096, true}, {4096, 32, false}});
      bucket.args.gradient_scale = scale;
      const std::vector<float> before = bucket.numbers(bucket.args.x);
      bucket.step(*rule, 1, 0.1);
      const std::vector<float> after = bucket.numbers(bucket.args.x);
      double moved = 0, norm = 0;
      for (std::size_t i = 0; i < 4096; ++i) {
        const double d = static_cast<double>(after[i]) - static_cast<double>(before[i]);
        moved += d * d;
        norm += static_cast<double>(before[i]) * static_cast<double>(before[i]);
      }
      CHECK(std::sqrt(moved / norm) == doctest::Approx(type == "lars" ? 1e-4 : 0.1).epsilon(2e-3));
    }
  }
}

TEST_CASE(
    "kernels/layers: layers without weights, without gradients and without both stay finite") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  for (const std::string type : {"lars", "lamb"}) {
    const auto rule = make_rule(type, {{"weight_decay", 0.1}, {"eps", 1e-60}});
    LayerBucket<float> bucket(*backend, *rule, 0, {{0, 64, true}, {64, 64, true}, {128, 64, true}});
    std::vector<float> x(192, 0.0f), gradient(192, 0.0f);
    std::fill_n(x.begin(), 64, 1.0f);              // no gradient
    std::fill_n(gradient.begin() + 64, 64, 1.0f);  // no weights
    bucket.args.x = bucket.args.x_out = bucket.put(x);
    bucket.args.gradient = bucket.put(gradient);
    bucket.args.lr = 0.5;
    bucket.args.gradient_scale = 1.0;
    backend->update({*rule, bucket.args});
    const std::vector<float> after = bucket.numbers(bucket.args.x);
    for (std::size_t i = 0; i < 64; ++i) {
      // lars decays by lr·wd; lamb's direction is wd·p alone, as long as the layer.
      CHECK(after[i] == doctest::Approx(type == "lars" ? 0.95 : 0.5).epsilon(1e-6));
      CHECK(after[64 + i] == doctest::Approx(-0.5).epsilon(1e-6));
      CHECK(after[128 + i] == 0.0f);
    }
  }
}

TEST_CASE("kernels/layers: tables that do not fit are refused") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const auto rule = make_rule("lamb", nlohmann::json::object());
  CHECK(rule->facts().measures_layers);
  CHECK(!make_rule("adamw", nlohmann::json::object())->facts().measures_layers);
  const auto refuses = [&](const std::function<void(UpdateArgs&)>& change) {
    LayerBucket<float> bucket(*backend, *rule, 0);
    change(bucket.args);
    bucket.args.lr = 0.1;
    CHECK_THROWS_AS(backend->update({*rule, bucket.args}), Error);
  };
  refuses([](UpdateArgs& args) { args.layers = {}; });
  refuses([&](UpdateArgs& args) {
    args.layers = make_update_layers(*backend, {{0, 64, true}}, 64);
  });
  CHECK_THROWS_AS(make_update_layers(*backend, {{0, 64, true}, {96, 32, true}}, 128), Error);
  CHECK_THROWS_AS(make_update_layers(*backend, {{0, 33, true}}, 33), Error);
  CHECK_THROWS_AS(make_update_layers(*backend, {{0, 64, true}}, 128), Error);
  UpdateLayers tables = make_update_layers(*backend, {{0, 64, true}}, 64);
  const auto muon = make_rule("muon", nlohmann::json::object());
  CHECK_THROWS_AS(add_matrices(*backend, *muon, DType::kFloat32, {{0, 64, true, 9, 8}}, tables),
                  Error);
}

TEST_CASE("kernels/layers: memory of the tables, and of muon's products") {
  const std::vector<LayerExtent> matrix{{0, 320, true, 10, 30, 20}};
  CHECK(make_rule("muon", nlohmann::json::object())->workspace(matrix) == 2 * (320 + 128));
  CHECK(make_rule("lamb", nlohmann::json::object())->workspace(matrix) == 0);
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const UpdateLayers tables =
      make_update_layers(*backend, layer_extents(), elements_of(layer_extents()));
  std::int64_t bytes = 0;
  for (const LayerExtent& layer : layer_extents()) bytes += update_layer_bytes(layer.elements);
  for (const Tensor& table :
       {tables.owner, tables.pieces, tables.layers, tables.sums, tables.factors})
    bytes -= static_cast<std::int64_t>(table.bytes());
  CHECK(bytes == 0);
}

}  // namespace starling::test
