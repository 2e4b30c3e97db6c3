#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "core/forwarding_backend.h"
#include "core/philox.h"
#include "tests/operations/operation_table.h"

// How the rows of the operation table are run and compared.
namespace starling::tests {

Numbers random_numbers(std::int64_t n, std::uint64_t seed) {
  Numbers result(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = 2.0 * static_cast<double>(uniform_float(philox(seed, i, 77).v[0])) - 1.0;
  return result;
}

namespace {

DType dtype_of(Role role, DType dtype) {
  switch (role) {
    case Role::kActivation:
    case Role::kWeight: return dtype;
    case Role::kParameter: return parameter_dtype(dtype);
    case Role::kExact: return DType::kFloat64;
    case Role::kIndex: return DType::kInt32;
    case Role::kByte: return DType::kUInt8;
    case Role::kCounter: break;
  }
  return DType::kInt64;
}

double rounded(double v, DType dtype) {
  const auto f = static_cast<float>(v);
  switch (dtype) {
    case DType::kBFloat16: return static_cast<double>(static_cast<float>(BFloat16(f)));
    case DType::kFloat16: return static_cast<double>(static_cast<float>(Float16(f)));
    default: return static_cast<double>(f);
  }
}

double unit_of(DType dtype) {
  // Half a unit in the last place where a number is rounded once; some numbers are made of one that was rounded before.
  return dtype == DType::kBFloat16 ? 0x1p-8 : dtype == DType::kFloat16 ? 0x1p-11 : 0.0;
}

/// Calls f with a number of the integer type that `dtype` is; false where it is none.
template <class F>
bool as_integer(DType dtype, F f) {
  if (dtype == DType::kInt32) return f(std::int32_t{}), true;
  if (dtype == DType::kInt64) return f(std::int64_t{}), true;
  if (dtype == DType::kUInt8) return f(std::uint8_t{}), true;
  return false;
}

}  // namespace

DType Operation::input_dtype(std::size_t i, DType dtype) const { return dtype_of(input_role(i), dtype); }
DType Operation::output_dtype(std::size_t i, DType dtype) const {
  return output_role(i) == Role::kWeight ? parameter_dtype(dtype) : dtype_of(output_role(i), dtype);
}
DType Operation::gradient_dtype(std::size_t i, DType dtype) const {
  return input_role(i) == Role::kActivation ? dtype : parameter_dtype(dtype);
}

std::vector<Numbers> random_inputs(const Operation& op, DType dtype) {
  std::vector<Numbers> inputs;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    inputs.push_back(random_numbers(op.inputs[i].elements(), 100 + i));
    if (!is_integer(op.input_role(i))) continue;
    const auto bound = static_cast<double>(op.bounds.at(i));
    for (double& v : inputs.back()) v = std::floor((v + 1.0) / 2.0 * bound);
  }
  if (op.fit) op.fit(inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!op.differentiable(i)) continue;
    for (double& v : inputs[i]) v = rounded(v, op.input_dtype(i, dtype));
  }
  return inputs;
}

Numbers random_seed(const Operation& op, DType dtype) {
  Numbers seed = random_numbers(op.outputs[0].elements(), 9);
  for (double& v : seed) v = rounded(v, op.output_dtype(0, dtype));
  return seed;
}

namespace {

/// Adds up what passes.
class Adding final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  std::set<std::string> names;
  Work take() { return std::exchange(work_, {}); }

 private:
  bool notes_accesses() const override { return true; }
  void before(std::string_view name, const Accesses& accesses) override {
    names.emplace(name);
    work_.bytes += accesses.bytes;
    work_.flops += accesses.flops;
  }
  Work work_;
};

/// Both passes on shapes alone.
PassWork trace(const Operation& op, DType dtype, Adding& backend) {
  std::vector<Tensor> in, out, saved, gradients;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) in.emplace_back(backend, op.inputs[i], op.input_dtype(i, dtype));
  for (std::size_t i = 0; i < op.outputs.size(); ++i) out.emplace_back(backend, op.outputs[i], op.output_dtype(i, dtype));
  PassWork work;
  op.forward(backend, in, out, saved);
  work.forward = backend.take();
  if (op.forward_bytes > 0.0) work.forward.bytes = op.forward_bytes;
  if (!op.backward) return work;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    gradients.push_back(op.differentiable(i) ? Tensor(backend, op.inputs[i], op.gradient_dtype(i, dtype)) : Tensor());
  }
  const Tensor dy(backend, op.outputs[0], op.output_dtype(0, dtype));
  op.backward(backend, in, out, saved, dy, gradients);
  work.backward = backend.take();
  work.backward.bytes += op.backward_again * static_cast<double>(size_of(dtype));
  return work;
}

}  // namespace

PassWork work_of(const Operation& op, DType dtype) {
  const auto meta = make_meta_backend();
  Adding backend(*meta);
  return trace(op, dtype, backend);
}

std::set<std::string> names_in(const Operation& op) {
  const auto meta = make_meta_backend();
  Adding backend(*meta);
  trace(op, DType::kBFloat16, backend);
  return backend.names;
}

Results run(const Operation& op, Backend& backend, DType dtype, const std::vector<Numbers>& inputs, const Numbers& seed) {
  std::vector<Tensor> in, out, saved, gradients;
  for (std::size_t i = 0; i < inputs.size(); ++i) in.push_back(to_tensor(backend, inputs[i], op.inputs[i], op.input_dtype(i, dtype)));
  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    out.emplace_back(backend, op.outputs[i], op.output_dtype(i, dtype));
    backend.fill(out.back(), 99.0);  // what is not written shows
  }
  op.forward(backend, in, out, saved);
  Results results;
  for (const Tensor& tensor : out) results.outputs.push_back(to_numbers(tensor));
  if (!op.backward) return results;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    gradients.emplace_back();
    if (!op.differentiable(i)) continue;
    gradients.back() = Tensor(backend, op.inputs[i], op.gradient_dtype(i, dtype));
    backend.fill(gradients.back(), 99.0);
  }
  op.backward(backend, in, out, saved, to_tensor(backend, seed, op.outputs[0], op.output_dtype(0, dtype)), gradients);
  for (const Tensor& tensor : gradients) results.gradients.push_back(tensor ? to_numbers(tensor) : Numbers{});
  return results;
}

double distance(const Numbers& a, const Numbers& b) {
  if (a.size() != b.size()) return 1e300;
  double result = 0.0, largest = 1e-2;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (std::isnan(d)) return 1e300;
    result = std::max(result, d);
    largest = std::max(largest, std::abs(b[i]));
  }
  return result / largest;
}

double tolerance(const Operation& op, DType dtype, DType type) {
  return dtype == DType::kFloat64 ? 1e-11 : op.tolerance + unit_of(type) + op.carried * unit_of(dtype);
}

std::string difference(const Operation& op, DType dtype, const Results& found, const Results& expected) {
  std::string result;
  double worst = 1.0;
  const auto compare = [&](const char* what, std::size_t i, const Numbers& a, const Numbers& b, double allowed, DType type) {
    const double d = distance(a, b);
    if (!(d / allowed >= worst)) return;
    worst = d / allowed;
    result = fmt::format("{}: {} {} ({}) is off by {:.3g} of its largest number; {:.3g} is allowed", op.name, what, i, name_of(type), d,
                         allowed);
  };
  if (found.outputs.size() != expected.outputs.size() || found.gradients.size() != expected.gradients.size()) return "results are missing";
  for (std::size_t i = 0; i < expected.outputs.size(); ++i) {
    const DType type = op.output_dtype(i, dtype);
    compare("output", i, found.outputs[i], expected.outputs[i], tolerance(op, dtype, type), type);
  }
  for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
    const DType type = op.gradient_dtype(i, dtype);
    compare("gradient of input", i, found.gradients[i], expected.gradients[i], 3 * tolerance(op, dtype, type), type);
  }
  return result;
}

Tensor to_tensor(Backend& backend, const Numbers& numbers, const Shape& shape, DType dtype) {
  Tensor result(backend, shape, dtype);
  const auto upload = [&](auto integer) {
    const std::vector<decltype(integer)> whole(numbers.begin(), numbers.end());
    backend.copy_from_host(whole.data(), result);
  };
  if (as_integer(dtype, upload)) return result;
  Tensor wide(backend, shape, DType::kFloat64);
  backend.copy_from_host(numbers.data(), wide);
  if (dtype == DType::kFloat64) return wide;
  backend.cast({wide, result});
  return result;
}

Numbers to_numbers(const Tensor& tensor) {
  // A trace on shapes has none.
  if (tensor.backend().device() == DeviceType::kMeta) return Numbers(static_cast<std::size_t>(tensor.elements()), 0.0);
  Numbers result;
  const auto download = [&](auto integer) {
    std::vector<decltype(integer)> whole(static_cast<std::size_t>(tensor.elements()));
    tensor.backend().copy_to_host(tensor, whole.data());
    result.assign(whole.begin(), whole.end());
  };
  if (as_integer(tensor.dtype(), download)) return result;
  Tensor wide = tensor;
  if (tensor.dtype() != DType::kFloat64) {
    wide = Tensor(tensor.backend(), tensor.shape(), DType::kFloat64);
    tensor.backend().cast({tensor, wide});
  }
  result.resize(static_cast<std::size_t>(tensor.elements()));
  tensor.backend().copy_to_host(wide, result.data());
  return result;
}

}  // namespace starling::tests
