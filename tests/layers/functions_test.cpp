// Tensor functions: against PyTorch's numbers, and what they may not do.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/forwarding_backend.h"
#include "core/operations/all.h"
#include "core/operations/checker.h"
#include "layers/functions.h"
#include "tests/layers/support.h"
#include "tests/support/folder.h"

namespace starling::testing {
namespace {

namespace f = functions;
using In = std::vector<Variable>;
using Function = std::function<Variable(const In&, Pass&)>;

Tensor index_of(const std::vector<std::int32_t>& numbers, const Shape& shape) {
  return labels_of(numbers).reshaped(shape);
}

/// A parameter that is not trained, as there is one beside x.
Parameter& fixed(std::uint64_t seed, const Shape& shape, const Variable& x) {
  static std::deque<Parameter> all;  // a pass may still go back through them
  Parameter& made = all.emplace_back();
  made.shape = shape;
  made.trainable = false;
  made.value = cast_to(noise_tensor(seed, shape), wide_of(x.dtype()));
  if (is_low_precision(x.dtype())) made.low = cast_to(made.value, x.dtype());
  return made;
}

/// The functions of golden/functions.json, by name.
const std::map<std::string, Function>& all_functions() {
  static const std::map<std::string, Function> table{
      {"add", [](const In& x, Pass& p) { return f::add(x[0], x[1], p); }},
      {"subtract", [](const In& x, Pass& p) { return f::subtract(x[0], x[1], p); }},
      {"multiply", [](const In& x, Pass& p) { return f::multiply(x[0], x[1], p); }},
      {"divide", [](const In& x, Pass& p) { return f::divide(x[0], x[1], p); }},
      {"power", [](const In& x, Pass& p) { return f::power(x[0], x[1], p); }},
      {"maximum", [](const In& x, Pass& p) { return f::maximum(x[0], x[1], p); }},
      {"minimum", [](const In& x, Pass& p) { return f::minimum(x[0], x[1], p); }},
      {"maximum of equal",
       [](const In& x, Pass& p) {
         const Variable half = f::multiply(x[0], 0.5, p);
         return f::maximum(half, f::subtract(x[0], half, p), p);
       }},
      {"negative", [](const In& x, Pass& p) { return f::negative(x[0], p); }},
      {"abs", [](const In& x, Pass& p) { return f::abs(x[0], p); }},
      {"square", [](const In& x, Pass& p) { return f::square(x[0], p); }},
      {"reciprocal", [](const In& x, Pass& p) { return f::reciprocal(x[0], p); }},
      {"exp", [](const In& x, Pass& p) { return f::exp(x[0], p); }},
      {"log", [](const In& x, Pass& p) { return f::log(x[0], p); }},
      {"log1p", [](const In& x, Pass& p) { return f::log1p(x[0], p); }},
      {"sqrt", [](const In& x, Pass& p) { return f::sqrt(x[0], p); }},
      {"rsqrt", [](const In& x, Pass& p) { return f::rsqrt(x[0], p); }},
      {"sin", [](const In& x, Pass& p) { return f::sin(x[0], p); }},
      {"cos", [](const In& x, Pass& p) { return f::cos(x[0], p); }},
      {"tanh", [](const In& x, Pass& p) { return f::tanh(x[0], p); }},
      {"sigmoid", [](const In& x, Pass& p) { return f::sigmoid(x[0], p); }},
      {"softplus", [](const In& x, Pass& p) { return f::softplus(x[0], p); }},
      {"erf", [](const In& x, Pass& p) { return f::erf(x[0], p); }},
      {"relu", [](const In& x, Pass& p) { return f::relu(x[0], p); }},
      {"gelu", [](const In& x, Pass& p) { return f::gelu(x[0], p); }},
      {"gelu tanh", [](const In& x, Pass& p) { return f::gelu(x[0], p, f::GeluForm::kTanh); }},
      {"silu", [](const In& x, Pass& p) { return f::silu(x[0], p); }},
      {"clamp", [](const In& x, Pass& p) { return f::clamp(x[0], -0.5, 0.75, p); }},
      {"where",
       [](const In& x, Pass& p) {
         return f::where(f::less(x[1], 0.1, p), x[0], f::multiply(x[1], x[0], p), p);
       }},
      {"gated",
       [](const In& x, Pass& p) {
         return f::add(f::multiply(f::gelu(x[0], p), f::sigmoid(x[1], p), p), x[2], p);
       }},
      {"chain",
       [](const In& x, Pass& p) {
         const Variable quotient = f::divide(f::exp(f::multiply(x[0], x[1], p), p), x[2], p);
         return f::multiply(f::tanh(f::subtract(quotient, f::sqrt(x[2], p), p), p),
                            f::log(f::add(x[1], x[0], p), p), p);
       }},
      {"sum",
       [](const In& x, Pass& p) {
         return f::sum(x[0], {0, 2}, false, p);
       }},
      {"sum kept", [](const In& x, Pass& p) { return f::sum(x[0], {-2}, true, p); }},
      {"mean",
       [](const In& x, Pass& p) {
         return f::mean(x[0], {1, 2}, false, p);
       }},
      {"mean of all", [](const In& x, Pass& p) { return f::mean(x[0], {}, false, p); }},
      {"max", [](const In& x, Pass& p) { return f::max(x[0], {-1}, false, p); }},
      {"min",
       [](const In& x, Pass& p) {
         return f::min(x[0], {0, 1}, false, p);
       }},
      {"max of equal",
       [](const In& x, Pass& p) { return f::max(f::clamp(x[0], -0.2, 0.2, p), {1}, false, p); }},
      {"variance", [](const In& x, Pass& p) { return f::variance(x[0], {-1}, 1, false, p); }},
      {"variance of a batch",
       [](const In& x, Pass& p) {
         return f::variance(x[0], {0, 1}, 0, true, p);
       }},
      {"logsumexp",
       [](const In& x, Pass& p) {
         return f::logsumexp(x[0], {1, 2}, false, p);
       }},
      {"norm", [](const In& x, Pass& p) { return f::norm(x[0], {1}, false, p); }},
      {"softmax", [](const In& x, Pass& p) { return f::softmax(x[0], -1, p); }},
      {"softmax along 1", [](const In& x, Pass& p) { return f::softmax(x[0], 1, p); }},
      {"log_softmax", [](const In& x, Pass& p) { return f::log_softmax(x[0], -1, p); }},
      {"log_softmax along 0", [](const In& x, Pass& p) { return f::log_softmax(x[0], 0, p); }},
      {"cumsum", [](const In& x, Pass& p) { return f::cumsum(x[0], -1, p); }},
      {"cumsum along 1", [](const In& x, Pass& p) { return f::cumsum(x[0], 1, p); }},
      {"topk", [](const In& x, Pass& p) { return f::topk(x[0], 2, -1, p).values; }},
      {"topk along 0", [](const In& x, Pass& p) { return f::topk(x[0], 1, 0, p).values; }},
      {"scatter_add",
       [](const In& x, Pass& p) {
         const Tensor index = index_of({0, 2, 1, 2, 0, 1, 1, 0, 1, 1, 0, 2, 2, 2, 0, 2}, {2, 2, 4});
         return f::scatter_add(x[0], 1, index, x[1], p);
       }},
      {"group_norm",
       [](const In& x, Pass& p) {
         return f::group_norm(x[0], 2, &fixed(50, {4}, x[0]), &fixed(51, {4}, x[0]), 1e-5, p);
       }},
      {"group_norm of rows",
       [](const In& x, Pass& p) { return f::group_norm(x[0], 2, nullptr, nullptr, 1e-5, p); }},
      {"instance_norm",
       [](const In& x, Pass& p) { return f::instance_norm(x[0], nullptr, nullptr, 1e-5, p); }},
      {"conv_transpose2d",
       [](const In& x, Pass& p) {
         const Window2d window{{3, 2}, {2, 3}, {1, 0}, {1, 2}, 2};
         return f::conv_transpose2d(x[0], fixed(52, {4, 3, 2, 3}, x[0]), &fixed(53, {6}, x[0]),
                                    window, {1, 2}, p);
       }},
      {"upsample",
       [](const In& x, Pass& p) { return f::upsample(x[0], 2.0, Resampling::kNearest, p); }},
      {"upsample smaller",
       [](const In& x, Pass& p) { return f::upsample(x[0], 0.7, Resampling::kNearest, p); }},
      {"upsample bilinear",
       [](const In& x, Pass& p) { return f::upsample(x[0], 2.0, Resampling::kBilinear, p); }},
      {"upsample bilinear by 1.75",
       [](const In& x, Pass& p) { return f::upsample(x[0], 1.75, Resampling::kBilinear, p); }},
      {"adaptive_avg_pool2d",
       [](const In& x, Pass& p) {
         return f::adaptive_avg_pool2d(x[0], {3, 2}, p);
       }},
      {"cross_entropy",
       [](const In& x, Pass& p) {
         return f::cross_entropy(x[0], index_of({4, -100, 0, 2, -100, 2}, {2, 3}), 0.1, 1.0, p);
       }},
      {"linear_cross_entropy",
       [](const In& x, Pass& p) {
         return f::linear_cross_entropy(x[0], fixed(54, {5, 4}, x[0]),
                                        index_of({4, -100, 0, 2, -100, 2}, {2, 3}), 1.0, p, 4);
       }},
      {"matmul", [](const In& x, Pass& p) { return f::matmul(x[0], x[1], p); }},
      {"matmul of batches", [](const In& x, Pass& p) { return f::matmul(x[0], x[1], p); }},
      {"matmul with one matrix", [](const In& x, Pass& p) { return f::matmul(x[0], x[1], p); }},
      {"matmul of a row", [](const In& x, Pass& p) { return f::matmul(x[0], x[1], p); }},
      {"matmul with a column", [](const In& x, Pass& p) { return f::matmul(x[0], x[1], p); }},
      {"matmul of vectors", [](const In& x, Pass& p) { return f::matmul(x[0], x[1], p); }},
      {"permute",
       [](const In& x, Pass& p) {
         return f::permute(x[0], {2, 0, 1}, p);
       }},
      {"transpose", [](const In& x, Pass& p) { return f::transpose(x[0], 0, -1, p); }},
      {"expand",
       [](const In& x, Pass& p) {
         return f::expand(x[0], {2, 3, 4}, p);
       }},
      {"slice", [](const In& x, Pass& p) { return f::slice(x[0], -1, 1, 3, p); }},
      {"slice of the first", [](const In& x, Pass& p) { return f::slice(x[0], 0, -1, 9, p); }},
      {"split",
       [](const In& x, Pass& p) {
         const std::vector<Variable> parts = f::split(x[0], {1, 2}, 1, p);
         return f::multiply(parts[1], parts[0], p);
       }},
      {"concat",
       [](const In& x, Pass& p) {
         return f::concat({x[0], x[1], x[0]}, 1, p);
       }},
      {"stack",
       [](const In& x, Pass& p) {
         return f::stack({x[0], x[1]}, 1, p);
       }},
      {"pad",
       [](const In& x, Pass& p) {
         return f::pad(x[0], {1, 2, 0, 1}, 0.25, p);
       }},
      {"flip",
       [](const In& x, Pass& p) {
         return f::flip(x[0], {0, 2}, p);
       }},
      {"gather",
       [](const In& x, Pass& p) {
         return f::gather(x[0], 1, index_of({0, 2, 1, 2, 1, 1, 0, 2}, {2, 1, 4}), p);
       }},
      {"index_select",
       [](const In& x, Pass& p) {
         return f::index_select(x[0], 1, labels_of({2, 0, 2}), p);
       }},
  };
  return table;
}

Shape shape_of(const nlohmann::json& sizes) {
  return Shape(std::span<const std::int64_t>(sizes.get<std::vector<std::int64_t>>()));
}

/// A case's inputs, in [low, high).
std::vector<std::vector<double>> inputs_of(const nlohmann::json& item) {
  const double low = item["range"][0], high = item["range"][1];
  std::vector<std::vector<double>> result;
  for (std::size_t k = 0; k < item["shapes"].size(); ++k) {
    result.push_back(noise(k + 1, shape_of(item["shapes"][k]).elements()));
    for (double& x : result.back()) x = low + (high - low) * (x + 1.0) / 2.0;
  }
  return result;
}

struct Outcome {
  Shape shape;
  std::vector<double> value;
  std::vector<std::vector<double>> gradients;
};
/// Value and gradients of the weighted total, in a dtype, with inputs that it holds.
Outcome run(const Function& function, const nlohmann::json& item,
            const std::vector<std::vector<double>>& inputs, DType dtype) {
  Tape tape(cpu());
  Pass pass{.backend = cpu(), .tape = &tape, .training = true};
  In leaves;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const Tensor x = cast_to(tensor_of(inputs[k], shape_of(item["shapes"][k])), dtype);
    leaves.push_back(tape.leaf(x));
  }
  const Variable y = function(leaves, pass);
  Outcome found{y.shape(), numbers_of(y.value()), {}};
  const Tensor weight = cast_to(noise_tensor(77, y.shape()), y.dtype());
  const Variable total =
      f::sum(f::multiply(f::reshape(y, {y.shape().elements()}, pass),
                         Variable(weight.reshaped({y.shape().elements()})), pass),
             {}, false, pass);
  tape.backward(total);
  for (const Variable& leaf : leaves) found.gradients.push_back(numbers_of(Tape::gradient(leaf)));
  return found;
}

/// Counts passes over memory.
class Counting final : public ForwardingBackend {
 public:
  explicit Counting(Backend& inner) : ForwardingBackend(inner) {}
  void issue(const Map& args) override { ++maps, ForwardingBackend::issue(args); }
  void issue(const Reduce& args) override { ++reductions, ForwardingBackend::issue(args); }
  int maps = 0, reductions = 0;
};

using Names = std::set<std::string>;

/// What the first group of the pattern matches.
Names matches_of(const std::string& text, const std::string& pattern) {
  Names result;
  const std::regex regex(pattern, std::regex::multiline);
  for (std::sregex_iterator i(text.begin(), text.end(), regex), end; i != end; ++i)
    result.insert((*i)[1]);
  return result;
}

}  // namespace

TEST_CASE("layers/functions: values and gradients are PyTorch's, in every type") {
  const nlohmann::json document = read_json_file("golden/functions.json");
  CHECK(document["cases"].size() == all_functions().size());
  for (const nlohmann::json& item : document["cases"]) {
    const std::string name = item["name"];
    CAPTURE(name);
    REQUIRE(all_functions().count(name) == 1);
    const Function& function = all_functions().at(name);
    const std::vector<std::vector<double>> inputs = inputs_of(item);
    const Outcome found = run(function, item, inputs, DType::kFloat64);
    CHECK(found.shape == shape_of(item["shape"]));
    CHECK(relative_error(found.value, item["value"].get<std::vector<double>>()) < 1e-12);
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      CAPTURE(k);
      CHECK(relative_error(found.gradients[k], item["gradients"][k].get<std::vector<double>>()) <
            1e-12);
    }
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      CAPTURE(name_of(dtype));
      // What the dtype holds of the inputs, so that only the function's own roundings differ.
      std::vector<std::vector<double>> held;
      for (const std::vector<double>& x : inputs)
        held.push_back(
            numbers_of(cast_to(tensor_of(x, {static_cast<std::int64_t>(x.size())}), dtype)));
      // Numbers that rounding makes equal share a gradient otherwise.
      if (name == "max of equal" || name == "maximum of equal") continue;
      const double tolerance = dtype == DType::kFloat32 ? 1e-5 : 1.5e-2;
      const Outcome exact = run(function, item, held, DType::kFloat64),
                    narrow = run(function, item, held, dtype);
      CHECK(relative_error(narrow.value, exact.value) < tolerance);
      for (std::size_t k = 0; k < inputs.size(); ++k) {
        CAPTURE(k);
        CHECK(relative_error(narrow.gradients[k], exact.gradients[k]) < tolerance);
      }
    }
  }
}

TEST_CASE("layers/functions: a chain is one pass forward and one backward") {
  Counting backend(cpu());
  Tape tape(backend);
  Pass pass{.backend = backend, .tape = &tape, .training = true};
  const Shape shape{4, 8};
  const Variable x = tape.leaf(noise_tensor(1, shape)), y = tape.leaf(noise_tensor(2, shape)),
                 z = tape.leaf(noise_tensor(3, shape)), row = tape.leaf(noise_tensor(4, {8}));
  const Variable gated = f::add(f::multiply(f::gelu(x, pass), f::sigmoid(y, pass), pass), z, pass);
  CHECK(backend.maps == 0);
  CHECK(gated.shape() == shape);
  CHECK(gated.requires_grad());
  (void)gated.value();
  CHECK(backend.maps == 1);
  (void)gated.value();
  CHECK(backend.maps == 1);
  const Variable shifted = f::tanh(f::add(gated, row, pass), pass);
  CHECK(backend.reductions == 0);
  // What is added up goes with the sum.
  const Variable total = f::sum(shifted, {}, false, pass);
  CHECK(backend.maps == 1);
  CHECK(backend.reductions == 1);
  tape.backward(total);
  // One for the sum's chain, and one for the two of the gate; the row's is a sum.
  CHECK(backend.maps == 3);
  CHECK(backend.reductions == 2);

  // What was used already is not computed anew, and what is too long is cut.
  backend.maps = 0;
  Variable longer = x;
  for (int i = 0; i < 40; ++i) longer = f::sin(f::add(longer, y, pass), pass);
  (void)longer.value();
  CHECK(backend.maps > 2);
  CHECK(backend.maps < 20);
}

TEST_CASE("layers/functions: a mean of squared differences is one pass forward and one backward") {
  Counting backend(cpu());
  for (const f::Dims& dims : {f::Dims{}, f::Dims{0}, f::Dims{-1}}) {
    CAPTURE(dims.size());
    Tape tape(backend);
    Pass pass{.backend = backend, .tape = &tape, .training = true};
    const Variable x = tape.leaf(noise_tensor(1, {5, 7})), y = tape.leaf(noise_tensor(2, {5, 7})),
                   weight(noise_tensor(3, dims.empty() ? Shape{} : Shape{dims[0] == 0 ? 7 : 5}));
    const auto total = [&](const Variable& mean) {
      return f::sum(f::multiply(mean, weight, pass), {}, false, pass);
    };
    backend.maps = backend.reductions = 0;
    const Variable mean = f::mean(f::square(f::subtract(x, y, pass), pass), dims, false, pass);
    CHECK(backend.maps == 0);
    CHECK(backend.reductions == 1);
    tape.backward(total(mean));
    // One for the weight, and one for both gradients.
    CHECK(backend.maps == 2);
    const std::vector<double> dx = numbers_of(Tape::gradient(x)),
                              dy = numbers_of(Tape::gradient(y)), found = numbers_of(mean.value());

    // The same where somebody reads what is squared.
    Tape other(backend);
    Pass apart{.backend = backend, .tape = &other, .training = true};
    const Variable a = other.leaf(x.value()), b = other.leaf(y.value()),
                   squares = f::square(f::subtract(a, b, apart), apart);
    (void)squares.value();
    const Variable plain = f::mean(squares, dims, false, apart);
    other.backward(f::sum(f::multiply(plain, weight, apart), {}, false, apart));
    CHECK(relative_error(found, numbers_of(plain.value())) < 1e-14);
    CHECK(relative_error(dx, numbers_of(Tape::gradient(a))) < 1e-14);
    CHECK(relative_error(dy, numbers_of(Tape::gradient(b))) < 1e-14);
  }
}

TEST_CASE("layers/functions: what a chain shares is added up, and what has no gradient gets none") {
  Tape tape(cpu());
  Pass pass{.backend = cpu(), .tape = &tape, .training = true};
  const Variable x = tape.leaf(tensor_of({1.0, -2.0, 3.0}, {3}));
  const Variable square = f::multiply(x, x, pass);
  // (x² + x²·x)' = 2x + 3x²
  const Variable y = f::add(square, f::multiply(square, x, pass), pass);
  tape.backward(f::sum(y, {}, false, pass));
  CHECK(numbers_of(Tape::gradient(x)) == std::vector<double>{5.0, 8.0, 33.0});

  const Variable other = tape.leaf(tensor_of({1.0, -2.0, 3.0}, {3}));
  const Variable compared = f::greater(other, 0.0, pass);
  CHECK(!compared.requires_grad());
  CHECK(numbers_of(compared.value()) == std::vector<double>{1.0, 0.0, 1.0});
  CHECK(!f::sign(other, pass).requires_grad());
  CHECK(numbers_of(f::not_equal(other, other, pass).value()) == std::vector<double>(3, 0.0));
  CHECK(numbers_of(f::greater_equal(1.0, other, pass).value()) ==
        std::vector<double>{1.0, 1.0, 0.0});
}

TEST_CASE("layers/functions: a repeated chain is computed where it is small") {
  Counting backend(cpu());
  Pass pass{.backend = backend};
  const Variable row(noise_tensor(1, {1, 8})), x(noise_tensor(2, {64, 8}));
  const Variable y = f::multiply(f::exp(row, pass), x, pass);
  (void)y.value();
  CHECK(backend.maps == 2);
}

TEST_CASE("layers/functions: NaN, infinities and nothing at all") {
  Pass pass{.backend = cpu()};
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const Variable x(tensor_of({nan, -inf, inf, 0.0}, {4}));
  const auto is = [](const Variable& y, const std::vector<double>& expected) {
    const std::vector<double> found = numbers_of(y.value());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      CHECK((found[i] == expected[i] || (std::isnan(found[i]) && std::isnan(expected[i]))));
    }
  };
  is(f::exp(x, pass), {nan, 0.0, inf, 1.0});
  is(f::tanh(x, pass), {nan, -1.0, 1.0, 0.0});
  is(f::sigmoid(x, pass), {nan, 0.0, 1.0, 0.5});
  is(f::log(x, pass), {nan, nan, inf, -inf});
  is(f::sign(x, pass), {nan, -1.0, 1.0, 0.0});
  is(f::where(f::equal(x, x, pass), x, 7.0, pass), {7.0, -inf, inf, 0.0});
  const Variable masked(tensor_of({-inf, -inf, 0.0, -inf}, {2, 2}));
  is(f::logsumexp(masked, {1}, false, pass), {-inf, 0.0});
  is(f::softmax(Variable(tensor_of({-inf, 0.0, 0.0, -inf}, {2, 2})), 1, pass), {0, 1, 1, 0});

  const Variable none(Tensor(cpu(), {0, 3}, DType::kFloat64));
  CHECK(f::add(none, 1.0, pass).value().elements() == 0);
  CHECK(f::softmax(none, 1, pass).value().elements() == 0);
  CHECK(numbers_of(f::sum(none, {0}, false, pass).value()) == std::vector<double>(3, 0.0));
  CHECK(f::concat({none, none}, 0, pass).shape() == Shape{0, 3});
  CHECK(f::matmul(none, Variable(noise_tensor(1, {3, 2})), pass).shape() == Shape{0, 2});
}

TEST_CASE("layers/functions: places of the largest, and rows of classes") {
  Pass pass{.backend = cpu()};
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const Variable x(tensor_of({1, 3, 3, -inf, nan, 2, nan, inf, -inf, -inf, -inf, -inf}, {3, 4}));
  const auto integers = [](const Tensor& index) {
    const auto span = index.span<std::int32_t>();
    return std::vector<std::int32_t>(span.begin(), span.end());
  };
  CHECK(integers(f::argmax(x, 1, false, pass)) == std::vector<std::int32_t>{1, 0, 0});
  CHECK(f::argmax(x, 0, true, pass).shape() == Shape{1, 4});
  CHECK(integers(f::argmax(x, 0, true, pass)) == std::vector<std::int32_t>{1, 0, 1, 1});
  const f::TopValues top = f::topk(x, 3, -1, pass);
  CHECK(integers(top.index) == std::vector<std::int32_t>{1, 2, 0, 0, 2, 3, 0, 1, 2});
  CHECK(numbers_of(top.values.value())[5] == inf);
  CHECK(numbers_of(f::one_hot(labels_of({2, 0}), 3, DType::kFloat64, pass).value()) ==
        std::vector<double>{0, 0, 1, 1, 0, 0});
  const std::vector<double> sums = numbers_of(f::cumsum(x, 1, pass).value());
  CHECK((sums[2] == 7.0 && sums[3] == -inf && std::isnan(sums[7]) && sums[11] == -inf));

  const Variable none(Tensor(cpu(), {0, 2, 2, 4}, DType::kFloat64));
  const Tensor no_index(cpu(), {0, 2}, DType::kInt32);
  CHECK(f::cumsum(none, 1, pass).shape() == none.shape());
  CHECK(f::topk(none, 3, -1, pass).index.shape() == Shape{0, 2, 2, 3});
  CHECK(f::topk(x, 0, 1, pass).values.shape() == Shape{3, 0});
  CHECK(f::one_hot(no_index, 3, DType::kFloat64, pass).shape() == Shape{0, 2, 3});
  CHECK(f::group_norm(none, 2, nullptr, nullptr, 1e-5, pass).shape() == none.shape());
  CHECK(f::upsample(none, 2.0, Resampling::kBilinear, pass).shape() == Shape{0, 4, 4, 4});
  CHECK(f::adaptive_avg_pool2d(none, {1, 3}, pass).shape() == Shape{0, 1, 3, 4});
}

TEST_CASE(
    "layers/functions: targets that all count for nothing give a loss of 0, and no gradient") {
  for (const bool product : {false, true}) {
    Tape tape(cpu());
    Pass pass{.backend = cpu(), .tape = &tape, .training = true};
    const Variable x = tape.leaf(noise_tensor(1, {3, 4}));
    const Tensor targets = labels_of({-100, -100, -100});
    const Variable loss =
        product ? f::linear_cross_entropy(x, fixed(2, {5, 4}, x), targets, 1.0, pass, 2)
                : f::cross_entropy(x, targets, 0.1, 1.0, pass);
    CHECK(numbers_of(loss.value())[0] == 0.0);
    tape.backward(loss);
    CHECK(numbers_of(Tape::gradient(x)) == std::vector<double>(12, 0.0));
  }
  Pass pass{.backend = cpu()};
  const Variable none(Tensor(cpu(), {0, 4}, DType::kFloat64));
  const Tensor targets(cpu(), {0}, DType::kInt32);
  CHECK(numbers_of(
            f::linear_cross_entropy(none, fixed(2, {5, 4}, none), targets, 1.0, pass).value())[0] ==
        0.0);
}

TEST_CASE("layers/functions: sums, ReLU, tanh and the like keep no operand for the way back") {
  const std::pair<const char*, std::function<Variable(const Variable&, Pass&)>> functions[] = {
      {"relu", [](const Variable& x, Pass& p) { return f::relu(x, p); }},
      {"activation",
       [](const Variable& x, Pass& p) { return f::activation(x, Activation::kRelu6, p); }},
      {"tanh", [](const Variable& x, Pass& p) { return f::tanh(x, p); }},
      {"exp of a sum", [](const Variable& x, Pass& p) { return f::exp(f::add(x, x, p), p); }},
      {"ReLU of a sum with a row",
       [](const Variable& x, Pass& p) {
         return f::relu(f::add(x, p.tape->leaf(noise_tensor(2, {5})), p), p);
       }},
      {"gelu", [](const Variable& x, Pass& p) { return f::gelu(x, p); }}};
  for (const auto& [name, function] : functions) {
    CAPTURE(name);
    for (const Recompute recompute : {Recompute::kNone, Recompute::kCheap}) {
      Tape tape(cpu());
      Pass pass{.backend = cpu(), .tape = &tape, .recompute = recompute};
      const Variable leaf = tape.leaf(noise_tensor(1, {3, 5}));
      std::weak_ptr<Storage> operand;
      Variable y;
      {
        const Variable x = f::permute(leaf, {0, 1}, pass);
        operand = x.value().storage();
        y = function(x, pass);
        y.value();
      }
      CHECK(operand.expired() == (std::string_view(name) != "gelu"));
      tape.backward(f::sum(y, {}, false, pass));
      CHECK(Tape::gradient(leaf).elements() == 15);
    }
  }
}

TEST_CASE("layers/functions: the layers rms_norm and softmax are what their functions say") {
  const auto model = model_from(
      R"({"type": "sequential", "layers": [{"type": "rms_norm", "eps": 0.5}, {"type": "softmax"}]})",
      {5, 6});
  model->allocate(cpu(), DType::kFloat64);
  const Tensor weight = noise_tensor(3, {6}), x = noise_tensor(4, {2, 5, 6});
  cpu().copy(weight, model->parameters()[0]->value);
  Pass pass{.backend = cpu()};
  const Variable in(x);
  const Variable scale =
      f::rsqrt(f::add(f::mean(f::square(in, pass), {-1}, true, pass), 0.5, pass), pass);
  const Variable expected =
      f::softmax(f::multiply(f::multiply(in, scale, pass), Variable(weight), pass), -1, pass);
  const Variable found = model->forward(in, pass);
  CHECK(relative_error(numbers_of(found.value()), numbers_of(expected.value())) < 1e-14);
  CHECK(contains(
      model_error(R"({"type": "sequential", "layers": [{"type": "softmax", "dim": 0}]})", {5, 6}),
      "0 is the batch"));
}

TEST_CASE("layers/functions: errors name the function and both shapes") {
  Pass pass{.backend = cpu()};
  const Variable a(noise_tensor(1, {4, 8, 16})), b(noise_tensor(2, {4, 7, 16}));
  const auto error = [&](const std::function<void()>& call) {
    return error_of(ExitCode::kUsage, call);
  };
  CHECK(error([&] { f::multiply(a, b, pass); }) ==
        "[multiply] 4×8×16 and 4×7×16 do not broadcast: dimension 1 is 8 and 7");
  CHECK(contains(error([&] { f::add(a, Variable(labels_of({1})), pass); }), "int32"));
  CHECK(contains(error([&] { f::sum(a, {3}, false, pass); }),
                 "[sum] 4×8×16 has no dimension 3; there are -3 to 2"));
  CHECK(contains(error([&] { f::sum(a, {1, -2}, false, pass); }), "dimension -2 is there twice"));
  CHECK(contains(error([&] { f::matmul(a, b, pass); }), "4×8×16 by 4×7×16: the inner dimensions"));
  CHECK(contains(error([&] { f::permute(a, {0, 1}, pass); }), "2 dimensions of 4×8×16"));
  CHECK(contains(error([&] { f::permute(a, {0, 1, 1}, pass); }), "each of its 3 once"));
  CHECK(contains(error([&] { f::concat({a, b}, 0, pass); }), "4×8×16 and fp64 4×7×16 differ"));
  CHECK(contains(error([&] { f::split(a, {1, 2}, 1, pass); }), "do not add up to 8"));
  CHECK(contains(error([&] { f::pad(a, {1}, 0.0, pass); }), "two for each dimension"));
  CHECK(contains(error([&] { f::expand(a, {4, 8, 1}, pass); }), "does not become"));
  CHECK(contains(error([&] { f::gather(a, 1, labels_of({1}), pass); }), "the index is 1"));
  CHECK(contains(error([&] { f::index_select(a, 1, labels_of({9}), pass).value(); }), "9"));
  CHECK(contains(error([&] { f::topk(a, 9, 1, pass); }), "9 of dimension 1 of 4×8×16"));
  CHECK(contains(error([&] { f::argmax(a, 3, false, pass); }), "has no dimension 3"));
  CHECK(contains(error([&] { f::one_hot(labels_of({3}), 3, DType::kFloat32, pass); }), "3 rows"));
  CHECK(error([&] { f::scatter_add(a, 1, labels_of({1}), b, pass); }) ==
        "[scatter_add] the index is 1 and the source 4×7×16; needed: one shape");
  CHECK(error([&] { f::scatter_add(a, 0, labels_of({1}), b, pass); }) ==
        "[scatter_add] x is fp64 4×8×16 and the source fp64 4×7×16; they may differ in dimension 0 "
        "alone");
  CHECK(contains(error([&] { f::group_norm(a, 3, nullptr, nullptr, 1e-5, pass); }),
                 "3 groups of 4×8×16"));
  CHECK(contains(error([&] { f::upsample(a, 2.0, Resampling::kNearest, pass); }), "4×8×16"));
  CHECK(contains(error([&] {
                   f::cross_entropy(a, labels_of({1, 2}), 0.0, 1.0, pass);
                 }),
                 "the outputs are 4×8×16, the targets 2 of int32"));
  CHECK(contains(error([&] {
                   f::linear_cross_entropy(a, fixed(1, {5, 4}, a), {}, 1.0, pass);
                 }),
                 "x is 4×8×16 and the weight"));
  const Variable image(noise_tensor(1, {1, 2, 2, 3}));
  CHECK(contains(
      error([&] {
        f::conv_transpose2d(image, fixed(1, {4, 1, 1, 2}, image), nullptr, {}, {0, 0}, pass);
      }),
      "x is 1×2×2×3 and the weight  is 4×1×1×2"));
}

// docs/functions.md is the list: the first cells of its tables name each function.
TEST_CASE("layers/function_table: docs/functions.md lists what the header declares") {
  const Names declared =
      matches_of(test::read_text("../layers/functions.h"),
                 R"(^(?:Variable|Tensor|TopValues|std::vector<Variable>) ([a-z0-9_]+)\()");
  Names listed;
  for (const std::string& call :
       matches_of(test::read_text("../docs/functions.md"), R"(^\| (`[^|]*) \|)"))
    listed.merge(matches_of(call, R"(`([a-z0-9_]+))"));
  CHECK(listed == declared);
  // Each has PyTorch's numbers, but for those with a test of their own.
  std::istringstream tested(
      "activation argmax batch_norm conv2d dropout embedding equal flatten greater greater_equal "
      "in_format layer_norm layer_scale less less_equal linear linear_gelu mean_loss not_equal "
      "one_hot "
      "packed_attention parameter pool2d reshape rms_norm rotary scaled_dot_product_attention sign "
      "squeeze stochastic_depth subsample_pad target_loss unsqueeze");
  Names known(std::istream_iterator<std::string>(tested), {});
  for (const auto& entry : all_functions())
    known.insert(entry.first.substr(0, entry.first.find(' ')));
  for (const std::string& name : declared) CHECK_MESSAGE(known.count(name) == 1, name);
}

}  // namespace starling::testing
