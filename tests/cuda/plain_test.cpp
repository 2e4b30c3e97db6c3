#include "kernels/cuda/operations/plain.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "core/error.h"
#include "tests/cuda/compare.h"
#include "tests/cuda/support.h"
#include "tests/operations/operation_table.h"

// The backend's own products, called past the libraries.
namespace starling::tests {
namespace {

using Index = std::int64_t;

double tolerance_of(DType dtype) {
  return dtype == DType::kFloat64 ? 1e-11 : dtype == DType::kFloat32 ? 2e-5 : dtype == DType::kFloat16 ? 1e-3 : 8e-3;
}

/// Random numbers that `dtype` holds, for the GPU and as fp64 for the CPU.
struct Pair {
  Tensor here, there;
};
Pair pair_of(const Shape& shape, std::uint64_t seed, DType dtype, Index offset) {
  const Numbers numbers = numbers_of(placed(plain_cpu(), random_given(shape, seed), dtype, 0));
  return {placed(gpu(), {numbers, shape}, dtype, offset), placed(plain_cpu(), {numbers, shape}, DType::kFloat64, 0)};
}

struct Convolution {
  Shape x;
  Index filters;
  Window2d window;
};

const Convolution kConvolutions[] = {
    {{2, 5, 7, 3}, 5, {{3, 3}, {1, 1}, {1, 1}}},
    {{1, 9, 6, 17}, 70, {{1, 1}}},
    {{2, 9, 8, 6}, 9, {{3, 2}, {2, 3}, {1, 0}, {1, 2}, 3}},
    {{1, 11, 5, 8}, 8, {{5, 3}, {3, 1}, {4, 2}, {2, 1}, 8}},
    {{2, 20, 20, 4}, 6, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 2}},  // long sums for the weights: split
    {{1, 3, 3, 66}, 65, {{3, 3}, {2, 2}, {1, 1}}},             // long sums forward, and more than one tile across
};

}  // namespace

TEST_CASE("cuda/plain: convolutions equal the CPU's fp64 in every dtype") {
  for (const DType dtype : kFloatingTypes) {
    CAPTURE(name_of(dtype));
    const DType parameters = parameter_dtype(dtype);
    for (const Convolution& c : kConvolutions) {
      for (const Index offset : {0, 1}) {
        CAPTURE(c.x.text());
        CAPTURE(offset);
        const Window2d& w = c.window;
        const Shape y_shape{c.x[0], w.output(0, c.x[1]), w.output(1, c.x[2]), c.filters};
        const Shape w_shape{c.filters, w.kernel[0], w.kernel[1], c.x[3] / w.groups};
        const Pair x = pair_of(c.x, 1, dtype, offset), weight = pair_of(w_shape, 2, dtype, offset), y = pair_of(y_shape, 3, dtype, offset);
        const Pair bias = pair_of({c.filters}, 4, parameters, offset), dx = pair_of(c.x, 5, dtype, offset);
        for (const bool biased : {false, true}) {
          const Tensor y_here = placed(gpu(), zeros(y_shape), dtype, offset), y_there(plain_cpu(), y_shape, DType::kFloat64);
          cuda::plain_conv2d_forward(gpu(),
                                     {.x = x.here, .weight = weight.here, .bias = biased ? bias.here : Tensor(), .y = y_here, .window = w});
          plain_cpu().conv2d_forward(
              {.x = x.there, .weight = weight.there, .bias = biased ? bias.there : Tensor(), .y = y_there, .window = w});
          CHECK(distance(numbers_of(y_here), numbers_of(y_there)) < tolerance_of(dtype));
        }
        cuda::plain_conv2d_backward_data(gpu(), {.dy = y.here, .weight = weight.here, .dx = dx.here, .window = w});
        plain_cpu().conv2d_backward_data({.dy = y.there, .weight = weight.there, .dx = dx.there, .window = w});
        CHECK(distance(numbers_of(dx.here), numbers_of(dx.there)) < tolerance_of(dtype));
        for (const bool accumulate : {false, true}) {
          const Pair dweight = pair_of(w_shape, 6, parameters, offset);
          cuda::plain_conv2d_backward_weights(gpu(),
                                              {.x = x.here, .dy = y.here, .dweight = dweight.here, .window = w, .accumulate = accumulate});
          plain_cpu().conv2d_backward_weights(
              {.x = x.there, .dy = y.there, .dweight = dweight.there, .window = w, .accumulate = accumulate});
          CHECK(distance(numbers_of(dweight.here), numbers_of(dweight.there)) < tolerance_of(parameters));
        }
      }
    }
  }
}

TEST_CASE("cuda/plain: matrix products equal the CPU's fp64 in every dtype, transposed, with bias and accumulated") {
  struct Size {
    Index m, n, k;
  };
  for (const DType dtype : kFloatingTypes) {
    CAPTURE(name_of(dtype));
    for (const Size& s : {Size{5, 7, 3}, Size{65, 130, 17}, Size{1, 1, 1}, Size{9, 64, 1100}, Size{3, 4, 0}}) {
      CAPTURE(fmt::format("{}x{}x{}", s.m, s.n, s.k));
      for (int options = 0; options < 8; ++options) {
        CAPTURE(options);
        const bool ta = options & 1, tb = options & 2, extra = options & 4;
        const Index offset = options % 3 == 0;
        const Pair a = pair_of(ta ? Shape{s.k, s.m} : Shape{s.m, s.k}, 1, dtype, offset);
        const Pair b = pair_of(tb ? Shape{s.n, s.k} : Shape{s.k, s.n}, 2, dtype, offset);
        const Pair bias = pair_of({s.n}, 3, parameter_dtype(dtype), offset);
        for (const DType out : {dtype, parameter_dtype(dtype)}) {
          const Pair c = pair_of({s.m, s.n}, 4, out, offset);
          Matmul args{.a = a.here, .b = b.here, .c = c.here, .transpose_a = ta, .transpose_b = tb, .accumulate = extra};
          if (options != 4) args.bias = bias.here;
          cuda::plain_matmul(gpu(), args);
          args.a = a.there;
          args.b = b.there;
          args.c = c.there;
          if (options != 4) args.bias = bias.there;
          plain_cpu().matmul(args);
          CHECK(distance(numbers_of(c.here), numbers_of(c.there)) < tolerance_of(out));
        }
      }
    }
  }
}

TEST_CASE("cuda/plain: every order of threads gives the same bits, of split sums too") {
  const Pair x = pair_of({2, 20, 20, 4}, 1, DType::kFloat32, 0), dy = pair_of({2, 20, 20, 6}, 2, DType::kFloat32, 0);
  const Tensor dweight(gpu(), {6, 3, 3, 4}, DType::kFloat32), c(gpu(), {4, 6}, DType::kFloat32);
  Numbers first, first_c;
  in_every_order([&] {
    cuda::plain_conv2d_backward_weights(gpu(), {.x = x.here, .dy = dy.here, .dweight = dweight, .window = {{3, 3}, {1, 1}, {1, 1}}});
    cuda::plain_matmul(gpu(), {.a = x.here.reshaped({800, 4}), .b = dy.here.reshaped({800, 6}), .c = c, .transpose_a = true});
    if (first.empty()) first = numbers_of(dweight);
    if (first_c.empty()) first_c = numbers_of(c);
    CHECK(numbers_of(dweight) == first);
    CHECK(numbers_of(c) == first_c);
  });
}

TEST_CASE("cuda/plain: tensors that do not belong together are one clear error") {
  const Tensor x(gpu(), {1, 5, 5, 4}, DType::kFloat32), y(gpu(), {1, 5, 5, 4}, DType::kFloat32),
      weight(gpu(), {4, 3, 3, 4}, DType::kFloat32);
  const Window2d same{{3, 3}, {1, 1}, {1, 1}};
  CHECK_THROWS_AS(cuda::plain_conv2d_forward(gpu(), {.x = x, .weight = weight, .y = y, .window = {{3, 3}}}), Error);
  CHECK_THROWS_AS(cuda::plain_conv2d_forward(gpu(), {.x = x, .weight = x, .y = y, .window = same}), Error);
  CHECK_THROWS_AS(cuda::plain_conv2d_forward(gpu(), {.x = x, .weight = weight, .y = y, .window = {{3, 3}, {0, 1}, {1, 1}}}), Error);
  CHECK_THROWS_AS(cuda::plain_conv2d_forward(gpu(), {.x = x, .weight = weight, .y = y, .window = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 3}}),
                  Error);
  CHECK_THROWS_AS(cuda::plain_conv2d_backward_data(gpu(), {.dy = y, .weight = weight, .dx = Tensor(), .window = same}), Error);
  const Tensor a(gpu(), {2, 3}, DType::kFloat32);
  CHECK_THROWS_AS(cuda::plain_matmul(gpu(), {.a = a, .b = a, .c = a}), Error);
  CHECK_THROWS_AS(cuda::plain_matmul(gpu(), {.a = a, .b = a, .c = Tensor(gpu(), {2, 2}, DType::kFloat64), .transpose_b = true}), Error);
}

}  // namespace starling::tests
