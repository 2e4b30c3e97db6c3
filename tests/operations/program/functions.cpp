#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/autograd.h"
#include "core/parameter.h"
#include "layers/functions.h"
#include "tests/operations/program/speed.h"

namespace starling::tests {
namespace {

namespace f = functions;
using Inputs = std::vector<Variable>;
using Function = std::function<Variable(const Inputs&, Pass&)>;

/// One forward and backward pass, from a given gradient of the output.
class Run {
 public:
  Run(Backend& backend, const std::vector<Shape>& shapes, Function compute, DType dtype)
      : backend_(backend), compute_(std::move(compute)) {
    for (const Shape& shape : shapes) inputs_.push_back(patterned(backend, shape, dtype));
    Pass pass{.backend = backend};
    Inputs plain;
    for (const Tensor& x : inputs_) plain.emplace_back(x);
    gradient_ = patterned(backend, compute_(plain, pass).value().shape(), dtype);
    one_ = Tensor(backend, Shape{}, DType::kFloat32);
    backend.fill(one_, 1.0);
  }
  void operator()() const {
    Tape tape(backend_);
    Pass pass{.backend = backend_, .tape = &tape, .training = true};
    Inputs leaves;
    for (const Tensor& x : inputs_) leaves.push_back(tape.leaf(x));
    const Variable end = pass.record("end", one_, {compute_(leaves, pass)}, {},
                                     [&gradient = gradient_](Gradients& g) {
                                       (void)g.output();  // 1
                                       g.set(0, gradient);
                                     });
    tape.backward(end);
  }
  /// Number of elements of inputs, output and their gradients.
  double elements() const {
    double count = static_cast<double>(gradient_.elements());
    for (const Tensor& x : inputs_) count += static_cast<double>(x.elements());
    return 2.0 * count;
  }

 private:
  Backend& backend_;
  Function compute_;
  std::vector<Tensor> inputs_;
  Tensor gradient_, one_;
};

}  // namespace

void time_functions(Backend& backend, DType dtype, const std::string& only, const Timed& time) {
  // A scale of ones and a shift, with memory for their gradients
  Parameter gamma, beta;
  for (Parameter* parameter : {&gamma, &beta}) {
    parameter->shape = {1024};
    parameter->index = parameter == &beta;
    parameter->value = Tensor(backend, {1024}, DType::kFloat32);
    parameter->grad = Tensor(backend, {1024}, DType::kFloat32);
    backend.fill(parameter->value, 1.0);
  }
  // `reads`: numbers that the backward pass reads beside the gradient that comes in; with `flops`
  // it is bound by arithmetic.
  const auto row = [&](const std::string& name, const std::vector<Shape>& inputs, double reads,
                       double flops, Function compute) {
    if (name.find(only) == std::string::npos) return;
    const Run run(backend, inputs, std::move(compute), dtype);
    const double bytes = (run.elements() + reads) * static_cast<double>(size_of(dtype));
    time(name, flops > 0.0 ? 0.0 : bytes, flops, [&] { run(); });
  };
  const Shape flat{16 << 20}, rows{8192, 1024}, cube{64, 128, 1024}, heads{4, 12, 1024, 64};
  const auto numbers = [](const Shape& shape) { return static_cast<double>(shape.elements()); };
  row("gelu(x) * sigmoid(y) + z", {flat, flat, flat}, 2 * numbers(flat), 0,
      [](const Inputs& x, Pass& p) {
        return f::add(f::multiply(f::gelu(x[0], p), f::sigmoid(x[1], p), p), x[2], p);
      });
  row("softmax", {rows}, numbers(rows), 0,
      [](const Inputs& x, Pass& p) { return f::softmax(x[0], -1, p); });
  row("layer_norm", {rows}, numbers(rows), 0,
      [&](const Inputs& x, Pass& p) { return f::layer_norm(x[0], gamma, beta, 1e-5, p); });
  row("rms_norm", {rows}, numbers(rows), 0,
      [&](const Inputs& x, Pass& p) { return f::rms_norm(x[0], gamma, 1e-5, p); });
  for (const int axis : {0, 1, 2}) {
    row(fmt::format("sum over {}", axis), {cube}, 0, 0,
        [axis](const Inputs& x, Pass& p) { return f::sum(x[0], {axis}, false, p); });
    row(fmt::format("max over {}", axis), {cube}, numbers(cube), 0,
        [axis](const Inputs& x, Pass& p) { return f::max(x[0], {axis}, false, p); });
  }
  row("permute 0213", {{32, 1024, 16, 64}}, 0, 0, [](const Inputs& x, Pass& p) {
    return f::permute(x[0], {0, 2, 1, 3}, p);
  });
  row("transpose", {{8192, 4096}}, 0, 0,
      [](const Inputs& x, Pass& p) { return f::transpose(x[0], 0, 1, p); });
  row("concat", {{4096, 4096}, {4096, 4096}}, 0, 0, [](const Inputs& x, Pass& p) {
    return f::concat({x[0], x[1]}, -1, p);
  });
  row("pad", {{32, 128, 128, 64}}, 0, 0, [](const Inputs& x, Pass& p) {
    return f::pad(x[0], {0, 0, 1, 1, 1, 1}, 0.0, p);
  });
  // Two products forward and five backward, each of half of the scores
  row("attention 4x12x1024x64, causal", {heads, heads, heads}, 0,
      7.0 * 2.0 * 0.5 * numbers(heads) * 1024, [](const Inputs& x, Pass& p) {
        return f::scaled_dot_product_attention(x[0], x[1], x[2], {}, true, 0.125, 0.0, p);
      });
  struct Product {
    std::int64_t batch, m, k, n;
  };
  for (const auto& [batch, m, k, n] :
       {Product{96, 256, 64, 256}, {12, 1024, 64, 1024}, {1, 3072, 384, 1536}}) {
    const auto factor = [batch = batch](std::int64_t height, std::int64_t width) {
      return batch > 1 ? Shape{batch, height, width} : Shape{height, width};
    };
    // two more products for the gradients of the factors
    row(fmt::format("matmul {} x {}x{} . {}x{}", batch, m, k, k, n), {factor(m, k), factor(k, n)},
        0, 6.0 * static_cast<double>(batch * m * k * n),
        [](const Inputs& x, Pass& p) { return f::matmul(x[0], x[1], p); });
  }
}

}  // namespace starling::tests
