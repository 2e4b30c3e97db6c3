// Attention and rotary position embeddings: PyTorch's numbers, memory, threads, errors.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "kernels/open_backend.h"
#include "layers/functions.h"
#include "tests/layers/support.h"

namespace starling::testing {
namespace {

namespace f = functions;
using Inputs = std::vector<Variable>;
using Attend = std::function<Variable(const Inputs&, Pass&)>;

constexpr double kMinus = -std::numeric_limits<double>::infinity();

/// That of make_attention.py: query 2 sees nothing.
Tensor mask_of_four(DType dtype) {
  std::vector<double> numbers = noise(9, 24);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    if (numbers[i] > 0.5 || i / 6 == 2) numbers[i] = kMinus;
  return cast_to(tensor_of(numbers, {4, 6}), dtype);
}
Attend attention(bool causal = false, std::optional<double> scale = {}, bool masked = false) {
  return [=](const Inputs& x, Pass& p) {
    const Tensor mask = masked ? mask_of_four(x[0].dtype()) : Tensor();
    return f::scaled_dot_product_attention(x[0], x[1], x[2], mask, causal, scale, 0.0, p);
  };
}
Attend rotary(bool interleaved) {
  return [=](const Inputs& x, Pass& p) {
    return f::rotary(x[0], labels_of({0, 3, 1, 40, 2000}), 100.0, interleaved, p);
  };
}
const std::map<std::string, Attend>& attention_cases() {
  static const std::map<std::string, Attend> table{{"plain", attention()},
                                                   {"causal", attention(true)},
                                                   {"scaled", attention(false, 0.3)},
                                                   {"masked", attention(false, {}, true)},
                                                   {"groups", attention(true)},
                                                   {"rotary", rotary(false)},
                                                   {"rotary pairs", rotary(true)}};
  return table;
}

Shape sizes_of(const nlohmann::json& sizes) {
  return Shape(std::span<const std::int64_t>(sizes.get<std::vector<std::int64_t>>()));
}
std::vector<double> doubled(std::uint64_t seed, const Shape& shape) {
  std::vector<double> numbers = noise(seed, shape.elements());
  for (double& x : numbers) x *= 2.0;
  return numbers;
}

/// The value, then the gradients of the total weighted by noise.
std::vector<std::vector<double>> outcome(const Attend& function, const std::vector<Tensor>& inputs,
                                         Backend& backend = cpu()) {
  Tape tape(backend);
  Pass pass{.backend = backend, .tape = &tape, .training = true};
  Inputs leaves;
  for (const Tensor& x : inputs) leaves.push_back(tape.leaf(x));
  const Variable y = function(leaves, pass);
  std::vector<std::vector<double>> found{numbers_of(y.value())};
  const Tensor weight = cast_to(noise_tensor(77, y.shape()), y.dtype());
  tape.backward(f::sum(f::multiply(y, Variable(weight), pass), {}, false, pass));
  for (const Variable& leaf : leaves) found.push_back(numbers_of(Tape::gradient(leaf)));
  return found;
}

}  // namespace

TEST_CASE("layers/attention: values and gradients are PyTorch's, in every type") {
  const nlohmann::json document = read_json_file("golden/attention.json");
  CHECK(document["cases"].size() == attention_cases().size() + 1);
  for (const nlohmann::json& item : document["cases"]) {
    const std::string name = item["name"];
    if (name == "layer") continue;
    CAPTURE(name);
    const Attend& function = attention_cases().at(name);
    for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
      CAPTURE(name_of(dtype));
      std::vector<Tensor> inputs;
      for (std::size_t k = 0; k < item["shapes"].size(); ++k) {
        const Shape shape = sizes_of(item["shapes"][k]);
        inputs.push_back(cast_to(tensor_of(doubled(k + 1, shape), shape), dtype));
      }
      const auto found = outcome(function, inputs);
      const double tolerance = dtype == DType::kFloat64   ? 1e-12
                               : dtype == DType::kFloat32 ? 2e-6
                                                          : 2e-2;
      CHECK(relative_error(found[0], item["value"].get<std::vector<double>>()) < tolerance);
      for (std::size_t k = 0; k < inputs.size(); ++k) {
        CAPTURE(k);
        CHECK(relative_error(found[k + 1], item["gradients"][k].get<std::vector<double>>()) <
              tolerance);
      }
      if (name != "masked") continue;
      // The query that sees nothing has zeros, and no gradient.
      for (std::size_t i = 0; i < found[0].size(); ++i)
        if (i / 3 % 4 == 2) CHECK((found[0][i] == 0.0 && found[1][i] == 0.0));
    }
  }
}

TEST_CASE("layers/attention: the layer is torch.nn.MultiheadAttention") {
  const nlohmann::json document = read_json_file("golden/attention.json");
  const nlohmann::json& item = document["cases"].back();
  const auto model = model_from(
      R"({"type": "sequential", "layers": [
        {"type": "multi_head_attention", "num_heads": 3, "causal": true}]})",
      {5, 6});
  model->allocate(cpu(), DType::kFloat64);
  const char* names[] = {"0.in_proj_weight", "0.in_proj_bias", "0.out_proj.weight",
                         "0.out_proj.bias"};
  REQUIRE(model->parameters().size() == 4);
  for (std::size_t k = 0; k < 4; ++k) {
    Parameter& parameter = *model->parameters()[k];
    CHECK(parameter.name == names[k]);
    REQUIRE(parameter.shape == sizes_of(item["shapes"][k + 1]));
    cpu().copy(tensor_of(doubled(k + 2, parameter.shape), parameter.shape), parameter.value);
  }
  Tape tape(cpu());
  Pass pass{.backend = cpu(), .tape = &tape, .training = true};
  const Variable x = tape.leaf(tensor_of(doubled(1, {2, 5, 6}), {2, 5, 6}));
  const Variable y = model->forward(x, pass);
  CHECK(relative_error(numbers_of(y.value()), item["value"].get<std::vector<double>>()) < 1e-12);
  tape.backward(
      f::sum(f::multiply(y, Variable(noise_tensor(77, y.shape())), pass), {}, false, pass));
  CHECK(relative_error(numbers_of(Tape::gradient(x)),
                       item["gradients"][0].get<std::vector<double>>()) < 1e-12);
  for (std::size_t k = 0; k < 4; ++k) {
    CAPTURE(k);
    CHECK(relative_error(numbers_of(model->parameters()[k]->grad),
                         item["gradients"][k + 1].get<std::vector<double>>()) < 1e-12);
  }
}

TEST_CASE("layers/attention: layers' gradients are those of finite differences") {
  for (
      const char* layer :
      {R"({"type": "multi_head_attention", "num_heads": 2})",
       R"({"type": "multi_head_attention", "num_heads": 4, "kv_heads": 2, "causal": true, "bias": false})",
       R"({"type": "multi_head_attention", "num_heads": 2, "kv_heads": 1, "dropout": 0.3})"}) {
    CAPTURE(layer);
    const auto model =
        model_from(R"({"type": "sequential", "layers": [)" + std::string(layer) + "]}", {5, 8});
    check_gradients(*model, 2, 0, false, 3);
  }
}

TEST_CASE("layers/attention: heads at the third dimension, and of one tensor, are the same") {
  Pass pass{.backend = cpu()};
  const Variable packed(noise_tensor(1, {2, 5, 4 * 3}));
  const auto part = [&](std::int64_t begin, std::int64_t end, std::int64_t heads) {
    return f::reshape(f::slice(packed, -1, begin, end, pass), {2, 5, heads, 3}, pass);
  };
  const Variable q = part(0, 6, 2), k = part(6, 9, 1), v = part(9, 12, 1);
  const auto second = [&](const Variable& x) { return f::transpose(x, 1, 2, pass); };
  const std::vector<double> expected =
      numbers_of(second(f::scaled_dot_product_attention(second(q), second(k), second(v), {}, true,
                                                        {}, 0.0, pass))
                     .value());
  CHECK(numbers_of(f::packed_attention(packed, 2, 1, {}, true, {}, 0.0, pass).value()) == expected);
  CHECK(numbers_of(
            f::scaled_dot_product_attention(q, k, v, {}, true, {}, 0.0, pass, f::HeadsAt::kThird)
                .value()) == expected);
  // So is a rotation, whose positions repeat for the heads.
  const Tensor at = labels_of({0, 1, 2, 3, 70});
  const Variable turned =
      f::rotary(f::reshape(packed, {2, 5, 3, 4}, pass), at.reshaped({5, 1}), 10.0, true, pass);
  CHECK(
      numbers_of(second(turned).value()) ==
      numbers_of(
          f::rotary(second(f::reshape(packed, {2, 5, 3, 4}, pass)), at, 10.0, true, pass).value()));
}

TEST_CASE("layers/attention: memory is linear in the length, and bits are those of one thread") {
  const auto peak = [](Backend& backend, std::int64_t length) {
    const std::size_t before = backend.memory_stats().in_use;
    Tape tape(backend);
    Pass pass{.backend = backend, .tape = &tape, .training = true, .dropout_key = 3};
    const Variable x = tape.leaf(Tensor(backend, {1, length, 3 * 16}, DType::kFloat32));
    backend.fill(x.value(), 0.25);
    tape.backward(f::sum(f::packed_attention(x, 1, 1, {}, true, {}, 0.1, pass), {}, false, pass));
    return backend.memory_stats().peak_in_use - before;
  };
  // Each on a backend of its own, whose peak is its.
  const auto of = [&](std::int64_t length) {
    return peak(*open_backend(DeviceType::kCpu, 1), length);
  };
  const std::size_t once = of(1024), twice = of(2048);
  CHECK(static_cast<double>(twice) < 2.1 * static_cast<double>(once));

  const auto bits = [](int threads, DType dtype) {
    const auto backend = open_backend(DeviceType::kCpu, threads);
    const Tensor x = cast_to(noise_tensor(5, {2, 130, 5 * 8}), dtype);
    const Tensor own(*backend, x.shape(), dtype);
    backend->copy_from_host(x.raw(), own);
    return outcome([](const Inputs& in,
                      Pass& p) { return f::packed_attention(in[0], 3, 1, {}, true, {}, 0.2, p); },
                   {own}, *backend);
  };
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
    const auto one = bits(1, dtype);
    for (const int threads : {2, 3, 5}) CHECK(bits(threads, dtype) == one);
  }
}

TEST_CASE("layers/attention: errors have both shapes") {
  Pass pass{.backend = cpu()};
  const auto error = [](const std::function<void()>& call) {
    return error_of(ExitCode::kUsage, call);
  };
  const Variable q(noise_tensor(1, {2, 4, 5, 8})), k(noise_tensor(2, {2, 3, 7, 8})),
      other(noise_tensor(3, {2, 4, 7, 6}));
  const auto attend = [&](const Variable& a, const Variable& b, const Tensor& mask) {
    f::scaled_dot_product_attention(a, b, b, mask, false, {}, 0.0, pass);
  };
  CHECK(error([&] { attend(q, k, {}); }) ==
        "[scaled_dot_product_attention] the 4 heads of queries 2×4×5×8 are no multiple of the 3 of "
        "keys 2×3×7×8");
  CHECK(contains(error([&] { attend(q, other, {}); }), "queries fp64 2×4×5×8, keys fp64 2×4×7×6"));
  const Variable low(cast_to(noise_tensor(2, {2, 4, 7, 8}), DType::kBFloat16));
  CHECK(contains(error([&] { attend(q, low, {}); }), "keys bf16 2×4×7×8"));
  CHECK(contains(error([&] {
                   attend(q, q, noise_tensor(4, {4, 5, 6}));
                 }),
                 "a mask fp64 4×5×6 does not broadcast to scores fp64 2×4×5×5"));
  CHECK(contains(error([&] { f::packed_attention(k, 2, 2, {}, false, {}, 0.0, pass); }), "N×T×C"));
  CHECK(contains(error([&] {
                   f::rotary(q, labels_of({1, 2}), 10.0, false, pass);
                 }),
                 "positions 2 do not go with the rows of 2×4×5×8"));
  CHECK(contains(error([&] { f::rotary(q, noise_tensor(1, {5}), 10.0, false, pass); }), "int32"));
  const auto layer = [](const char* keys) {
    return model_error(R"({"type": "sequential", "layers": [{"type": "multi_head_attention", )" +
                           std::string(keys) + "}]}",
                       {5, 6});
  };
  CHECK(contains(layer(R"("num_heads": 4)"), "5×6"));
  CHECK(contains(layer(R"("num_heads": 3, "kv_heads": 2)"), "does not divide num_heads 3"));
}

}  // namespace starling::testing
