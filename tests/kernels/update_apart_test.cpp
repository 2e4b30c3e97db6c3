#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "core/backend.h"
#include "core/error.h"
#include "core/operations/codecs.h"
#include "core/operations/map.h"
#include "core/operations/updates.h"
#include "kernels/open_backend.h"
#include "tests/kernels/optimizer_reference.h"
#include "tests/operations/operation_table.h"

using namespace starling;

namespace {

std::unique_ptr<OptimizerRule> adamw() { return test::make_rule("adamw", {{"weight_decay", 0.1}}); }

Tensor numbers(Backend& backend, std::int64_t n, DType dtype, double phase) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i)
    values.push_back(std::sin(0.37 * static_cast<double>(i) + phase));
  return tests::to_tensor(backend, values, {n}, dtype);
}

bool same(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

/// One update of n elements; x_out is x, or memory of its own.
struct OneUpdate {
  OneUpdate(Backend& backend, std::int64_t n, DType dtype, bool apart) {
    args.x = numbers(backend, n, dtype, 0.0);
    args.x_out = apart ? Tensor(backend, Shape{n}, dtype) : args.x;
    args.gradient = numbers(backend, n, dtype, 1.0);
    for (int k = 0; k < 2; ++k) {
      args.states.emplace_back(backend, Shape{n}, dtype);
      backend.fill(args.states.back(), 0.0);
    }
    args.decay = Tensor(backend, Shape{n / 32}, DType::kUInt8);
    backend.fill(args.decay, 1.0);
    args.lr = 0.01;
  }
  UpdateArgs args;
};

}  // namespace

TEST_CASE(
    "kernels/update: the terms of a sum give the bits of the sum made before, for any weight, size "
    "and number of threads") {
  const auto rule = adamw();
  for (const int threads : {1, 3}) {
    const auto backend = open_backend(DeviceType::kCpu, threads);
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      for (const std::int64_t n : {32, 4096, 4128, 20'000}) {
        for (const double self_weight : {0.0, 0.3, -0.1}) {
          for (const int terms : {2, 3, 5, 20}) {
            OneUpdate once(*backend, n, dtype, false), summed(*backend, n, dtype, true);
            const Tensor total = numbers(*backend, n, dtype, 2.0);
            for (int k = 0; k < terms; ++k) {
              summed.args.received.push_back(numbers(*backend, n, dtype, 2.0 + k));
              if (k > 0)
                backend->map({MapFunction::kAdd, total, summed.args.received.back(), total});
            }
            once.args.received = {total};
            once.args.weights = summed.args.weights = {0.2};
            once.args.self_weight = summed.args.self_weight = self_weight;
            summed.args.sum_received = true;
            backend->update({*rule, once.args});
            backend->update({*rule, summed.args});
            CAPTURE(n);
            CAPTURE(self_weight);
            CAPTURE(terms);
            CHECK(same(once.args.x_out, summed.args.x_out));
            CHECK(same(once.args.states[1], summed.args.states[1]));
          }
        }
      }
    }
  }
}

TEST_CASE(
    "kernels/update: messages decoded on the way have the bits of those decoded before, whole "
    "buckets and parts of them") {
  const auto rule = adamw();
  for (const int threads : {1, 3}) {
    const auto backend = open_backend(DeviceType::kCpu, threads);
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      for (const Code code : {Code::kInt8, Code::kMinMax8, Code::kInt4, Code::kBf16, Code::kNone}) {
        for (const std::int64_t block : {32, 256, 0}) {
          for (const std::int64_t n : {32, 4128, 20'000}) {
            OneUpdate before(*backend, n, dtype, false), parts(*backend, n, dtype, false),
                whole(*backend, n, dtype, true);
            const Tensor sum(*backend, Shape{n}, dtype);
            Decode decode{.terms = 3, .out = sum, .code = code, .block = block};
            for (std::size_t k = 0; k < 3; ++k) {
              const Tensor message(*backend, Shape{message_bytes(code, dtype, n, block)},
                                   DType::kUInt8);
              backend->encode({.x = numbers(*backend, n, dtype, 2.0 + static_cast<double>(k)),
                               .message = message,
                               .code = code,
                               .block = block});
              whole.args.received.push_back(message);
              whole.args.encoded.weights.push_back(k == 0 ? -0.75
                                                          : 0.25 + 0.25 * static_cast<double>(k));
              decode.messages[k] = message;
              decode.weight[k] = whole.args.encoded.weights.back();
            }
            backend->decode(decode);
            before.args.received = {sum};
            whole.args.sum_received = true;
            whole.args.encoded.code = code;
            whole.args.encoded.block = block;
            before.args.weights = whole.args.weights = {0.7};
            backend->update({*rule, before.args});
            backend->update({*rule, whole.args});
            CAPTURE(n);
            CAPTURE(block);
            CHECK(same(before.args.x_out, whole.args.x_out));
            CHECK(same(before.args.states[0], whole.args.states[0]));
            const std::int64_t half = n / 64 * 32;
            for (const std::int64_t first : {std::int64_t{0}, half}) {
              const Shape size{first == 0 && half > 0 ? half : n - first};
              UpdateArgs args = parts.args;
              args.received = whole.args.received;
              args.weights = whole.args.weights;
              args.sum_received = true;
              args.encoded = whole.args.encoded;
              args.encoded.first = first;
              args.encoded.elements = n;
              args.x = args.x_out = parts.args.x.slice(first, size);
              args.gradient = parts.args.gradient.slice(first, size);
              for (Tensor& state : args.states) state = state.slice(first, size);
              args.decay = parts.args.decay.slice(first / 32, Shape{size[0] / 32});
              backend->update({*rule, args});
              if (half == 0) break;
            }
            CHECK(same(before.args.x_out, parts.args.x_out));
          }
        }
      }
    }
  }
}

TEST_CASE(
    "kernels/update: messages of another size, without a weight each, or of other numbers are "
    "refused") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const auto refuses = [&](auto&& change) {
    OneUpdate update(*backend, 64, DType::kFloat32, false);
    const Tensor message(*backend, Shape{message_bytes(Code::kInt8, DType::kFloat32, 64, 32)},
                         DType::kUInt8);
    backend->encode(
        {.x = update.args.gradient, .message = message, .code = Code::kInt8, .block = 32});
    update.args.received = {message};
    update.args.weights = {1.0};
    update.args.sum_received = true;
    update.args.encoded = {.weights = {0.5}, .code = Code::kInt8, .block = 32};
    change(update.args);
    CHECK_THROWS_AS(backend->update({*adamw(), update.args}), Error);
  };
  refuses([](UpdateArgs& args) { args.encoded.block = 64; });
  refuses([](UpdateArgs& args) { args.encoded.weights = {0.5, 0.5}; });
  refuses([](UpdateArgs& args) { args.sum_received = false; });
  refuses([](UpdateArgs& args) { args.encoded.first = 32; });
  // The terms of a sum have one weight.
  refuses([](UpdateArgs& args) {
    args.encoded = {};
    args.received = {args.gradient, args.gradient};
    args.weights = {0.25, 0.25};
  });
}

TEST_CASE(
    "kernels/update: parameters written apart have the bits of an update in place, also where they "
    "go past the caches") {
  const auto rule = adamw();
  for (const int threads : {1, 3}) {
    const auto backend = open_backend(DeviceType::kCpu, threads);
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      for (const std::int64_t n : {64, 1'100'000}) {
        OneUpdate in_place(*backend, n / 32 * 32, dtype, false),
            apart(*backend, n / 32 * 32, dtype, true);
        const Tensor before = numbers(*backend, n / 32 * 32, dtype, 0.0),
                     received = numbers(*backend, n / 32 * 32, dtype, 3.0);
        for (OneUpdate* update : {&in_place, &apart}) {
          update->args.received = {received};
          update->args.weights = {0.5};
          update->args.self_weight = 0.5;
          update->args.low = Tensor(*backend, before.shape(), DType::kBFloat16);
          backend->update({*rule, update->args});
        }
        CHECK(same(in_place.args.x_out, apart.args.x_out));
        CHECK(same(in_place.args.low, apart.args.low));
        CHECK(same(apart.args.x, before));
      }
    }
  }
}
