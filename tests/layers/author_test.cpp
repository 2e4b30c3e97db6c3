#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/custom_operation.h"
#include "core/error.h"
#include "examples/plugin/gate.h"
#include "examples/plugin/samples.h"
#include "examples/plugin/softsign.cpp"
#include "examples/plugin/squareplus.h"
#include "layers/functions.h"
#include "tests/layers/halves.h"
#include "tests/layers/support.h"

// What an author of a layer or an operation meets: the example of docs/extending.md, and what goes
// wrong.
namespace starling::testing {
namespace {

/// A layer of a test's own; each mistake is made at another place.
enum class Mistake {
  kNone,
  kReadsInput,
  kCopiesToHost,
  kReadsGradient,
  kNarrow,
  kCpuOnly,
  kOutputShape,
  kOutputDtype,
  kGradientShape,
  kGradientDtype,
  kNoGradient,
  kOtherInput,
  kOtherParameter,
  kThrows
};

class Author final : public Layer {
 public:
  explicit Author(Mistake mistake) : mistake_(mistake) {}

 protected:
  Shape build(const Shape& input) override { return input; }
  Variable compute(const Variable& x, Pass& pass) override {
    if (mistake_ == Mistake::kReadsInput) (void)x.value().data<float>()[0];
    float first = 0.0f;
    if (mistake_ == Mistake::kCopiesToHost)
      pass.backend.copy_to_host(x.value().slice(0, Shape{1}), &first);
    if (mistake_ == Mistake::kOutputShape)
      return Variable(Tensor(pass.backend, Shape{2, 7}, x.dtype()));
    if (mistake_ == Mistake::kOutputDtype)
      return Variable(Tensor(pass.backend, x.shape(), DType::kFloat64));
    return pass.record("author", x.value(), {x}, {}, [mistake = mistake_](Gradients& gradients) {
      if (mistake == Mistake::kGradientShape)
        gradients.set(0, Tensor(gradients.backend(), Shape{2, 7}, DType::kFloat32));
      if (mistake == Mistake::kGradientDtype)
        gradients.set(0, Tensor(gradients.backend(), Shape{2, 6}, DType::kFloat64));
      if (mistake == Mistake::kNoGradient) gradients.set(0, {});
      if (mistake == Mistake::kOtherInput) gradients.set(1, gradients.output());
      if (mistake == Mistake::kOtherParameter) (void)gradients.parameter(0);
      if (mistake == Mistake::kThrows) throw std::length_error("too long");
      if (mistake == Mistake::kReadsGradient) (void)gradients.output().span<float>()[0];
      gradients.set(0, gradients.output());
    });
  }
  LayerSupport support() const override {
    if (mistake_ == Mistake::kNarrow)
      return {{DType::kFloat32}, {DeviceType::kCpu, DeviceType::kCuda}};
    if (mistake_ == Mistake::kCpuOnly) return {LayerSupport{}.compute, {DeviceType::kCpu}};
    return {};
  }

 private:
  Mistake mistake_;
};

void register_once() {
  static const bool done = [] {
    register_builtin_layers();
    mine::register_softsign();
    add_pointwise_layer<mine::Squareplus>();
    layers().add(
        "author",
        [](ConfigSection& section) {
          return std::make_unique<Author>(static_cast<Mistake>(
              section.integer("mistake", 0, Range::closed(0, 13), "which one")));
        },
        "makes one mistake");
    return true;
  }();
  (void)done;
}

std::unique_ptr<Model> model_with(const std::string& layer) {
  register_once();
  return model_from(
      R"({"type": "sequential", "num_classes": 4, "layers": [{"type": "linear", "out_features": 6}, )" +
          layer + R"(, {"type": "linear", "out_features": 4}]})",
      {5});
}
std::unique_ptr<Model> model_with(Mistake mistake) {
  return model_with(R"({"type": "author", "mistake": )" +
                    std::to_string(static_cast<int>(mistake)) + "}");
}

/// A training pass on shapes alone, as there is one before training.
void trace(Model& model) {
  const auto meta = make_meta_backend();
  model.allocate(*meta, DType::kFloat32);
  Tape tape(*meta);
  Pass pass{*meta, &tape, true};
  const Variable logits =
      model.forward(Variable(Tensor(*meta, Shape{2, 5}, DType::kFloat32)), pass);
  tape.backward(
      functions::cross_entropy(logits, Tensor(*meta, Shape{2}, DType::kInt32), 0.0, 1.0, pass));
}

}  // namespace

TEST_CASE(
    "layers/author: the example's operation gives its formula's numbers, and its gradient is "
    "right") {
  const auto model = model_with(R"({"type": "softsign"})");
  check_gradients(*model, 3);
  const Tensor x = noise_tensor(3, Shape{2, 40});
  Tensor y(cpu(), x.shape(), x.dtype());
  mine::softsign_forward()(cpu(), {x, y});
  const std::vector<double> in = numbers_of(x), out = numbers_of(y);
  for (std::size_t i = 0; i < in.size(); ++i)
    CHECK(out[i] == doctest::Approx(in[i] / (1.0 + std::abs(in[i]))).epsilon(1e-14));
  CHECK_NOTHROW(trace(*model));
}

TEST_CASE("layers/author: a pointwise function of one struct has its numbers and its gradient") {
  const auto model = model_with(R"({"type": "squareplus"})");
  check_gradients(*model, 3);
  CHECK_NOTHROW(trace(*model));
  Pass pass{.backend = cpu(), .training = false};
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    CAPTURE(name_of(dtype));
    const Tensor x = functions::in_format(noise_tensor(3, Shape{2, 41}), dtype, cpu());
    const auto y = functions::pointwise_function<mine::Squareplus>(Variable(x), pass);
    const double places = dtype == DType::kBFloat16 ? 1e-2 : dtype == DType::kFloat16 ? 1e-3 : 1e-6;
    const auto in = numbers_of(functions::in_format(x, DType::kFloat64, cpu())),
               out = numbers_of(functions::in_format(y.value(), DType::kFloat64, cpu()));
    for (std::size_t i = 0; i < in.size(); ++i)
      CHECK(out[i] == doctest::Approx((in[i] + std::sqrt(in[i] * in[i] + 4)) / 2).epsilon(places));
  }
  CHECK(fails(ExitCode::kUsage, "[squareplus] the input is int32; needed: a floating dtype", [&] {
    functions::pointwise_function<mine::Squareplus>(
        Variable(Tensor(cpu(), Shape{2}, DType::kInt32)), pass);
  }));
}

TEST_CASE(
    "layers/author: reading memory in the shape trace is an error that names the layer and the way "
    "out") {
  CHECK_NOTHROW(trace(*model_with(Mistake::kNone)));
  for (const auto& [mistake, where] :
       {std::pair{Mistake::kReadsInput, "[layer] 1: [tensor] the numbers of a 2×6 fp32 tensor"},
        {Mistake::kCopiesToHost, "[layer] 1: [tensor] the numbers of a 1 fp32 tensor"},
        {Mistake::kReadsGradient,
         "[layer] 1 (backward of author): [tensor] the numbers of a 2×6 fp32"}}) {
    const auto model = model_with(mistake);
    const std::string text = error_of(ExitCode::kInternal, [&, &m = *model] { trace(m); });
    CHECK(contains(text, where));
    CHECK(contains(text, "have no memory; compute with layers/functions.h"));
  }
}

TEST_CASE(
    "layers/author: what a layer hands over is looked at where it does, in the trace already") {
  for (const auto& [mistake, told] :
       {std::pair{Mistake::kOutputShape,
                  "[layer] 1: the output is 2×7 fp32, and build() said 2×6 fp32; compute() must "
                  "give that"},
        {Mistake::kOutputDtype,
         "[layer] 1: the output is 2×6 fp64, and build() said 2×6 fp32; compute() must give that"},
        {Mistake::kGradientShape,
         "[layer] 1 (backward of author): [gradient] that of input 0 is 2×7 fp32, and the input is "
         "2×6 fp32; they must be alike"},
        {Mistake::kGradientDtype,
         "[layer] 1 (backward of author): [gradient] that of input 0 is 2×6 fp64, and the input is "
         "2×6 fp32; they must be alike"},
        {Mistake::kNoGradient,
         "[layer] 1 (backward of author): [gradient] that of input 0 is no tensor"},
        {Mistake::kOtherInput,
         "[layer] 1 (backward of author): [gradient] input 1 is asked for, of 1"},
        {Mistake::kOtherParameter,
         "[layer] 1 (backward of author): [gradient] parameter 0 is asked for, of 0"}}) {
    const auto model = model_with(mistake);
    CHECK(error_of(ExitCode::kUsage, [&, &m = *model] { trace(m); }) == told);
  }
  const auto model = model_with(Mistake::kThrows);
  CHECK(error_of(ExitCode::kInternal, [&] { trace(*model); }) ==
        "[layer] 1 (backward of author): std::length_error: too long");
}

TEST_CASE(
    "layers/author: a layer says what it can be run with, and is named where that is not asked "
    "for") {
  const auto unsupported = [](const Model& model, DType compute, DeviceType device) {
    const auto error = model.unsupported(compute, device);
    if (!error) return std::string();
    CHECK(error->code() == ExitCode::kUsage);
    CHECK(error->parts().where.key == "1");
    return std::string(error->what());
  };
  const auto narrow = model_with(Mistake::kNarrow), on_cpu = model_with(Mistake::kCpuOnly),
             any = model_with(Mistake::kNone);
  CHECK(unsupported(*narrow, DType::kFloat32, DeviceType::kCuda).empty());
  CHECK(unsupported(*narrow, DType::kBFloat16, DeviceType::kMeta) ==
        "[layer] 1: it computes in fp32, and bf16 was asked for; set precision to one of these, or "
        "use another layer");
  CHECK(contains(unsupported(*narrow, DType::kFloat64, DeviceType::kCpu), "fp64 was asked for"));
  CHECK(unsupported(*on_cpu, DType::kFloat16, DeviceType::kMeta).empty());
  CHECK(unsupported(*on_cpu, DType::kFloat32, DeviceType::kCuda) ==
        "[layer] 1: it runs on cpu, and cuda was asked for; set device to one of these, or use "
        "another layer");
  for (const DType compute :
       {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    for (const DeviceType device : {DeviceType::kMeta, DeviceType::kCpu, DeviceType::kCuda})
      CHECK(unsupported(*any, compute, device).empty());
  }
  CHECK(contains(
      unsupported(*model_with(R"({"type": "softsign"})"), DType::kBFloat16, DeviceType::kCpu),
      "it computes in fp32, fp64, and bf16"));
}

TEST_CASE("layers/author: an operation without code for a backend is an error with both names") {
  struct Args {
    int* calls;
  };
  CustomOperation<Args> operation("halve");
  CHECK(operation.add(DeviceType::kCuda, [](Backend&, const Args& args) { ++*args.calls; }));
  CHECK(operation.devices() == std::vector<DeviceType>{DeviceType::kCuda});
  int calls = 0;
  operation(meta_backend(), {&calls});
  CHECK(fails(ExitCode::kUsage, "[operation] 'halve' has no code for the backend cpu; ",
              [&] { operation(cpu(), {&calls}); }));
  CHECK(calls == 0);
  operation.add(DeviceType::kCpu, [](Backend&, const Args& args) { ++*args.calls; });
  operation(cpu(), {&calls});
  CHECK(calls == 1);
}

// What authors write with functions alone: examples/plugin/samples.h, and gate.h.
TEST_CASE("layers/samples: layers of functions have their gradients") {
  const auto check = [](std::unique_ptr<Layer> layer, const Shape& input) {
    Model model(std::move(layer), input);
    check_gradients(model, 3);
  };
  check(std::make_unique<mine::Gate>(), {3, 2, 8});
  check(std::make_unique<mine::Attend>(2), {5, 6});
  check(std::make_unique<mine::Changes>(), {4, 3});
  check(std::make_unique<tests::Halves>(std::make_unique<mine::LetIn>()), {8});
  CHECK(fails(ExitCode::kUsage, "an input of 5×6, but T×C that the heads divide is needed", [&] {
    check(std::make_unique<mine::Attend>(4), {5, 6});
  }));
}

TEST_CASE("layers/samples: a loss of functions is the built-in one, in every precision") {
  const Tensor scores = noise_tensor(1, {6, 5}), labels = spread_labels(6, 5);
  const std::unique_ptr<const Loss> sample = std::make_unique<mine::Focal>();
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    CAPTURE(name_of(dtype));
    const auto run = [&](bool built_in) {
      Tape tape(cpu());
      Pass pass{.backend = cpu(), .tape = &tape, .training = true, .loss_scale = 8.0};
      const Variable x = tape.leaf(cast_to(scores, dtype));
      const Variable loss =
          built_in ? functions::target_loss(x, labels, {LossKind::kFocal, 2.0}, 0.5, pass)
                   : sample->value(x, labels, 0.5, pass);
      CHECK(loss.dtype() == (is_low_precision(dtype) ? DType::kFloat32 : dtype));
      std::vector<double> result = numbers_of(loss.value());
      tape.backward(loss);
      for (const double g : numbers_of(Tape::gradient(x))) result.push_back(g);
      return result;
    };
    const double tolerance = dtype == DType::kFloat64   ? 1e-14
                             : dtype == DType::kFloat32 ? 1e-6
                                                        : 1e-2;
    CHECK(relative_error(run(false), run(true)) < tolerance);
  }
}

}  // namespace starling::testing
