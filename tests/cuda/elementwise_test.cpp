#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "tests/cuda/compare.h"
#include "tests/cuda/support.h"

namespace starling::tests {
namespace {

constexpr std::int64_t kSizes[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 100, 1023, 4101};
constexpr Activation kActivations[] = {Activation::kNone, Activation::kRelu, Activation::kGelu, Activation::kSilu, Activation::kRelu6};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

/// Random numbers with a NaN, infinities and zeros among them where there is room.
Given with_specials(std::int64_t n, std::uint64_t seed, double scale) {
  Given result = random_given({n}, seed, scale);
  if (n >= 15) {
    result.numbers[3] = kNan;
    result.numbers[5] = kInfinity;
    result.numbers[7] = -kInfinity;
    result.numbers[11] = 0.0;
    result.numbers[12] = -0.0;
  }
  return result;
}

}  // namespace

TEST_CASE("cuda/elementwise: activations and their gradients") {
  in_every_order([] {
    for (const std::int64_t n : kSizes) {
      CAPTURE(n);
      for (const Activation kind : kActivations) {
        CAPTURE(static_cast<int>(kind));
        compare({.in = {with_specials(n, 1, 6.0)}, .out = {zeros({n})}, .call = [&](Backend& b, const auto& in, const auto& out) {
                   b.activation_forward({kind, in[0], out[0]});
                 }});
        compare({.in = {with_specials(n, 2, 6.0), random_given({n}, 3)},
                 .out = {zeros({n})},
                 .call = [&](Backend& b, const auto& in, const auto& out) {
                   b.activation_backward({kind, in[0], in[1], out[0]});
                 }});
        // dx may be dy.
        compare(
            {.in = {random_given({n}, 4, 6.0)}, .out = {random_given({n}, 5)}, .call = [&](Backend& b, const auto& in, const auto& out) {
               b.activation_backward({kind, in[0], out[0], out[0]});
             }});
      }
      compare({.out = {with_specials(n, 6, 1.0)},
               .call =
                   [&](Backend& b, const auto&, const auto& out) {
                     b.activation_forward({Activation::kRelu, out[0], out[0]});
                   },
               .agreement = Agreement::kBits});
    }
  });
}

TEST_CASE("cuda/elementwise: sums") {
  in_every_order([] {
    for (const std::int64_t n : kSizes) {
      CAPTURE(n);
      compare({.in = {random_given({n}, 1), with_specials(n, 2, 3.0)},
               .out = {zeros({n})},
               .call =
                   [](Backend& b, const auto& in, const auto& out) {
                     b.add({in[0], in[1], out[0]});
                   },
               .agreement = Agreement::kBits});
      compare({.in = {random_given({n}, 1)},
               .out = {random_given({n}, 2)},
               .call =
                   [](Backend& b, const auto& in, const auto& out) {
                     b.add({out[0], in[0], out[0]});
                   },
               .agreement = Agreement::kBits});
      compare({.in = {random_given({n}, 1)},
               .out = {random_given({n}, 2)},
               .call =
                   [](Backend& b, const auto& in, const auto& out) {
                     b.add({in[0], out[0], out[0]});
                   },
               .agreement = Agreement::kBits});
    }
  });
}

TEST_CASE("cuda/elementwise: weighted sums of up to 8 terms") {
  in_every_order([] {
    for (const std::int64_t n : {1, 9, 31, 2051}) {
      CAPTURE(n);
      for (int terms = 0; terms <= 8; ++terms) {
        CAPTURE(terms);
        for (const bool accumulate : {false, true}) {
          std::vector<Given> in;
          for (int k = 0; k < terms; ++k) in.push_back(random_given({n}, 10 + static_cast<std::uint64_t>(k)));
          compare({.in = in, .out = {random_given({n}, 9)}, .call = [&](Backend& b, const auto& from, const auto& out) {
                     WeightedSum args{.terms = terms, .out = out[0], .accumulate = accumulate};
                     for (std::size_t k = 0; k < from.size(); ++k) {
                       args.in[k] = from[k];
                       args.weight[k] = 0.3 * static_cast<double>(k) - 1.0;
                     }
                     b.weighted_sum(args);
                   }});
        }
      }
    }
  });
}

TEST_CASE("cuda/elementwise: dropout keeps what the CPU keeps") {
  in_every_order([] {
    for (const std::int64_t n : kSizes) {
      CAPTURE(n);
      for (const double p : {0.0, 0.3, 1.0}) {
        CAPTURE(p);
        compare({.in = {random_given({n}, 1)},
                 .out = {zeros({n})},
                 .call = [&](Backend& b, const auto& in,
                             const auto& out) { b.dropout({.x = in[0], .y = out[0], .p = p, .key = 0x123456789abcull, .counter = 77}); },
                 .agreement = Agreement::kBits});
      }
      compare({.out = {random_given({n}, 2)},
               .call = [](Backend& b, const auto&, const auto& out) { b.dropout({.x = out[0], .y = out[0], .p = 0.5, .key = 5}); },
               .agreement = Agreement::kBits});
    }
  });
}

TEST_CASE("cuda/elementwise: casts give the CPU's bits") {
  in_every_order([] {
    for (const std::int64_t n : kSizes) {
      CAPTURE(n);
      Given given = with_specials(n, 3, 70000.0);  // past fp16's largest number
      for (std::size_t i = 1; i < given.numbers.size(); i += 4) given.numbers[i] *= std::pow(2.0, -1.0 * static_cast<double>(i % 110));
      for (const DType from : kFloatingTypes) {
        for (const DType to : kFloatingTypes) {
          CAPTURE(name_of(from));
          CAPTURE(name_of(to));
          for (const std::int64_t offset : {0, 1, 2}) {
            Tensor y(plain_cpu(), {n}, to);
            plain_cpu().cast({placed(plain_cpu(), given, from, 0), y});
            const Tensor found = placed(gpu(), zeros({n}), to, offset);
            gpu().cast({placed(gpu(), given, from, offset == 2 ? 3 : offset), found});
            const auto a = numbers_of(found), b = numbers_of(y);
            for (std::size_t i = 0; i < a.size(); ++i) {
              const bool equal = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
              if (!equal) CAPTURE(i);
              CHECK(equal);
            }
          }
        }
      }
      std::vector<std::uint8_t> bytes(static_cast<std::size_t>(n));
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 7);
      for (const DType to : kFloatingTypes) {
        Tensor x(gpu(), {n}, DType::kUInt8), y(gpu(), {n}, to);
        gpu().copy_from_host(bytes.data(), x);
        gpu().cast({x, y});
        CHECK(numbers_of(y) == std::vector<double>(bytes.begin(), bytes.end()));
      }
    }
  });
}

TEST_CASE("cuda/elementwise: what does not belong together is refused") {
  const Tensor four(gpu(), {4}, DType::kFloat32), five(gpu(), {5}, DType::kFloat32), low(gpu(), {4}, DType::kFloat16);
  const Tensor whole(gpu(), {4}, DType::kInt32);
  CHECK_THROWS_AS(gpu().add({four, five, four}), Error);
  CHECK_THROWS_AS(gpu().add({four, low, four}), Error);
  CHECK_THROWS_AS(gpu().add({whole, whole, whole}), Error);
  CHECK_THROWS_AS(gpu().add({Tensor(), four, four}), Error);
  CHECK_THROWS_AS(gpu().activation_forward({Activation::kRelu, four, five}), Error);
  CHECK_THROWS_AS(gpu().activation_backward({Activation::kRelu, four, five, four}), Error);
  CHECK_THROWS_AS(gpu().dropout({.x = four, .y = four, .p = 1.5}), Error);
  CHECK_THROWS_AS(gpu().dropout({.x = four, .y = five, .p = 0.5}), Error);
  CHECK_THROWS_AS(gpu().cast({four, five}), Error);
  CHECK_THROWS_AS(gpu().cast({four, whole}), Error);
  CHECK_THROWS_AS(gpu().cast({whole, four}), Error);
  CHECK_THROWS_AS(gpu().weighted_sum({.terms = 9, .out = four}), Error);
  CHECK_THROWS_AS(gpu().weighted_sum({.in = {five}, .terms = 1, .out = four}), Error);
}

}  // namespace starling::tests
