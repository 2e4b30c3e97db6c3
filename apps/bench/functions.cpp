#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/bench/benches.h"
#include "apps/bench/support.h"
#include "apps/training/device/device.h"
#include "core/autograd.h"
#include "core/backend.h"
#include "core/console.h"
#include "core/parameter.h"
#include "kernels/open_backend.h"
#include "layers/functions.h"

namespace starling {

namespace {

namespace f = functions;
using Inputs = std::vector<Variable>;

/// A weight, e.g. a scale of ones or a table, with memory for its gradient.
struct Weight {
  Parameter parameter;
  Weight(Backend& backend, const Shape& shape, DType compute, int index) {
    parameter.name = "weight";
    parameter.shape = shape;
    parameter.index = index;
    parameter.value = Tensor(backend, shape, DType::kFloat32);
    parameter.grad = Tensor(backend, shape, DType::kFloat32);
    backend.fill(parameter.value, 1.0);
    if (compute != DType::kFloat32 && shape.rank() > 1) {
      parameter.low = Tensor(backend, shape, compute);
      backend.fill(parameter.low, 1.0);
    }
  }
};

/// A function, forward and backward, with its minimal work: `reads` numbers that the backward pass
/// reads in addition to the incoming gradient; with `flops` it is bound by arithmetic.
struct Case {
  std::string name;
  std::vector<Shape> inputs;
  std::function<Variable(const Inputs&, Pass&)> compute;
  double reads = 0.0, flops = 0.0;
};

/// The functions of `scripts/compare functions`, with the same names.
std::vector<Case> all_cases(Backend& backend, DType dtype) {
  const auto weight = [&](const Shape& shape, int index) {
    return std::make_shared<Weight>(backend, shape, dtype, index);
  };
  std::vector<Case> cases;
  const Shape flat{16 << 20}, rows{8192, 1024}, cube{64, 128, 1024};
  const auto numbers = [](const Shape& shape) { return static_cast<double>(shape.elements()); };
  cases.push_back({.name = "gelu(x) * sigmoid(y) + z",
                   .inputs = {flat, flat, flat},
                   .compute =
                       [](const Inputs& x, Pass& p) {
                         return f::add(f::multiply(f::gelu(x[0], p), f::sigmoid(x[1], p), p), x[2],
                                       p);
                       },
                   .reads = 2 * numbers(flat)});
  cases.push_back({.name = "softmax",
                   .inputs = {rows},
                   .compute = [](const Inputs& x, Pass& p) { return f::softmax(x[0], -1, p); },
                   .reads = numbers(rows)});
  const auto gamma = weight({1024}, 0), beta = weight({1024}, 1);
  cases.push_back({.name = "layer_norm",
                   .inputs = {rows},
                   .compute =
                       [gamma, beta](const Inputs& x, Pass& p) {
                         return f::layer_norm(x[0], gamma->parameter, beta->parameter, 1e-5, p);
                       },
                   .reads = numbers(rows)});
  cases.push_back(
      {.name = "rms_norm",
       .inputs = {rows},
       .compute = [gamma](const Inputs& x,
                          Pass& p) { return f::rms_norm(x[0], gamma->parameter, 1e-5, p); },
       .reads = numbers(rows)});
  for (int axis = 0; axis < 3; ++axis) {
    cases.push_back(
        {.name = fmt::format("sum over {}", axis),
         .inputs = {cube},
         .compute = [axis](const Inputs& x, Pass& p) { return f::sum(x[0], {axis}, false, p); }});
    cases.push_back(
        {.name = fmt::format("max over {}", axis),
         .inputs = {cube},
         .compute = [axis](const Inputs& x, Pass& p) { return f::max(x[0], {axis}, false, p); },
         .reads = numbers(cube)});
  }
  cases.push_back({.name = "permute 0213",
                   .inputs = {{32, 1024, 16, 64}},
                   .compute = [](const Inputs& x, Pass& p) {
                     return f::permute(x[0], {0, 2, 1, 3}, p);
                   }});
  cases.push_back(
      {.name = "transpose", .inputs = {{8192, 4096}}, .compute = [](const Inputs& x, Pass& p) {
         return f::transpose(x[0], 0, 1, p);
       }});
  cases.push_back({.name = "concat",
                   .inputs = {{4096, 4096}, {4096, 4096}},
                   .compute = [](const Inputs& x, Pass& p) {
                     return f::concat({x[0], x[1]}, -1, p);
                   }});
  cases.push_back(
      {.name = "pad", .inputs = {{32, 128, 128, 64}}, .compute = [](const Inputs& x, Pass& p) {
         return f::pad(x[0], {0, 0, 1, 1, 1, 1}, 0.0, p);
       }});
  const auto product = [&](std::int64_t batch, std::int64_t m, std::int64_t k, std::int64_t n) {
    const auto factor = [batch](std::int64_t height, std::int64_t width) {
      return batch > 1 ? Shape{batch, height, width} : Shape{height, width};
    };
    // two more products for the gradients of the factors
    cases.push_back({.name = fmt::format("matmul {} x {}x{} . {}x{}", batch, m, k, k, n),
                     .inputs = {factor(m, k), factor(k, n)},
                     .compute = [](const Inputs& x, Pass& p) { return f::matmul(x[0], x[1], p); },
                     .flops = 6.0 * static_cast<double>(batch * m * k * n)});
  };
  // Two products forward and five backward, each of half of the scores
  const Shape heads{4, 12, 1024, 64};
  cases.push_back({.name = "attention 4x12x1024x64, causal",
                   .inputs = {heads, heads, heads},
                   .compute =
                       [](const Inputs& x, Pass& p) {
                         return f::scaled_dot_product_attention(x[0], x[1], x[2], {}, true, 0.125,
                                                                0.0, p);
                       },
                   .flops = 7.0 * 2.0 * 0.5 * numbers(heads) * 1024});
  product(96, 256, 64, 256);
  product(12, 1024, 64, 1024);
  product(1, 3072, 384, 1536);
  return cases;
}

/// One forward and backward pass, from a given gradient of the output.
class Run {
 public:
  Run(Backend& backend, const Case& of, DType dtype) : backend_(backend), compute_(of.compute) {
    for (const Shape& shape : of.inputs) inputs_.push_back(patterned(backend, shape, dtype));
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
  std::function<Variable(const Inputs&, Pass&)> compute_;
  std::vector<Tensor> inputs_;
  Tensor gradient_, one_;
};

}  // namespace

int bench_functions(const FunctionsBench& settings) {
  const bool gpu = settings.device == "cuda";
  const std::unique_ptr<Backend> backend =
      open_backend(gpu ? DeviceType::kCuda : DeviceType::kCpu, settings.threads);
  const DType dtype = expected_compute(settings.precision, settings.device);
  // The limits: a copy, and a product large enough to reach the device's peak.
  const std::int64_t side = gpu ? 8192 : 1536;
  const Tensor from = patterned(*backend, {16 << 20}, dtype),
               to = patterned(*backend, {16 << 20}, dtype);
  const Tensor a = patterned(*backend, {side, side}, dtype),
               b = patterned(*backend, {side, side}, dtype);
  nlohmann::json result{{"device", backend->description()}, {"precision", settings.precision}};
  if (!settings.json) answer("{}, {}\n", backend->description(), settings.precision);
  for (const Case& one : all_cases(*backend, dtype)) {
    if (one.name.find(settings.only) == std::string::npos) continue;
    const Run run(*backend, one, dtype);
    Timing own(*backend, [&] { run(); });
    Pass pass{.backend = *backend};
    const bool arithmetic = one.flops > 0.0;
    Timing limit(*backend, [&] {
      if (arithmetic)
        f::matmul(Variable(a), Variable(b), pass);
      else
        backend->copy(from, to);
    });
    for (int i = 0; i < settings.repeats; ++i) {
      limit.add();
      own.add();
    }
    const double work = arithmetic
                            ? one.flops
                            : (run.elements() + one.reads) * static_cast<double>(size_of(dtype)),
                 least = arithmetic ? 2.0 * std::pow(static_cast<double>(side), 3)
                                    : 2.0 * static_cast<double>(from.bytes()),
                 rate = work / own.seconds(), limit_rate = least / limit.seconds();
    result["rows"].push_back({{"function", one.name},
                              {"ms", 1e3 * own.seconds()},
                              {"rate", rate / 1e9},
                              {"unit", arithmetic ? "GFLOP/s" : "GB/s"},
                              {"limit", limit_rate / 1e9},
                              {"ratio", rate / limit_rate}});
    if (!settings.json)
      answer("  {:<40} {:9.3f} ms {:9.1f} {:<8} {:5.2f} of a {}\n", one.name, 1e3 * own.seconds(),
             rate / 1e9, arithmetic ? "GFLOP/s" : "GB/s", rate / limit_rate,
             arithmetic ? "large product" : "copy");
  }
  if (!result.contains("rows"))
    fail(ExitCode::kUsage, "bench", "--only: no function's name has '{}'", settings.only);
  if (settings.json) answer("{}\n", result.dump());
  return 0;
}

}  // namespace starling
