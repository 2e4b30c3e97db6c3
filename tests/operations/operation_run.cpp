#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include "core/dispatch.h"
#include "core/error.h"
#include "core/forwarding_backend.h"
#include "core/operations/all.h"
#include "core/philox.h"
#include "tests/operations/operation_table.h"

// How the rows of the operation table are run and compared.
namespace starling::tests {

Numbers random_numbers(std::int64_t n, std::uint64_t seed) {
  Numbers result(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i] = 2.0 * static_cast<double>(uniform_float(philox(seed, i, 77).v[0])) - 1.0;
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
  // Half a unit in the last place where a number is rounded once; some numbers are made of one that
  // was rounded before.
  return dtype == DType::kBFloat16 ? 0x1p-8 : dtype == DType::kFloat16 ? 0x1p-11 : 0.0;
}

template <class T>
constexpr bool kLow = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

constexpr double kAround = 77.0;
constexpr std::int64_t kMargin = 40;

}  // namespace

DType Operation::input_dtype(std::size_t i, DType dtype) const {
  return dtype_of(input_role(i), dtype);
}
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

std::vector<Numbers> special_inputs(const Operation& op, DType dtype) {
  std::vector<Numbers> inputs = random_inputs(op, dtype);
  // all of its bits are set, in fp32 too
  const auto gpus_nan = std::bit_cast<double>(~std::uint64_t{0} >> 1);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::size_t n = inputs[i].size();
    if (op.input_role(i) != Role::kActivation || n < 3) continue;
    inputs[i][n * (i + 1) / (inputs.size() + 2)] = gpus_nan;
    const bool elementwise =
        inputs.size() == 1 && op.outputs.size() == 1 && op.outputs[0] == op.inputs[0];
    if (!elementwise || n < 15) continue;
    inputs[i][0] = -kInfinity;
    inputs[i][n - 1] = kInfinity;
    inputs[i][n - 2] = -0.0;
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
  for (std::size_t i = 0; i < op.inputs.size(); ++i)
    in.emplace_back(backend, op.inputs[i], op.input_dtype(i, dtype));
  for (std::size_t i = 0; i < op.outputs.size(); ++i)
    out.emplace_back(backend, op.outputs[i], op.output_dtype(i, dtype));
  PassWork work;
  op.forward(backend, in, out, saved);
  work.forward = backend.take();
  if (op.forward_bytes > 0.0) work.forward.bytes = op.forward_bytes;
  if (!op.backward) return work;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    gradients.push_back(op.differentiable(i)
                            ? Tensor(backend, op.inputs[i], op.gradient_dtype(i, dtype))
                            : Tensor());
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

namespace {

using Pairs = std::vector<std::pair<Tensor*, Tensor*>>;
/// Inputs, and the results that may lie over them, by core/operations.
template <class Args>
Pairs overlaps(Args&) {
  return {};
}
Pairs overlaps(Map& args) {
  Pairs result;
  for (Tensor& in : args.in) {
    if (in && in.shape() == args.y.shape() && in.dtype() == args.y.dtype())
      result.emplace_back(&in, &args.y);
  }
  return result;
}
Pairs overlaps(SoftmaxBackward& args) { return {{&args.dy, &args.dx}}; }
Pairs overlaps(Rotary& args) { return {{&args.x, &args.y}}; }
Pairs overlaps(Dropout& args) { return {{&args.x, &args.y}}; }
Pairs overlaps(BatchNormBackward& args) {
  return {{&args.dy, &args.dx},  {&args.x, &args.dx},         {&args.y, &args.dx},
          {&args.dy2, &args.dx}, {&args.dy, &args.dresidual}, {&args.dy2, &args.dresidual}};
}
Pairs overlaps(WeightedSum& args) {
  Pairs result;
  for (std::size_t k = 0; k < args.in.size() && !args.accumulate; ++k)
    result.emplace_back(&args.in[k], &args.out);
  return result;
}

/// Changes calls as a Way says.
class Varying final : public ForwardingBackend {
 public:
  Varying(Backend& inner, const Way& way) : ForwardingBackend(inner), way_(way) {}
  int varied = 0;

#define STARLING_VARY(Arguments, name)         \
  void issue(const Arguments& args) override { \
    Arguments changed = args;                  \
    vary(changed);                             \
    ForwardingBackend::issue(changed);         \
  }
  STARLING_OPERATIONS(STARLING_VARY)
#undef STARLING_VARY

 private:
  template <class Args>
  void vary(Args& args) {
    if constexpr (requires { args.accumulate; }) {
      bool may = way_.accumulate && !args.accumulate;
      // a product has one of the two
      if constexpr (requires { args.relu; }) may = may && !args.relu;
      if constexpr (requires { args.gelu_input; })
        may = may && !args.before_gelu && !args.gelu_input;
      // only sums
      if constexpr (requires { args.by; }) may = may && args.by == Reduction::kSum;
      // a step that has no results to add to
      if constexpr (requires { args.sums; })
        may = may && args.sums != BatchNormBackward::Sums::kWritten;
      // which divides what was there too
      if constexpr (requires { args.divisor; }) may = false;
      if (may) args.accumulate = true, ++varied;
    }
    const Pairs all = overlaps(args);
    Pairs pairs = all;
    std::erase_if(pairs, [&](const auto& pair) {
      return !*pair.first || !*pair.second ||
             std::any_of(all.begin(), all.end(), [&](const auto& other) {
               return other.second == pair.second && *other.first &&
                      other.first->storage() == other.second->storage();
             });
    });
    if (way_.over < 0 || way_.over >= static_cast<int>(pairs.size())) return;
    const auto [from, to] = pairs[static_cast<std::size_t>(way_.over)];
    inner().copy(*from, *to);
    *from = *to;
    ++varied;
  }
  Way way_;
};

/// Makes a row's tensors as a Way says, and sees afterwards whether what lies around them is as it
/// was.
class Maker {
 public:
  Maker(Backend& backend, const Way& way, DType other)
      : backend_(backend), way_(way), other_(other) {}

  Tensor operator()(const Numbers& numbers, const Shape& shape, DType dtype) {
    if (made_++ == way_.wrong) return spoiled(shape, dtype);
    const std::int64_t offset = way_.place == 1 ? 1 : way_.place == 2 ? made_ % 7 : 0;
    Tensor result = to_tensor(backend_, numbers, shape, dtype, offset);
    if (offset > 0) placed_.emplace_back(result, offset);
    return result;
  }
  Tensor operator()(double number, const Shape& shape, DType dtype) {
    return (*this)(Numbers(static_cast<std::size_t>(shape.elements()), number), shape, dtype);
  }
  bool spilled() const {
    return std::any_of(placed_.begin(), placed_.end(), [this](const auto& placed) {
      return has_spilled(placed.first, placed.second);
    });
  }

 private:
  Tensor spoiled(const Shape& shape, DType dtype) const {
    std::vector<std::int64_t> sizes(shape.sizes().begin(), shape.sizes().end());
    if (way_.kind == Way::Wrong::kType) {
      dtype = dtype == DType::kFloat32 ? other_ : DType::kFloat32;
    } else if (sizes.empty()) {
      sizes.push_back(2);
    } else {
      ++(way_.kind == Way::Wrong::kFirst ? sizes.front() : sizes.back());
    }
    Tensor result(backend_, Shape(std::span<const std::int64_t>(sizes)), dtype);
    backend_.fill(result, 0.0);
    return result;
  }
  bool has_spilled(const Tensor& tensor, std::int64_t offset) const {
    if (backend_.device() == DeviceType::kMeta) return false;
    bool result = false;
    dispatch(tensor.dtype(), [&](auto number) {
      using T = decltype(number);
      const Tensor memory(tensor.storage(), 0, {offset + tensor.elements() + kMargin},
                          tensor.dtype());
      std::vector<T> found(static_cast<std::size_t>(memory.elements()));
      backend_.copy_to_host(memory, found.data());
      for (std::int64_t i = 0; i < memory.elements(); ++i) {
        if (i < offset || i >= offset + tensor.elements())
          result = result || static_cast<float>(found[static_cast<std::size_t>(i)]) != 77.0f;
      }
    });
    return result;
  }

  Backend& backend_;
  Way way_;
  DType other_;  // what a parameter's type is not
  int made_ = 0;
  std::vector<std::pair<Tensor, std::int64_t>> placed_;
};

}  // namespace

Results run(const Operation& op, Backend& backend, DType dtype, const std::vector<Numbers>& inputs,
            const Numbers& seed, const Way& way) {
  std::vector<Tensor> in, out, saved, gradients;
  const double before = way.accumulate ? 0.5 : 99.0;  // what is not written shows
  Maker make(backend, way, is_low_precision(dtype) ? dtype : DType::kFloat64);
  Varying varying(backend, way);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    in.push_back(make(inputs[i], op.inputs[i], op.input_dtype(i, dtype)));
  for (std::size_t i = 0; i < op.outputs.size(); ++i)
    out.push_back(make(before, op.outputs[i], op.output_dtype(i, dtype)));
  op.forward(varying, in, out, saved);
  Results results;
  for (const Tensor& tensor : out) results.outputs.push_back(to_numbers(tensor));
  if (op.backward) {
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      gradients.push_back(op.differentiable(i)
                              ? make(before, op.inputs[i], op.gradient_dtype(i, dtype))
                              : Tensor());
    }
    op.backward(varying, in, out, saved, make(seed, op.outputs[0], op.output_dtype(0, dtype)),
                gradients);
    for (const Tensor& tensor : gradients)
      results.gradients.push_back(tensor ? to_numbers(tensor) : Numbers{});
  }
  results.spilled = make.spilled();
  results.varied = varying.varied;
  return results;
}

std::vector<Way> ways_of(const Operation& op) {
  const auto meta = make_meta_backend();
  const auto inputs = random_inputs(op);
  const Numbers seed = random_seed(op);
  std::vector<Way> result;
  const auto add = [&](const Way& way) {
    const bool varies = run(op, *meta, DType::kFloat32, inputs, seed, way).varied > 0;
    if (varies) result.push_back(way);
    return varies;
  };
  add({.accumulate = true});
  for (int i = 0; add({.over = i}); ++i) continue;
  return result;
}

std::string taken_wrongly(const Operation& op, Backend& backend, DType dtype) {
  std::string result;
  const auto inputs = random_inputs(op, dtype);
  const Numbers seed = random_seed(op, dtype);
  const auto refuses = [&](int which, Way::Wrong kind) {
    try {
      run(op, backend, dtype, inputs, seed, {.wrong = which, .kind = kind});
      return false;
    } catch (const Error&) {
      return true;
    }
  };
  for (std::size_t k = 0; k < op.inputs.size() + op.outputs.size(); ++k) {
    const DType type = k < op.inputs.size() ? op.input_dtype(k, dtype)
                                            : op.output_dtype(k - op.inputs.size(), dtype);
    if (op.loose.contains(k) || (is_low_precision(dtype) && type != DType::kFloat32)) continue;
    const auto i = static_cast<int>(k);
    if (!refuses(i, Way::Wrong::kFirst) && !refuses(i, Way::Wrong::kLast))
      result += fmt::format("{}: tensor {} of another shape\n", op.name, i);
    if (!refuses(i, Way::Wrong::kType))
      result += fmt::format("{}: tensor {} of another type\n", op.name, i);
  }
  return result;
}

double distance(const Numbers& a, const Numbers& b) {
  if (a.size() != b.size()) return 1e300;
  double result = 0.0, largest = 1e-2;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) {
      if (std::isfinite(b[i])) largest = std::max(largest, std::abs(b[i]));
      continue;
    }
    const double d = std::abs(a[i] - b[i]);
    if (!std::isfinite(d)) return 1e300;
    result = std::max(result, d);
    largest = std::max(largest, std::abs(b[i]));
  }
  return result / largest;
}

double tolerance(const Operation& op, DType dtype, DType type) {
  return dtype == DType::kFloat64 ? 1e-11
                                  : op.tolerance + unit_of(type) + op.carried * unit_of(dtype);
}

std::string difference(const Operation& op, DType dtype, const Results& found,
                       const Results& expected) {
  std::string result;
  double worst = 1.0;
  const auto compare = [&](const char* what, std::size_t i, const Numbers& a, const Numbers& b,
                           double allowed, DType type) {
    const double d = distance(a, b);
    if (!(d / allowed >= worst)) return;
    worst = d / allowed;
    result = fmt::format("{}: {} {} ({}) is off by {:.3g} of its largest number; {:.3g} is allowed",
                         op.name, what, i, name_of(type), d, allowed);
  };
  if (found.spilled) return op.name + ": numbers beside a tensor have changed";
  if (found.outputs.size() != expected.outputs.size() ||
      found.gradients.size() != expected.gradients.size())
    return "results are missing";
  for (std::size_t i = 0; i < expected.outputs.size(); ++i) {
    const DType type = op.output_dtype(i, dtype);
    compare("output", i, found.outputs[i], expected.outputs[i], tolerance(op, dtype, type), type);
  }
  for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
    const DType type = op.gradient_dtype(i, dtype);
    compare("gradient of input", i, found.gradients[i], expected.gradients[i],
            3 * tolerance(op, dtype, type), type);
  }
  return result;
}

Tensor to_tensor(Backend& backend, const Numbers& numbers, const Shape& shape, DType dtype,
                 std::int64_t offset) {
  const std::int64_t elements = offset + shape.elements() + (offset > 0 ? kMargin : 0);
  const Tensor memory(backend, {elements}, dtype);
  dispatch(dtype, [&](auto number) {
    using T = decltype(number);
    std::vector<T> typed;
    typed.reserve(static_cast<std::size_t>(elements));
    for (std::int64_t i = 0; i < elements; ++i) {
      const bool inside = i >= offset && i < offset + shape.elements();
      const double v = inside ? numbers[static_cast<std::size_t>(i - offset)] : kAround;
      if constexpr (kLow<T>) {
        typed.emplace_back(static_cast<float>(v));
      } else {
        typed.push_back(static_cast<T>(v));
      }
    }
    backend.copy_from_host(typed.data(), memory);
  });
  return offset > 0 ? memory.slice(offset, shape) : memory.reshaped(shape);
}

Numbers to_numbers(const Tensor& tensor) {
  Numbers result(static_cast<std::size_t>(tensor.elements()), 0.0);
  if (tensor.backend().device() == DeviceType::kMeta) return result;  // a trace on shapes has none
  dispatch(tensor.dtype(), [&](auto number) {
    std::vector<decltype(number)> typed(result.size());
    tensor.backend().copy_to_host(tensor, typed.data());
    for (std::size_t i = 0; i < result.size(); ++i) {
      if constexpr (kLow<decltype(number)>) {
        result[i] = static_cast<double>(static_cast<float>(typed[i]));
      } else {
        result[i] = static_cast<double>(typed[i]);
      }
    }
  });
  return result;
}

std::string wrong_slopes(const Operation& op, Backend& backend) {
  if (!op.backward) return "";
  const std::vector<Numbers> inputs = random_inputs(op);
  const Numbers seed = random_seed(op);
  const Results found = run(op, backend, DType::kFloat64, inputs, seed);
  const auto value = [&](const std::vector<Numbers>& point) {
    const Results results = run(op, backend, DType::kFloat64, point, seed);
    double sum = 0.0;
    for (std::size_t i = 0; i < seed.size(); ++i) sum += seed[i] * results.outputs[0][i];
    return sum;
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!op.differentiable(i)) continue;
    // The slope along a direction
    const auto differs = [&](double step, double allowed, double expected, const auto& direction) {
      std::vector<Numbers> above = inputs, below = inputs;
      for (std::size_t j = 0; j < inputs[i].size(); ++j) {
        above[i][j] += step * direction(j);
        below[i][j] -= step * direction(j);
      }
      const double slope = (value(above) - value(below)) / (2 * step);
      return std::abs(slope - expected) < allowed
                 ? std::string()
                 : fmt::format("input {}: the slope is {}, its gradient {}", i, slope, expected);
    };
    double largest = 1.0;
    for (const double v : found.gradients[i]) largest = std::max(largest, std::abs(v));
    // Single elements spread over the tensor, and one random direction over all of it.
    const std::size_t n = inputs[i].size(), stride = std::max<std::size_t>(1, n / 12) | 1;
    for (std::size_t at = 0; at < n; at += stride) {
      const std::string wrong = differs(1e-6, 1e-6 * largest, found.gradients[i][at],
                                        [at](std::size_t j) { return j == at ? 1.0 : 0.0; });
      if (!wrong.empty()) return fmt::format("element {} of {}", at, wrong);
    }
    const Numbers direction = random_numbers(static_cast<std::int64_t>(n), 55);
    double expected = 0.0;
    for (std::size_t j = 0; j < n; ++j) expected += direction[j] * found.gradients[i][j];
    const std::string wrong = differs(1e-7, 1e-5 * std::max(1.0, std::abs(expected)), expected,
                                      [&](std::size_t j) { return direction[j]; });
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace starling::tests
