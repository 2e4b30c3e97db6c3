#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/operations/codecs.h"
#include "core/operations/updates.h"
#include "kernels/open_backend.h"
#include "kernels/optimizer.h"
#include "tests/kernels/optimizer_reference.h"

// The fused update of one bucket on two backends, step by step: the same bits.
namespace starling::tests {

/// A case of an update: what varies from one to the other.
struct UpdateCase {
  std::int64_t n = 96;
  int terms = 1;
  bool whole_sum = false;       ///< self_weight 0
  bool in_place = true;         ///< x_out is x
  std::int64_t offset = 0;      ///< elements by which all buffers start off an aligned address
  DType low = DType::kFloat32;  ///< of the copy
  bool controlled = false;      ///< a clip factor in each step, and the second one skipped
  bool encoded = false;         ///< what is received are messages in `code`, in blocks of 32
  Code code = Code::kNone;
  int steps = 5;
};

/// One side's bucket. Both sides start from the same numbers.
template <class T>
struct UpdateSide {
  UpdateSide(Backend& to, const UpdateCase& how,
             std::function<std::vector<T>(unsigned seed)> numbers,
             const std::function<bool(std::size_t block)>& decays)
      : backend(to), offset(how.offset), random(std::move(numbers)) {
    args.x = args.x_out = put(random(1));
    if (!how.in_place) args.x_out = put(random(2));
    args.gradient = put(random(3));
    for (int k = 0; k < how.terms; ++k) {
      args.received.push_back(put(random(10 + static_cast<unsigned>(k))));
      args.weights.push_back(1.0 / (how.terms + 1.5 + k));
    }
    args.self_weight = how.whole_sum ? 0.0 : 0.37;
    args.gradient_scale = 0.77;
    if (how.low != DType::kFloat32) args.low = memory(how.low, args.x.elements());
    if (how.controlled) args.control = Tensor(backend, Shape{2}, DType::kFloat64);
    std::vector<std::uint8_t> entries;
    for (std::size_t i = 0; i < static_cast<std::size_t>(args.x.elements()) / 32; ++i)
      entries.push_back(decays(i) ? kDecays : 0);
    args.decay = Tensor(backend, Shape{args.x.elements() / 32}, DType::kUInt8);
    backend.copy_from_host(entries.data(), args.decay);
  }

  Tensor memory(DType dtype, std::int64_t n) const {
    return Tensor(backend, Shape{n + offset}, dtype).slice(offset, Shape{n});
  }
  Tensor put(const std::vector<T>& values) const {
    const Tensor tensor = memory(DTypeOf<T>::value, static_cast<std::int64_t>(values.size()));
    backend.copy_from_host(values.data(), tensor);
    return tensor;
  }
  void add_states(std::size_t count, std::int64_t n) {
    for (std::size_t s = 0; s < count; ++s)
      args.states.push_back(put(std::vector<T>(static_cast<std::size_t>(n), T(0))));
  }

  void set_step(std::int64_t step) {
    args.step = step;
    std::vector<T> gradient = random(100 + static_cast<unsigned>(step));
    if (args.control) {
      const double control[2] = {1.0 / (0.9 + static_cast<double>(step)), step == 2 ? 1.0 : 0.0};
      backend.copy_from_host(control, args.control);
      if (step == 2 && overflows) gradient[7] = std::numeric_limits<T>::infinity();
    }
    backend.copy_from_host(gradient.data(), args.gradient);
  }

  std::vector<std::byte> bytes_of(const Tensor& tensor) const {
    std::vector<std::byte> result(tensor.bytes());
    backend.copy_to_host(tensor, result.data());
    return result;
  }

  Backend& backend;
  std::int64_t offset;
  UpdateArgs args;
  std::function<std::vector<T>(unsigned)> random;
  bool overflows = false;  ///< a gradient is infinite in the step that is skipped
};

/// Encodes the numbers: both sides get the bytes that the CPU makes of them.
template <class T>
void encode_received(UpdateSide<T>& side, const UpdateCase& how) {
  const std::unique_ptr<Backend> cpu = open_backend(DeviceType::kCpu, 1);
  constexpr std::int64_t kBlock = 32;
  UpdateArgs& args = side.args;
  for (Tensor& received : args.received) {
    const Tensor numbers(*cpu, Shape{how.n}, DTypeOf<T>::value);
    side.backend.copy_to_host(received, numbers.raw());
    const Tensor message(*cpu, Shape{message_bytes(how.code, DTypeOf<T>::value, how.n, kBlock)},
                         DType::kUInt8);
    cpu->encode({.x = numbers, .message = message, .code = how.code, .block = kBlock});
    received = Tensor(side.backend, message.shape(), DType::kUInt8);
    side.backend.copy_from_host(message.raw(), received);
  }
  args.encoded = {.weights = args.weights, .code = how.code, .block = kBlock};
  args.encoded.weights[0] = -0.75;
  args.sum_received = true;
  args.weights = {0.7};
}

/// A bucket without layers, of how.n numbers.
template <class T>
UpdateSide<T> bucket_side(Backend& to, const UpdateCase& how, std::size_t states) {
  const auto random = [n = static_cast<std::size_t>(how.n)](unsigned seed) {
    return test::normal_numbers<T>(n, seed);
  };
  UpdateSide<T> side(to, how, random, [](std::size_t block) { return block % 3 != 1; });
  side.add_states(states, how.n);
  if (how.encoded) encode_received(side, how);
  side.args.lr = 0.01;
  side.overflows = true;
  return side;
}

template <class T>
void compare_steps(const OptimizerRule& rule, const UpdateCase& how, UpdateSide<T>& expected,
                   UpdateSide<T>& found) {
  for (std::int64_t step = 1; step <= how.steps; ++step) {
    CAPTURE(step);
    const auto before = expected.bytes_of(expected.args.x_out);
    for (UpdateSide<T>* side : {&expected, &found}) {
      side->set_step(step);
      side->backend.update({rule, side->args});
    }
    const bool skipped = how.controlled && step == 2,
               stands_still = skipped && how.terms == 0 && how.in_place;
    const auto compare = [&](const Tensor& a, const Tensor& b) {
      CHECK(found.bytes_of(a) == expected.bytes_of(b));
    };
    CHECK((expected.bytes_of(expected.args.x_out) == before) == stands_still);
    compare(found.args.x_out, expected.args.x_out);
    if (expected.args.layers.factors && !skipped)
      compare(found.args.layers.factors, expected.args.layers.factors);
    for (std::size_t s = 0; s < expected.args.states.size(); ++s)
      compare(found.args.states[s], expected.args.states[s]);
    if (expected.args.low) compare(found.args.low, expected.args.low);
    if (how.in_place) continue;
    for (UpdateSide<T>* side : {&expected, &found}) std::swap(side->args.x, side->args.x_out);
  }
}

}  // namespace starling::tests
