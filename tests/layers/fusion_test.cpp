#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <vector>

#include "core/forwarding_backend.h"
#include "layers/functions.h"
#include "layers/linear.h"
#include "tests/layers/support.h"

// What several functions compute in one operation.
using namespace starling;
using namespace starling::testing;
namespace f = functions;

namespace {

/// Counts operations, and those that do several functions' work.
class FusionCounter final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  int maps = 0, reductions = 0, gelus = 0, gelu_gradients = 0, biases = 0, sums = 0, losses = 0;

  void issue(const Map& args) override { ++maps, ForwardingBackend::issue(args); }
  void issue(const Reduce& args) override { ++reductions, ForwardingBackend::issue(args); }
  void issue(const TargetLoss& args) override { ++losses, ForwardingBackend::issue(args); }
  void issue(const LayerNormForward& args) override {
    sums += static_cast<bool>(args.residual);
    ForwardingBackend::issue(args);
  }
  void issue(const Matmul& args) override {
    gelus += static_cast<bool>(args.before_gelu);
    gelu_gradients += static_cast<bool>(args.gelu_input);
    biases += static_cast<bool>(args.row_sums);
    ForwardingBackend::issue(args);
  }
};

struct FusionWay {
  bool fused = true, reads = false, again = false, adapter = false;
  Recompute recompute = Recompute::kNone;
};

/// down(gelu(up(x))). `reads`: the value between is read first; `again`: it has a second use.
class TwoProducts final : public Layer {
 public:
  explicit TwoProducts(const FusionWay& way) : way_(way) {}
  Linear *up = nullptr, *down = nullptr;

 private:
  Shape build(const Shape& input) override {
    up = &add_child("up", std::make_unique<Linear>(6), input);
    down = &add_child("down", std::make_unique<Linear>(3), up->output_shape());
    return down->output_shape();
  }
  Variable compute(const Variable& x, Pass& pass) override {
    const Variable wide = way_.fused ? up->forward_gelu(x, pass)
                                     : f::gelu(up->forward(x, pass), pass, f::GeluForm::kTanh);
    if (way_.reads) wide.value();
    Variable y = down->forward(wide, pass);
    if (way_.again) y = f::add(y, f::mean(wide, {-1}, true, pass), pass);
    return y;
  }
  FusionWay way_;
};

struct FusionOutcome {
  std::vector<double> numbers;  ///< of the output and all gradients
  int gelus, gelu_gradients, biases;
};

FusionOutcome fusion_outcome(const FusionWay& way) {
  auto layer = std::make_unique<TwoProducts>(way);
  TwoProducts& products = *layer;
  Model model(std::move(layer), {5, 4});
  if (way.adapter) {
    products.down->adapt({.rank = 2});
    model.collect();
  }
  FusionCounter backend(cpu());
  model.allocate(backend, DType::kFloat64);
  std::uint64_t seed = 1;
  for (const Parameter* parameter : model.parameters())
    cpu().copy(noise_tensor(seed++, parameter->shape), parameter->value);
  Tape tape(backend);
  Pass pass{.backend = backend, .tape = &tape, .training = true, .recompute = way.recompute};
  const Variable x = tape.leaf(noise_tensor(99, {2, 5, 4}));
  const Variable y = model.forward(x, pass);
  FusionOutcome result{.numbers = numbers_of(y.value())};
  tape.backward(weighted_total(y, pass));
  const auto take = [&](const Tensor& tensor) {
    for (const double number : numbers_of(tensor)) result.numbers.push_back(number);
  };
  take(Tape::gradient(x));
  for (const Parameter* parameter : model.parameters()) take(parameter->grad);
  result.gelus = backend.gelus;
  result.gelu_gradients = backend.gelu_gradients;
  result.biases = backend.biases;
  model.drop_memory();
  return result;
}

}  // namespace

TEST_CASE(
    "layers/fusion: GELU and its gradient are done by the products around it, if nothing else "
    "reads it") {
  for (const bool again : {false, true}) {
    const FusionOutcome plain = fusion_outcome({.fused = false, .again = again});
    CHECK(plain.gelus == 0);
    for (const bool reads : {false, true}) {
      CAPTURE(again);
      CAPTURE(reads);
      const FusionOutcome fused = fusion_outcome({.reads = reads, .again = again});
      CHECK(relative_error(fused.numbers, plain.numbers) < 1e-15);
      CHECK(fused.gelus == 1);
      CHECK(fused.gelu_gradients == (reads ? 0 : 1));
      CHECK(fused.biases == 2);
    }
    const FusionOutcome lean = fusion_outcome({.again = again, .recompute = Recompute::kCheap});
    CHECK(relative_error(lean.numbers, plain.numbers) < 1e-15);
    CHECK(lean.gelus == 0);
  }
  // What a term of low rank takes is no product's alone.
  const FusionOutcome plain = fusion_outcome({.fused = false, .adapter = true}),
                      adapted = fusion_outcome({.adapter = true});
  CHECK(relative_error(adapted.numbers, plain.numbers) < 1e-15);
  CHECK(adapted.gelus == 1);
  CHECK(adapted.gelu_gradients == 0);
}

TEST_CASE("layers/fusion: a norm computes the sum that it takes, which others may read, too") {
  Parameter gamma, beta;
  gamma.shape = beta.shape = {6};
  gamma.index = 0, beta.index = 1;
  gamma.value = noise_tensor(1, {6}), beta.value = noise_tensor(2, {6});
  gamma.grad = Tensor(cpu(), {6}, DType::kFloat64), beta.grad = Tensor(cpu(), {6}, DType::kFloat64);
  enum class Sum { kLazy, kRead, kTwice, kRow, kLonger };
  const auto numbers = [&](Sum kind, bool centered, int sums) {
    FusionCounter backend(cpu());
    Tape tape(backend);
    Pass pass{.backend = backend, .tape = &tape, .training = true};
    const Variable a = tape.leaf(noise_tensor(3, {4, 6})),
                   b = tape.leaf(noise_tensor(4, kind == Sum::kRow ? Shape{6} : Shape{4, 6}));
    Variable sum = f::add(a, kind == Sum::kTwice ? a : b, pass);
    if (kind == Sum::kLonger) sum = f::add(sum, b, pass);
    if (kind == Sum::kRead) sum.value();
    const Variable y = centered ? f::layer_norm(sum, gamma, beta, 1e-5, pass)
                                : f::rms_norm(sum, gamma, 1e-5, pass);
    CHECK(backend.sums == sums);
    const Variable end = f::add(sum, y, pass);
    std::vector<double> result = numbers_of(end.value());
    tape.backward(weighted_total(end, pass));
    for (const Tensor& gradient :
         {Tape::gradient(a), kind == Sum::kTwice ? Tensor() : Tape::gradient(b), gamma.grad,
          centered ? beta.grad : Tensor()})
      if (gradient)
        for (const double number : numbers_of(gradient)) result.push_back(number);
    return result;
  };
  for (const bool centered : {true, false}) {
    CHECK(numbers(Sum::kLazy, centered, 1) == numbers(Sum::kRead, centered, 0));
    for (const Sum other : {Sum::kTwice, Sum::kRow, Sum::kLonger}) numbers(other, centered, 0);
  }
}

TEST_CASE(
    "layers/fusion: a head's products on a GPU are those of two parts of 32 x 1,024 tokens, in "
    "less than a gigabyte more than a seventh of their logits") {
  const auto meta = make_meta_backend();
  FusionCounter backend(*meta);
  const std::int64_t tokens = 32 * 1024, classes = 50304, width = 768;
  Parameter weight;
  weight.shape = {classes, width};
  weight.index = 0;
  weight.low = Tensor(backend, weight.shape, DType::kBFloat16);
  weight.grad = Tensor(backend, weight.shape, DType::kFloat32);
  const auto peak = [&](DeviceType device) {
    Tape tape(backend);
    Pass pass{
        .backend = backend, .tape = &tape, .training = true, .device = device, .overwrites = true};
    const Variable x = tape.leaf(Tensor(backend, {32, 1024, width}, DType::kBFloat16));
    const std::size_t before = meta->memory_stats().in_use;
    // The peak is that of the logits: what is held while they are, and they.
    backend.losses = backend.maps = 0;
    tape.backward(
        f::linear_cross_entropy(x, weight, Tensor(backend, {32, 1024}, DType::kInt32), 1.0, pass));
    CHECK(backend.maps == 0);  // no pass over a gradient
    return static_cast<double>(meta->memory_stats().peak_in_use - before);
  };
  const double of_x = 2.0 * static_cast<double>(tokens * width),
               of_logits = 2.0 * static_cast<double>(tokens * classes);
  const double lean = peak(DeviceType::kCpu);
  CHECK(backend.losses > 90);
  CHECK(lean < of_x + 0.02 * of_logits);
  const double gpu = peak(DeviceType::kCuda);
  CHECK(backend.losses == 2);
  CHECK(gpu > of_x + 0.49 * of_logits);
  CHECK(gpu < of_x + 0.51 * of_logits);
}
