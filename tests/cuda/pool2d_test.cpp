#include <doctest/doctest.h>

#include <array>
#include <limits>

#include "core/error.h"
#include "tests/cuda/compare.h"
#include "tests/cuda/support.h"

namespace starling::tests {
namespace {

struct Case {
  Shape image;
  Window2d window;
  Shape result() const { return {image[0], window.output(0, image[1]), window.output(1, image[2]), image[3]}; }
};

Window2d square(std::int64_t kernel, std::int64_t stride, std::int64_t padding, std::int64_t dilation = 1) {
  return {{kernel, kernel}, {stride, stride}, {padding, padding}, {dilation, dilation}, 1};
}

std::vector<Case> cases() {
  return {{{2, 8, 8, 16}, square(3, 2, 1)}, {{2, 7, 5, 3}, square(2, 2, 0)},   {{1, 9, 9, 5}, square(3, 1, 2, 2)},
          {{3, 6, 6, 8}, square(2, 2, 0)},  {{1, 1, 1, 1}, square(1, 1, 0)},   {{1, 5, 8, 24}, {{3, 2}, {1, 3}, {1, 0}, {2, 1}, 1}},
          {{1, 2, 3, 2}, square(3, 1, 2)},  {{2, 11, 4, 40}, square(3, 2, 1)}, {{1, 4, 4, 8}, square(2, 3, 0)}};
}

/// Small whole numbers with many ties, and some NaN.
Given with_ties(const Shape& shape, bool nan) {
  Given result = random_given(shape, 3, 3.0);
  for (double& v : result.numbers) v = static_cast<double>(static_cast<int>(v));
  if (nan) {
    for (std::size_t i = 5; i < result.numbers.size(); i += 29) result.numbers[i] = std::numeric_limits<double>::quiet_NaN();
  }
  return result;
}

std::vector<std::int32_t> indices_of(const Tensor& x) {
  std::vector<std::int32_t> result(static_cast<std::size_t>(x.elements()));
  x.backend().copy_to_host(x, result.data());
  return result;
}

}  // namespace

TEST_CASE("cuda/pool2d: maxima, their first places, and the gradient") {
  in_every_order([] {
    for (const Case& c : cases()) {
      CAPTURE(c.image.text());
      for (const bool nan : {false, true}) {
        std::vector<std::int32_t> places;  // the CPU's come first
        compare({.in = {with_ties(c.image, nan)},
                 .out = {zeros(c.result())},
                 .call =
                     [&](Backend& b, const auto& in, const auto& out) {
                       const Tensor index(b, c.result(), DType::kInt32);
                       b.pool2d_forward({Pooling::kMax, in[0], out[0], index, c.window});
                       if (&b == &plain_cpu()) {
                         places = indices_of(index);
                       } else {
                         CHECK(indices_of(index) == places);
                         const Tensor again(b, c.result(), in[0].dtype());
                         b.pool2d_forward({Pooling::kMax, in[0], again, Tensor(), c.window});
                         if (!nan) CHECK(numbers_of(again) == numbers_of(out[0]));
                       }
                     },
                 .agreement = Agreement::kBits});
        compare({.in = {random_given(c.result(), 4)},
                 .out = {random_given(c.image, 5)},
                 .call =
                     [&](Backend& b, const auto& in, const auto& out) {
                       b.pool2d_backward({Pooling::kMax, in[0], int_tensor(b, places, c.result()), out[0], c.window});
                     },
                 .agreement = Agreement::kBits});
      }
    }
  });
}

TEST_CASE("cuda/pool2d: averages over the whole window, and the gradient") {
  in_every_order([] {
    for (const Case& c : cases()) {
      CAPTURE(c.image.text());
      compare({.in = {random_given(c.image, 1)}, .out = {zeros(c.result())}, .call = [&](Backend& b, const auto& in, const auto& out) {
                 b.pool2d_forward({Pooling::kAverage, in[0], out[0], Tensor(), c.window});
               }});
      compare({.in = {random_given(c.result(), 2)},
               .out = {random_given(c.image, 3)},
               .call = [&](Backend& b, const auto& in, const auto& out) {
                 b.pool2d_backward({Pooling::kAverage, in[0], Tensor(), out[0], c.window});
               }});
    }
  });
}

TEST_CASE("cuda/pool2d: blurs, and their gradient") {
  in_every_order([] {
    for (const Case& c : cases()) {
      if (c.window.dilation != std::array<std::int64_t, 2>{1, 1}) continue;
      CAPTURE(c.image.text());
      compare({.in = {random_given(c.image, 1)},
               .out = {zeros(c.result())},
               .call =
                   [&](Backend& b, const auto& in, const auto& out) {
                     b.pool2d_forward({Pooling::kBlur, in[0], out[0], Tensor(), c.window});
                   },
               .agreement = Agreement::kClose});
      compare({.in = {random_given(c.result(), 2)},
               .out = {random_given(c.image, 3)},
               .call =
                   [&](Backend& b, const auto& in, const auto& out) {
                     b.pool2d_backward({Pooling::kBlur, in[0], Tensor(), out[0], c.window});
                   },
               .agreement = Agreement::kClose});
    }
  });
  const auto tensor = [](const Shape& shape) { return Tensor(gpu(), shape, DType::kFloat32); };
  const Tensor image = tensor({1, 9, 9, 4});
  CHECK_THROWS_AS(gpu().pool2d_forward({Pooling::kBlur, image, tensor({1, 2, 2, 4}), Tensor(), square(8, 1, 0)}), Error);
  CHECK_THROWS_AS(gpu().pool2d_forward({Pooling::kBlur, image, tensor({1, 5, 5, 4}), Tensor(), square(3, 1, 0, 2)}), Error);
}

TEST_CASE("cuda/pool2d: global averages and their gradient") {
  in_every_order([] {
    for (const Shape& shape : {Shape{3, 4, 4, 64}, Shape{2, 7, 1, 5}, Shape{1, 1, 1, 1}, Shape{2, 7, 7, 24}, Shape{40, 2, 3, 8},
                               Shape{3, 8, 8, 40}, Shape{2, 7, 7, 300}}) {
      CAPTURE(shape.text());
      const Shape small{shape[0], shape[3]};
      compare({.in = {random_given(shape, 1)},
               .out = {zeros(small)},
               .call =
                   [](Backend& b, const auto& in, const auto& out) {
                     b.global_avg_pool_forward({in[0], out[0]});
                   },
               .agreement = Agreement::kClose});
      compare({.in = {random_given(small, 2)}, .out = {random_given(shape, 3)}, .call = [](Backend& b, const auto& in, const auto& out) {
                 b.global_avg_pool_backward({in[0], out[0]});
               }});
    }
  });
}

TEST_CASE("cuda/pool2d: shapes that do not belong together are refused") {
  const auto tensor = [](const Shape& shape) { return Tensor(gpu(), shape, DType::kFloat32); };
  const Tensor image = tensor({1, 4, 4, 2}), half = tensor({1, 2, 2, 2});
  CHECK_THROWS_AS(gpu().pool2d_forward({Pooling::kMax, image, image, Tensor(), square(2, 2, 0)}), Error);
  CHECK_THROWS_AS(gpu().pool2d_forward({Pooling::kMax, image, Tensor(), Tensor(), square(2, 2, 0)}), Error);
  CHECK_THROWS_AS(gpu().pool2d_forward({Pooling::kMax, image, half, Tensor(), square(2, 0, 0)}), Error);
  CHECK_THROWS_AS(gpu().pool2d_forward({Pooling::kMax, image, half, half, square(2, 2, 0)}), Error);
  CHECK_THROWS_AS(gpu().pool2d_forward({Pooling::kMax, image, tensor({1, 2, 2, 4}), Tensor(), square(2, 2, 0)}), Error);
  CHECK_THROWS_AS(gpu().pool2d_backward({Pooling::kMax, half, Tensor(), image, square(2, 2, 0)}), Error);
  CHECK_THROWS_AS(gpu().global_avg_pool_forward({image, half}), Error);
  CHECK_THROWS_AS(gpu().global_avg_pool_backward({tensor({1, 3}), image}), Error);
}

}  // namespace starling::tests
