#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string_view>

#include "core/forwarding_backend.h"
#include "core/operations/convolutions.h"
#include "core/operations/losses.h"
#include "core/operations/map.h"
#include "core/operations/norms.h"
#include "core/operations/products.h"
#include "core/operations/reduce.h"
#include "layers/functions.h"
#include "tests/layers/support.h"
#include "tests/support/errors.h"

using namespace starling;
using namespace starling::testing;

namespace {

constexpr DType kFp32 = DType::kFloat32;

/// Checks each operation's types against the paragraph "Low precision" of
/// core/operations/list.h, and counts.
class TypeChecker final : public ForwardingBackend {
 public:
  TypeChecker(Backend& inner, DType low) : ForwardingBackend(inner), low_(low) {}
  int products = 0, normalisations = 0, losses = 0;

  void issue(const Conv2dForward& a) override {
    low({a.x, a.weight, a.y});
    full({a.bias});
    ++products;
  }
  void issue(const Conv2dBackwardData& a) override { low({a.dy, a.weight, a.dx}); }
  void issue(const Conv2dBackwardWeights& a) override {
    low({a.x, a.dy});
    full({a.dweight, a.dbias});
  }
  void issue(const Matmul& a) override {
    low({a.a.tensor(), a.b.tensor()});
    if (!a.a.contiguous()) {
      full({a.c.tensor()});  // a weight's gradient, which takes a transposed
    } else {
      low({a.c.tensor()});
    }
    low({a.bias});
    full({a.row_sums});
    ++products;
  }
  void issue(const Reduce& a) override {
    low({a.in[0]});
    if (a.y.shape().rank() == 1) full({a.y});  // a bias's gradient
  }
  void issue(const BatchNormForward& a) override {
    low({a.x, a.residual, a.y});
    full({a.gamma, a.beta, a.running_mean, a.running_var, a.saved_mean, a.saved_inv_std});
    ++normalisations;
  }
  void issue(const BatchNormBackward& a) override {
    low({a.x, a.y, a.dy, a.dy2, a.dx, a.dresidual});
    full({a.gamma, a.beta, a.saved_mean, a.saved_inv_std, a.dgamma, a.dbeta});
  }
  void issue(const LayerNormForward& a) override {
    low({a.x, a.y});
    full({a.gamma, a.beta, a.saved_mean, a.saved_inv_std});
    ++normalisations;
  }
  void issue(const LayerNormBackward& a) override {
    low({a.x, a.dy, a.dx, a.term});
    full({a.gamma, a.saved_mean, a.saved_inv_std, a.dgamma, a.dbeta});
  }
  void issue(const TargetLoss& a) override {
    low({a.x, a.dx});
    full({a.loss});
    CHECK(a.gradient_scale == 4096.0);
    ++losses;
  }

 private:
  void low(std::initializer_list<Tensor> tensors) const {
    for (const Tensor& tensor : tensors) CHECK((!tensor || tensor.dtype() == low_));
  }
  void full(std::initializer_list<Tensor> tensors) const {
    for (const Tensor& tensor : tensors) CHECK((!tensor || tensor.dtype() == kFp32));
  }
  void around(std::string_view, const std::function<void()>& operation) override { operation(); }
  DType low_;
};

const char* const kEveryLayer = R"({"type": "sequential", "layers": [
    {"type": "conv2d", "out_channels": 8, "kernel_size": 3, "padding": 1}, {"type": "batch_norm"}, {"type": "relu"},
    {"type": "max_pool2d", "kernel_size": 2},
    {"type": "residual", "layers": [{"type": "conv2d", "out_channels": 8, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}]},
    {"type": "relu"}, {"type": "avg_pool2d", "kernel_size": 2}, {"type": "flatten"}, {"type": "linear", "out_features": 16},
    {"type": "layer_norm"}, {"type": "gelu"}, {"type": "silu"}, {"type": "dropout"}, {"type": "linear", "out_features": 10}]})";

}  // namespace

TEST_CASE("layers/low: every operation gets the types of the contract") {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const std::string& json :
         {std::string(kEveryLayer), std::string(R"({"type": "resnet20"})"),
          std::string(R"({"type": "resnet50"})"),
          std::string(R"({"type": "wide_resnet", "depth": 10, "width": 2, "dropout": 0.3})"),
          std::string(R"({"type": "vgg11", "classifier": "cifar", "batch_norm": true})")}) {
      CAPTURE(json);
      const auto model = model_from(json, {32, 32, 3});
      const auto meta = make_meta_backend();
      TypeChecker backend(*meta, dtype);
      model->allocate(backend, kFp32, dtype);
      for (const Parameter* parameter : model->parameters()) {
        CAPTURE(parameter->name);
        CHECK(parameter->value.dtype() == kFp32);
        CHECK(parameter->grad.dtype() == kFp32);
        CHECK(parameter->operand().dtype() == dtype);
      }
      Tape tape(backend);
      Pass pass{.backend = backend, .tape = &tape, .training = true, .loss_scale = 4096.0};
      const Variable logits = model->forward(
          Variable(Tensor(backend, model->input_shape().with_batch(4), dtype)), pass);
      CHECK(logits.dtype() == dtype);
      const Variable loss =
          functions::cross_entropy(logits, Tensor(backend, {4}, DType::kInt32), 0.0, 1.0, pass);
      CHECK(loss.dtype() == kFp32);
      tape.backward(loss);
      CHECK(backend.products > 0);
      CHECK(backend.normalisations > 0);
      CHECK(backend.losses == 1);
      model->drop_memory();
    }
  }
}

TEST_CASE("layers/low: any parameter may be read in low precision, without being marked") {
  /// x times a vector, in the format of x.
  class Factors final : public Layer {
    Shape build(const Shape& input) override {
      factors_ = &add_parameter("factors", {input.back()}, Init::constant(1.25));
      return input;
    }
    Variable compute(const Variable& x, Pass& pass) override {
      Tensor y(pass.backend, x.shape(), x.dtype());
      pass.backend.map({MapFunction::kMultiply, x.value(), factors_->operand(), y});
      return Variable(y);
    }
    Parameter* factors_ = nullptr;
  };
  Model model(std::make_unique<Factors>(), {3});
  for (const bool trainable : {true, false}) {
    model.parameters()[0]->trainable = trainable;
    model.allocate(cpu(), kFp32, DType::kFloat16);
    model.initialise(1);
    model.refresh_low();
    Pass pass{cpu()};
    const Tensor x = cast_to(tensor_of({1, 2, -4}, {1, 3}), DType::kFloat16);
    const Variable y = model.forward(Variable(x), pass);
    CHECK(y.dtype() == DType::kFloat16);
    CHECK(numbers_of(y.value()) == std::vector<double>{1.25, 2.5, -5});
    model.drop_memory();
  }
}

TEST_CASE("layers/low: a parameter in another format than its layer's input is named") {
  const auto model = model_from(R"({"type": "mlp", "hidden": [4]})", {2, 2, 1});
  model->allocate(cpu(), kFp32);
  Pass pass{cpu()};
  const std::string text = test::error_text([&] {
    model->forward(Variable(Tensor(cpu(), {2, 2, 2, 1}, DType::kBFloat16)), pass);
  });
  CHECK(test::contains(text, "1.weight is fp32, but its input is bf16"));
}

TEST_CASE(
    "layers/low: the loss scale is in the logits' gradient and nowhere else, whatever the loss's "
    "own gradient") {
  const Tensor numbers = noise_tensor(1, {6, 5});
  const Tensor labels = spread_labels(6, 5);
  struct Result {
    double loss;
    std::vector<double> gradient;
  };
  const auto run = [&](DType dtype, double loss_scale, double seed) {
    Tape tape(cpu());
    Pass pass{.backend = cpu(), .tape = &tape, .training = true, .loss_scale = loss_scale};
    const Variable x = tape.leaf(cast_to(numbers, dtype));
    const Variable loss = functions::cross_entropy(x, labels, 0.1, 1.0, pass);
    const double value = numbers_of(loss.value())[0];
    tape.backward(loss, seed);
    CHECK(Tape::gradient(x).dtype() == dtype);
    return Result{value, numbers_of(Tape::gradient(x))};
  };
  const Result exact = run(DType::kFloat64, 1.0, 1.0);
  for (const DType dtype : {kFp32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    CAPTURE(name_of(dtype));
    const double tolerance = dtype == DType::kBFloat16  ? 2e-2
                             : dtype == DType::kFloat16 ? 2e-3
                                                        : 1e-5;
    const Result plain = run(dtype, 1.0, 1.0), scaled = run(dtype, 1024.0, 1.0),
                 seeded = run(dtype, 1024.0, 3.0);
    CHECK(std::abs(plain.loss - exact.loss) < tolerance);
    CHECK(scaled.loss == plain.loss);
    CHECK(seeded.loss == plain.loss);
    CHECK(relative_error(plain.gradient, exact.gradient) < tolerance);
    for (std::size_t i = 0; i < plain.gradient.size(); ++i) {
      CHECK(scaled.gradient[i] == doctest::Approx(1024.0 * plain.gradient[i]).epsilon(tolerance));
      CHECK(seeded.gradient[i] == doctest::Approx(3.0 * scaled.gradient[i]).epsilon(tolerance));
    }
  }
}

TEST_CASE("layers/low: nothing is spent on a gradient of 1") {
  class Counting final : public ForwardingBackend {
   public:
    using ForwardingBackend::ForwardingBackend;
    int maps = 0;

   protected:
    void around(std::string_view name, const std::function<void()>& operation) override {
      maps += name == "map";
      operation();
    }
  };
  for (const double seed : {1.0, 0.5}) {
    Counting backend(cpu());
    Tape tape(backend);
    Pass pass{.backend = backend, .tape = &tape, .training = true};
    const Variable x = tape.leaf(noise_tensor(1, {6, 5}));
    tape.backward(functions::cross_entropy(x, spread_labels(6, 5), 0.0, 1.0, pass), seed);
    CHECK(backend.maps == (seed == 1.0 ? 0 : 1));
  }
}
