#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <map>

#include "core/forwarding_backend.h"
#include "layers/batch_norm.h"
#include "layers/conv2d.h"
#include "layers/functions.h"
#include "tests/layers/support.h"

// Batch norms that are left to the convolutions around them (Pass::defer_norms).
using namespace starling;
using namespace starling::testing;

namespace {

std::string conv(std::int64_t channels, std::int64_t kernel = 3, const std::string& more = {}) {
  return fmt::format(R"({{"type": "conv2d", "out_channels": {}, "kernel_size": {}, "padding": {}, "bias": false{}}})", channels, kernel,
                     kernel / 2, more);
}
const std::string kNorm = R"({"type": "batch_norm"})", kRelu = R"({"type": "relu"})", kNormRelu = kNorm + ", " + kRelu;

std::string residual(const std::string& body, const std::string& shortcut = {}) {
  return R"({"type": "residual", "layers": [)" + body + "]" + (shortcut.empty() ? "" : R"(, "shortcut": [)" + shortcut + "]") + "}";
}
std::string network(const std::string& list) {
  return R"({"type": "sequential", "num_classes": 4, "layers": [)" + list +
         R"(, {"type": "flatten"}, {"type": "linear", "out_features": 4}]})";
}

void check_deferred(const std::string& list, const Shape& input = {4, 5, 3}) {
  CAPTURE(list);
  check_gradients(*model_from(network(list), input), 3, 0, false, 1, true, true);
}

/// conv → batch norm → ReLU, then what a test does with the value.
class Unit : public Layer {
 public:
  using Reader = std::function<Variable(Unit&, const Variable& conv, const Variable& norm, Pass&)>;
  Unit(bool relu, Reader reader) : relu_(relu), reader_(std::move(reader)) {}
  Conv2d& after(std::size_t i) { return *after_[i]; }

 protected:
  Shape build(const Shape& input) override {
    const Conv2dOptions options{.out_channels = 3, .window = {.kernel = {3, 3}, .padding = {1, 1}}, .bias = false};
    before_ = &add_child("before", std::make_unique<Conv2d>(options), input);
    norm_ = &add_child("norm", std::make_unique<BatchNorm>(), before_->output_shape());
    for (std::size_t i = 0; i < 2; ++i) {
      after_[i] = &add_child("after" + std::to_string(i), std::make_unique<Conv2d>(options), norm_->output_shape());
    }
    return input.without_batch().rank() == 2 ? Shape{input[0], input[1], 3} : input;
  }
  Variable compute(const Variable& x, Pass& pass) override {
    const Variable y = before_->forward(x, pass);
    return reader_(*this, y, norm_->forward_fused(y, relu_ ? Activation::kRelu : Activation::kNone, {}, pass), pass);
  }

 private:
  bool relu_;
  Reader reader_;
  Conv2d* before_ = nullptr;
  BatchNorm* norm_ = nullptr;
  std::array<Conv2d*, 2> after_{};
};

/// What an author of a plug-in writes who knows nothing of pending norms: y = x².
Variable square(const Variable& x, Pass& pass) {
  std::vector<double> numbers = numbers_of(x.value());
  for (double& v : numbers) v *= v;
  return pass.record("square", tensor_of(numbers, x.shape()), {x}, {}, [saved = x.value()](Gradients& g) {
    std::vector<double> dx = numbers_of(saved);
    const std::vector<double> dy = numbers_of(g.output());
    for (std::size_t i = 0; i < dx.size(); ++i) dx[i] *= 2.0 * dy[i];
    g.set(0, tensor_of(dx, saved.shape()));
  });
}

/// Counts operations by name.
class Counter final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  std::map<std::string, int, std::less<>> calls;
  int relu_products = 0;
  void matmul(const Matmul& args) override {
    relu_products += args.relu ? 1 : 0;
    ForwardingBackend::matmul(args);
  }

 protected:
  void around(std::string_view name, const std::function<void()>& operation) override {
    ++calls[std::string(name)];
    operation();
  }
};

std::vector<double> read(const Tensor& tensor) {
  if (tensor.dtype() == DType::kInt64) {
    std::int64_t count = 0;
    tensor.backend().copy_to_host(tensor, &count);
    return {static_cast<double>(count)};
  }
  return numbers_of(tensor);
}

/// Loss of each micro-batch, all gradients and all buffers after one step, by name.
std::map<std::string, std::vector<double>> step(Model& model, DType dtype, bool defer, int micro_batches, std::int64_t batch) {
  model.allocate(cpu(), is_low_precision(dtype) ? DType::kFloat32 : dtype, dtype);
  model.initialise(3);
  model.refresh_low();
  Tape tape(cpu());
  std::map<std::string, std::vector<double>> result;
  const auto classes = model.output_shape().back();
  for (int micro = 0; micro < micro_batches; ++micro) {
    Pass pass{.backend = cpu(), .tape = &tape, .training = true, .defer_norms = defer};
    const Tensor x = cast_to(noise_tensor(10 + static_cast<std::uint64_t>(micro), model.input_shape().with_batch(batch)), dtype);
    std::vector<std::int32_t> numbers;
    for (std::int64_t i = 0; i < batch; ++i) numbers.push_back(static_cast<std::int32_t>((i + micro) % classes));
    const Variable loss = functions::cross_entropy(model.forward(Variable(x), pass), labels_of(numbers), 0.1, 0.5, pass);
    result[fmt::format("loss {}", micro)] = read(loss.value());
    tape.backward(loss, 1.0, micro > 0);
  }
  for (const Parameter* parameter : model.parameters()) {
    if (parameter->trainable) result[parameter->name] = read(parameter->grad);
  }
  for (const ModelBuffer* buffer : model.buffers()) result[buffer->name] = read(buffer->value);
  return result;
}

using Numbers = std::map<std::string, std::vector<double>>;

void check_same(Model& model, DType dtype, int micro_batches, std::int64_t batch, double tolerance) {
  const Numbers plain = step(model, dtype, false, micro_batches, batch), deferred = step(model, dtype, true, micro_batches, batch);
  REQUIRE(plain.size() == deferred.size());
  for (const auto& [name, expected] : plain) {
    CAPTURE(name);
    CHECK(relative_error(deferred.at(name), expected) < tolerance);
  }
}

/// Rounding decides over ReLUs and maxima here and there; so deferred and not are both as far from the exact numbers.
void check_as_accurate(Model& model, DType dtype, std::int64_t batch) {
  const Numbers exact = step(model, DType::kFloat64, false, 2, batch);
  double mean[2] = {};
  for (const bool defer : {false, true}) {
    const Numbers found = step(model, dtype, defer, 2, batch);
    for (const auto& [name, expected] : exact) mean[defer] += relative_error(found.at(name), expected) / static_cast<double>(exact.size());
  }
  CAPTURE(name_of(dtype));
  CAPTURE(mean[0]);
  CHECK(mean[1] < 1.5 * mean[0]);
  CHECK(mean[1] < 0.2);
}

}  // namespace

TEST_CASE("layers/deferred norms: gradients between convolutions equal differences") {
  check_deferred(conv(4) + "," + kNormRelu + "," + conv(3));
  check_deferred(conv(4) + "," + kNormRelu + "," + conv(5, 1) + "," + kNormRelu + "," + conv(3, 3, R"(, "stride": 2)"));
  check_deferred(conv(4) + "," + kNormRelu + "," + conv(6, 3, R"(, "groups": 2)") + "," + kNormRelu + "," + conv(6, 3, R"(, "groups": 6)") +
                 "," + kNorm);
  // Not deferred: after a bias, after something else than a convolution, at the start.
  check_deferred(kNormRelu + R"(, {"type": "conv2d", "out_channels": 4, "kernel_size": 2}, )" + kNormRelu + "," + conv(3) + "," +
                 R"({"type": "silu"}, )" + kNormRelu + "," + conv(3));
}

TEST_CASE("layers/deferred norms: gradients of whoever else reads the value equal differences") {
  for (const char* reader : {R"({"type": "max_pool2d", "kernel_size": 2})", R"({"type": "avg_pool2d", "kernel_size": 2})",
                             R"({"type": "global_avg_pool"})", R"({"type": "gelu"})", R"({"type": "dropout", "p": 0.3})",
                             R"({"type": "layer_norm"})", R"({"type": "batch_norm"})", R"({"type": "relu"})", R"({"type": "flatten"})"}) {
    check_deferred(conv(4) + "," + kNormRelu + "," + reader);
    check_deferred(conv(4) + "," + kNorm + "," + reader);
  }
}

TEST_CASE("layers/deferred norms: gradients of residual blocks equal differences") {
  const std::string body = conv(3) + "," + kNormRelu + "," + conv(3) + "," + kNorm, shortcut = conv(3, 1) + "," + kNorm;
  check_deferred(residual(body) + "," + kRelu + "," + residual(body));
  check_deferred(residual(body, shortcut) + "," + kRelu + "," + residual(body, shortcut) + "," + kRelu);
  check_deferred(residual(body, shortcut + "," + kRelu) + "," + kRelu);            // a shortcut's ReLU
  check_deferred(conv(3) + "," + kNormRelu + "," + residual(body) + "," + kRelu);  // a pending value goes both ways
  check_deferred(conv(3) + "," + kNorm + "," + residual(body, shortcut) + "," + kRelu);
  check_deferred(residual(kNorm, shortcut) + "," + residual(conv(3), shortcut) + "," + kRelu);  // the sum without a norm of its own
}

TEST_CASE("layers/deferred norms: gradients of a value with several readers equal differences") {
  const auto check = [](bool relu, const Unit::Reader& reader) {
    Model model(std::make_unique<Unit>(relu, reader), {4, 5, 3});
    check_gradients(model, 3, 0, false, 1, true, true);
  };
  for (const bool relu : {true, false}) {
    CAPTURE(relu);
    check(relu, [](Unit& unit, const Variable&, const Variable& y, Pass& pass) {  // two convolutions
      return functions::add(unit.after(0).forward(y, pass), unit.after(1).forward(y, pass), pass);
    });
    check(relu, [](Unit& unit, const Variable&, const Variable& y, Pass& pass) {  // the same one twice
      return functions::add(unit.after(0).forward(y, pass), unit.after(0).forward(unit.after(1).forward(y, pass), pass), pass);
    });
    check(relu, [](Unit& unit, const Variable&, const Variable& y, Pass& pass) {  // a convolution first, then the value itself
      const Variable z = unit.after(0).forward(y, pass);
      return functions::add(functions::add(z, y, pass), unit.after(1).forward(y, pass), pass);
    });
    check(relu, [](Unit& unit, const Variable& before, const Variable& y, Pass& pass) {  // the convolution's output is read, too
      return functions::add(functions::add(unit.after(0).forward(y, pass), before, pass), unit.after(1).forward(before, pass), pass);
    });
    check(relu, [](Unit& unit, const Variable&, const Variable& y, Pass& pass) {  // a plug-in's operation, and a reader that leads nowhere
      unit.after(1).forward(y, pass);
      return functions::add(unit.after(0).forward(square(y, pass), pass), unit.after(1).forward(y, pass), pass);
    });
    check(relu, [](Unit& unit, const Variable&, const Variable& y, Pass& pass) {
      return functions::add(unit.after(0).forward(square(y, pass), pass), unit.after(1).forward(square(y, pass), pass), pass);
    });
  }
}

TEST_CASE("layers/deferred norms: a step gives the numbers of one without them") {
  const std::string bottleneck = conv(4, 1) + "," + kNormRelu + "," + conv(4) + "," + kNormRelu + "," + conv(8, 1) + "," + kNorm;
  const std::string json = network(conv(4) + "," + kNormRelu + R"(, {"type": "max_pool2d", "kernel_size": 2}, )" +
                                   residual(bottleneck, conv(8, 1) + "," + kNorm) + "," + kRelu + "," + residual(bottleneck) + "," + kRelu +
                                   R"(, {"type": "global_avg_pool"})");
  SUBCASE("bottlenecks") {
    const auto model = model_from(json, {8, 8, 3});
    check_same(*model, DType::kFloat64, 1, 4, 1e-11);
    check_same(*model, DType::kFloat64, 2, 4, 1e-11);
    check_same(*model, DType::kFloat32, 2, 4, 1e-4);
    check_as_accurate(*model, DType::kFloat16, 8);
    check_as_accurate(*model, DType::kBFloat16, 8);
  }
  SUBCASE("frozen parameters") {
    for (std::size_t frozen = 0; frozen < 12; ++frozen) {
      CAPTURE(frozen);
      const auto model = model_from(json, {8, 8, 3});
      for (std::size_t i = 0; i < model->parameters().size(); ++i) {
        // Each alone, all up to one, all from one on, every third.
        if (i == frozen || (frozen == 3 && i < 6) || (frozen == 4 && i > 6) || (frozen == 5 && i % 3 == 0)) {
          model->parameters()[i]->trainable = false;
        }
      }
      check_same(*model, DType::kFloat64, 1, 4, 1e-11);
    }
  }
  SUBCASE("resnet20") {
    const auto model = model_from(R"({"type": "resnet20"})", {16, 16, 3});
    check_same(*model, DType::kFloat64, 2, 2, 1e-9);
    check_same(*model, DType::kFloat32, 2, 4, 2e-3);
  }
  // Where a norm that two convolutions read follows the first convolution, and where a block's input is read by a norm and a sum.
  SUBCASE("wide_resnet") {
    for (const char* width : {"1", "2"}) {
      const auto model =
          model_from(R"({"type": "wide_resnet", "depth": 16, "dropout": 0.2, "width": )" + std::string(width) + "}", {16, 16, 3});
      check_same(*model, DType::kFloat64, 2, 2, 1e-9);
    }
  }
  SUBCASE("resnet50") { check_same(*model_from(R"({"type": "resnet50", "stem": "cifar"})", {16, 16, 3}), DType::kFloat32, 1, 8, 3e-2); }
}

TEST_CASE("layers/deferred norms: what is issued") {
  const auto issued = [](const std::string& json, const Shape& input, bool training, bool defer) {
    const auto model = model_from(json, input);
    const auto meta = make_meta_backend();
    Counter counter(*meta);
    model->allocate(counter, DType::kFloat32);
    const std::size_t before = meta->memory_stats().in_use;
    Tape tape(counter);
    Pass pass{.backend = counter, .tape = &tape, .training = training, .defer_norms = defer};
    const Tensor labels(counter, {8}, DType::kInt32);
    Variable loss;
    {
      const Variable logits = model->forward(Variable(Tensor(counter, input.with_batch(8), DType::kFloat32)), pass);
      loss = functions::cross_entropy(logits, labels, 0.0, 1.0, pass);
    }
    tape.backward(loss);
    counter.calls["MiB"] = static_cast<int>((meta->memory_stats().peak_in_use - before) >> 20);
    loss = {};
    return counter.calls;
  };
  const std::string resnet50 = R"({"type": "resnet50"})";
  auto calls = issued(resnet50, {64, 64, 3}, true, true);
  CHECK(calls["batch_norm_forward"] == 0);
  CHECK(calls["batch_norm_finish"] == 53);
  CHECK(calls["scale_shift"] == 1 + 16);                // before the max pooling, and at the blocks' ends
  CHECK(calls["batch_norm_backward_apply"] == 2 * 16);  // between the convolutions of the blocks
  CHECK(calls["batch_norm_backward"] == 53 - 2 * 16);
  CHECK(calls["channel_sums"] + calls["batch_norm_backward_sums"] == 0);  // convolutions gather them
  auto plain = issued(resnet50, {64, 64, 3}, true, false);
  CHECK(plain["batch_norm_forward"] == 53);
  CHECK(plain["batch_norm_finish"] == 0);
  CHECK(calls["MiB"] < 0.86 * plain["MiB"]);  // two of a block's six tensors are not there, the narrow ones
  const std::string mobilenet = R"({"type": "mobilenet_v2"})";
  plain = issued(mobilenet, {64, 64, 3}, true, false);
  CHECK(plain["batch_norm_forward"] == 52);
  CHECK(plain["batch_norm_backward"] == 52);
  CHECK(plain["activation_forward"] + plain["activation_backward"] == 0);  // each ReLU6 is its norm's
  calls["scale_shift"] = issued(mobilenet, {64, 64, 3}, true, true)["scale_shift"];
  CHECK(calls["scale_shift"] > 0);                     // convolutions load no ReLU6
  calls = issued(resnet50, {64, 64, 3}, false, true);  // evaluation defers nothing
  CHECK(calls["batch_norm_forward"] == 53);
  CHECK(calls["batch_norm_finish"] == 0);
}

TEST_CASE("layers/linear: a ReLU that follows is part of the product, with the same numbers") {
  // A sequential of one layer hides the ReLU, so that nothing fuses.
  const std::string apart = R"({"type": "sequential", "layers": [{"type": "relu"}]})";
  const auto model = [&](const std::string& relu) {
    return model_from(network(R"({"type": "flatten"}, {"type": "linear", "out_features": 9}, )" + relu +
                              R"(, {"type": "linear", "out_features": 5, "bias": false}, )" + relu + "," + kRelu),
                      {2, 3, 3});
  };
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
    CAPTURE(name_of(dtype));
    const auto fused = model(kRelu), separate = model(apart);
    const auto one = step(*fused, dtype, false, 2, 6), two = step(*separate, dtype, false, 2, 6);
    for (const auto& [name, numbers] : two) CHECK(one.at(name) == numbers);
  }
  check_gradients(*model(kRelu), 3);
  const auto fused = model(kRelu);
  const auto meta = make_meta_backend();
  Counter counter(*meta);
  fused->allocate(counter, DType::kFloat32);
  Pass pass{.backend = counter};
  fused->forward(Variable(Tensor(counter, {2, 2, 3, 3}, DType::kFloat32)), pass);
  CHECK(counter.relu_products == 2);
  CHECK(counter.calls["activation_forward"] == 1);  // the last one, a second ReLU
}
