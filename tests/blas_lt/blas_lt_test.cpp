#include <cublasLt.h>
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "kernels/cuda/libraries/libraries.h"
#include "kernels/open_backend.h"
#include "tests/blas_lt/fake_cublaslt.h"

using namespace starling;
using namespace starling::tests;

namespace {

struct Workspaces final : cuda::WorkspaceSource {
  explicit Workspaces(Backend& memory) : backend(memory) {}
  std::shared_ptr<Storage> workspace(std::size_t bytes) override {
    ++taken;
    return backend.allocate(bytes);
  }
  Backend& backend;
  int taken = 0;
};

/// Small integers, exact in every type and in every order of summing. `offset`: elements that it
/// starts off an aligned address.
Tensor matrix(Backend& backend, std::int64_t rows, std::int64_t columns, DType dtype, int salt,
              std::int64_t offset = 0) {
  const Tensor whole(backend, Shape{rows * columns + offset}, dtype),
      numbers(backend, Shape{rows, columns}, DType::kFloat64);
  for (std::int64_t i = 0; i < numbers.elements(); ++i)
    numbers.data<double>()[i] = static_cast<double>((i * 7 + i / 5 + salt) % 5 - 2);
  const Tensor x = whole.slice(offset, numbers.shape());
  backend.cast({numbers, x});
  return x;
}

struct Fixture {
  std::unique_ptr<Backend> cpu = open_backend(DeviceType::kCpu, 1);
  Workspaces workspaces{*cpu};
  std::unique_ptr<cuda::Blas> blas = cuda::open_blas({}, workspaces);

  /// The same numbers in fp64.
  Tensor wide(const Tensor& x) const {
    if (!x) return {};
    const Tensor numbers(*cpu, x.shape(), DType::kFloat64);
    cpu->cast({x, numbers});
    return numbers;
  }
  View wide(const View& x) const { return x.of(wide(x.tensor())); }

  /// The product by cuBLASLt's rules, if it takes it.
  bool multiply(const Matmul& args) {
    const std::vector<Matmul> parts = batches_of(args);
    REQUIRE(parts.size() == 1);
    return blas->matmul(parts.front(), nullptr);
  }

  /// The same against one summed here.
  bool check(const Matmul& args) {
    std::vector<double> expected;
    const Shape& shape = args.c.shape();
    const std::int64_t m = shape[shape.rank() - 2], n = shape.back(), k = args.a.shape().back();
    const auto element = [](const View& x, std::int64_t batch, std::int64_t i, std::int64_t j) {
      const int rank = x.shape().rank();
      const std::int64_t next = rank > 2 && x.shape()[0] > 1 ? x.stride(0) : 0;
      return x.tensor().data<double>()[x.first() + batch * next + i * x.stride(rank - 2) +
                                       j * x.stride(rank - 1)];
    };
    const View a = wide(args.a), b = wide(args.b), c = wide(args.c);
    const Tensor bias = wide(args.bias);
    for (std::int64_t row = 0; row < shape.elements() / n; ++row) {
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = args.accumulate ? element(c, row / m, row % m, j) : 0.0;
        for (std::int64_t l = 0; l < k; ++l)
          sum += element(a, row / m, row % m, l) * element(b, row / m, l, j);
        if (bias) sum += bias.data<double>()[j];
        if (args.relu && sum < 0.0) sum = 0.0;
        expected.push_back(sum);
      }
    }
    if (!multiply(args)) return false;
    const View found = wide(args.c);
    for (std::int64_t row = 0; row < shape.elements() / n; ++row)
      for (std::int64_t j = 0; j < n; ++j)
        REQUIRE(element(found, row / m, row % m, j) ==
                expected[static_cast<std::size_t>(row * n + j)]);
    return true;
  }
};

}  // namespace

TEST_CASE("cuda/blas_lt: batches, in which products share a factor or have their own") {
  Fixture f;
  for (int bits = 0; bits < 16; ++bits) {
    const bool ta = bits & 1, tb = bits & 2, share_a = bits & 4, share_b = bits & 8;
    CAPTURE(bits);
    const std::int64_t batch = 3, m = 4, n = 5, k = 6;
    const auto matrices = [&](bool share, std::int64_t rows, std::int64_t columns, int seed) {
      const std::int64_t count = share ? 1 : batch;
      return matrix(*f.cpu, count * rows, columns, DType::kFloat32, seed)
          .reshaped({count, rows, columns});
    };
    const View a = matrices(share_a, ta ? k : m, ta ? m : k, 1),
               b = matrices(share_b, tb ? n : k, tb ? k : n, 2);
    const Matmul args{
        .a = ta ? transposed(a) : a, .b = tb ? transposed(b) : b, .c = matrices(false, m, n, 3)};
    CHECK(f.check(args));
  }
}

TEST_CASE("cuda/blas_lt: transposes, bias and accumulation of row-major matrices, in every type") {
  Fixture f;
  const DType types[][2] = {
      {DType::kFloat32, DType::kFloat32},   {DType::kFloat64, DType::kFloat64},
      {DType::kBFloat16, DType::kBFloat16}, {DType::kBFloat16, DType::kFloat32},
      {DType::kFloat16, DType::kFloat16},   {DType::kFloat16, DType::kFloat32}};
  for (const auto& [input, output] : types) {
    for (int bits = 0; bits < 16; ++bits) {
      const bool ta = bits & 1, tb = bits & 2, accumulate = bits & 4, biased = bits & 8;
      CAPTURE(name_of(input));
      CAPTURE(name_of(output));
      CAPTURE(bits);
      const std::int64_t m = 5, n = 3, k = 7;
      Matmul args{
          .a = ta ? transposed(matrix(*f.cpu, k, m, input, 1)) : matrix(*f.cpu, m, k, input, 1),
          .b = tb ? transposed(matrix(*f.cpu, n, k, input, 2)) : matrix(*f.cpu, k, n, input, 2),
          .c = matrix(*f.cpu, m, n, output, 3),
          .accumulate = accumulate};
      if (biased) args.bias = matrix(*f.cpu, 1, n, output, 4).reshaped({n});
      CHECK(f.check(args));
      // Partial sums in bf16 or fp16 would round and overflow.
      const bool low = output == DType::kBFloat16 || output == DType::kFloat16;
      CHECK(fake_blas().reductions ==
            (low ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_MASK));
    }
  }
}

TEST_CASE(
    "cuda/blas_lt: ReLU in the epilogue where it has been seen to keep NaN, one look a problem") {
  Fixture f;
  fake_blas() = {};
  const auto make = [&](DType input, DType output, bool biased, std::int64_t m) {
    Matmul args{.a = matrix(*f.cpu, m, 7, input, 1),
                .b = matrix(*f.cpu, 7, 3, input, 2),
                .c = matrix(*f.cpu, m, 3, output, 3),
                .relu = true};
    if (biased) args.bias = matrix(*f.cpu, 1, 3, output, 4).reshaped({3});
    return args;
  };
  const DType types[][2] = {{DType::kFloat32, DType::kFloat32},
                            {DType::kBFloat16, DType::kBFloat16},
                            {DType::kBFloat16, DType::kFloat32},
                            {DType::kFloat16, DType::kFloat16},
                            {DType::kFloat16, DType::kFloat32}};
  int problems = 0;
  for (const bool drops : {false, true}) {
    fake_blas().relu_drops_nan = drops;
    for (const auto& [input, output] : types) {
      for (const bool biased : {false, true}) {
        CAPTURE(name_of(input));
        CAPTURE(name_of(output));
        CAPTURE(biased);
        // A problem of its own for each library: what one has shown is remembered.
        const Matmul args = make(input, output, biased, drops ? 6 : 5);
        CHECK(f.check(args) == !drops);
        CHECK(fake_blas().probes == ++problems);
        CHECK(fake_blas().host_waits == problems);
        f.cpu->fill(args.a.tensor().slice(7, Shape{1}), NAN);  // in the second row
        CHECK(f.multiply(args) == !drops);
        const Tensor product = f.wide(args.c.tensor());
        if (!drops) CHECK(std::isnan(product.data<double>()[3]));
        if (!drops) CHECK(!std::isnan(product.data<double>()[0]));
        CHECK(fake_blas().probes == problems);
        CHECK(fake_blas().host_waits == problems);
      }
    }
  }
  // left to the backend, and not looked at
  CHECK(!f.multiply(make(DType::kFloat64, DType::kFloat64, true, 5)));
  CHECK(fake_blas().probes == problems);
  fake_blas().relu_drops_nan = false;
}

TEST_CASE("cuda/blas_lt: a bias's gradient with the weight's, unless both are added") {
  Fixture f;
  for (const DType input : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
    CAPTURE(name_of(input));
    const DType output = input == DType::kFloat64 ? input : DType::kFloat32;
    const std::int64_t m = 5, n = 3, k = 7;
    const Tensor dy = matrix(*f.cpu, k, m, input, 1), sums(*f.cpu, Shape{m}, output);
    Matmul args{.a = transposed(View(dy)),
                .b = matrix(*f.cpu, k, n, input, 2),
                .c = matrix(*f.cpu, m, n, output, 3),
                .row_sums = sums};
    f.cpu->fill(sums, 100.0);
    CHECK(f.check(args) == (input != DType::kFloat64));
    const Tensor found = f.wide(sums), of = f.wide(dy);
    for (std::int64_t i = 0; i < m; ++i) {
      double expected = 0.0;
      for (std::int64_t l = 0; l < k; ++l) expected += of.data<double>()[l * m + i];
      CHECK(found.data<double>()[i] == (input == DType::kFloat64 ? 100.0 : expected));
    }
    args.accumulate = true;
    CHECK(!f.multiply(args));
  }
}

TEST_CASE(
    "cuda/blas_lt: GELU and its derivative in low precision, where the library has it and lines "
    "are whole") {
  Fixture f;
  fake_blas() = {};
  const auto gelu = [](double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  };
  const auto close = [](double found, double expected) {
    return std::abs(found - expected) <= 0.01 * std::abs(expected) + 1e-3;
  };
  const std::int64_t m = 5, k = 6;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
    CAPTURE(name_of(dtype));
    for (const std::int64_t n : {8, 12}) {
      for (const bool biased : {false, true}) {
        const Tensor c = matrix(*f.cpu, m, n, dtype, 0), before(*f.cpu, c.shape(), dtype);
        Matmul args{.a = matrix(*f.cpu, m, k, dtype, 1),
                    .b = matrix(*f.cpu, k, n, dtype, 2),
                    .bias = biased ? matrix(*f.cpu, 1, n, dtype, 4).reshaped({n}) : Tensor(),
                    .c = c};
        REQUIRE(f.multiply(args));  // what GELU takes
        const Tensor product = f.wide(c);
        args.before_gelu = before;
        const bool taken = is_low_precision(dtype) && n % 8 == 0;
        CHECK(f.multiply(args) == taken);
        const Tensor found = f.wide(c), kept = f.wide(before);
        for (std::int64_t i = 0; taken && i < c.elements(); ++i) {
          CHECK(kept.data<double>()[i] == product.data<double>()[i]);
          CHECK(close(found.data<double>()[i], gelu(product.data<double>()[i])));
        }
        if (biased) continue;
        args.before_gelu = {};
        args.gelu_input = matrix(*f.cpu, m, n, dtype, 3);
        CHECK(f.multiply(args) == taken);
        const Tensor through = f.wide(c), at = f.wide(args.gelu_input);
        for (std::int64_t i = 0; taken && i < c.elements(); ++i) {
          const double x = at.data<double>()[i], slope = (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5;
          CHECK(close(through.data<double>()[i], product.data<double>()[i] * slope));
        }
      }
    }
  }
  CHECK(fake_blas().gelus == 2 * (2 * 2 + 1));  // each GELU twice: once on NaN
  const auto product = [&](std::int64_t rows) {
    const Tensor c = matrix(*f.cpu, rows, 8, DType::kBFloat16, 0);
    return f.multiply({.a = matrix(*f.cpu, rows, k, DType::kBFloat16, 1),
                       .b = matrix(*f.cpu, k, 8, DType::kBFloat16, 2),
                       .c = c,
                       .before_gelu = Tensor(*f.cpu, c.shape(), DType::kBFloat16)});
  };
  fake_blas().without_gelu = true;
  CHECK(!product(3));
  fake_blas().without_gelu = false;
  fake_blas().relu_drops_nan = true;
  CHECK(!product(4));
  fake_blas() = {};
}

TEST_CASE("cuda/blas_lt: an fp32 bias of a low-precision product is left to the backend") {
  Fixture f;
  Matmul args{.a = matrix(*f.cpu, 4, 8, DType::kBFloat16, 1),
              .b = matrix(*f.cpu, 8, 4, DType::kBFloat16, 2),
              .c = matrix(*f.cpu, 4, 4, DType::kBFloat16, 3)};
  args.bias = matrix(*f.cpu, 1, 4, DType::kFloat32, 4).reshaped({4});
  CHECK(!f.multiply(args));
  args.c = matrix(*f.cpu, 4, 4, DType::kFloat32, 3);
  CHECK(f.check(args));
}

TEST_CASE("cuda/blas_lt: any address, told as it is") {
  Fixture f;
  for (std::int64_t offset = 0; offset < 4; ++offset) {
    CHECK(f.check({.a = matrix(*f.cpu, 4, 6, DType::kBFloat16, 1, offset),
                   .b = matrix(*f.cpu, 6, 5, DType::kBFloat16, 2, 2 * offset),
                   .bias = matrix(*f.cpu, 1, 5, DType::kFloat32, 5, offset).reshaped({5}),
                   .c = matrix(*f.cpu, 4, 5, DType::kFloat32, 3, 3 * offset)}));
  }
}

TEST_CASE(
    "cuda/blas_lt: workspace where an algorithm wants it, 32 MiB at most, and one question a "
    "problem") {
  Fixture f;
  fake_blas() = {};
  fake_blas().handles = 1;
  const auto product = [&](std::int64_t k) {
    return f.check({.a = matrix(*f.cpu, 3, k, DType::kFloat32, 1),
                    .b = matrix(*f.cpu, k, 2, DType::kFloat32, 2),
                    .c = matrix(*f.cpu, 3, 2, DType::kFloat32, 3)});
  };
  CHECK(product(8));
  CHECK(f.workspaces.taken == 0);
  CHECK(fake_blas().workspace_limit == std::size_t{32} << 20);
  for (int i = 0; i < 3; ++i) CHECK(product(kFakeWorkspaceDepth + 8));
  CHECK(f.workspaces.taken == 3);
  CHECK(fake_blas().products == 4);
  CHECK(fake_blas().heuristics == 2);
  CHECK(!fake_blas().tf32);
  f.blas.reset();
  CHECK(fake_blas().handles == 0);
}

TEST_CASE("cuda/blas_lt: TF32 for fp32 alone") {
  Fixture f;
  cuda::LibrarySettings settings;
  settings.tf32 = true;
  f.blas = cuda::open_blas(settings, f.workspaces);
  const auto product = [&](DType dtype) {
    return f.check({.a = matrix(*f.cpu, 4, 4, dtype, 1),
                    .b = matrix(*f.cpu, 4, 4, dtype, 2),
                    .c = matrix(*f.cpu, 4, 4, dtype, 3)});
  };
  CHECK(product(DType::kFloat32));
  CHECK(fake_blas().tf32);
  CHECK(product(DType::kBFloat16));
  CHECK(!fake_blas().tf32);
  CHECK(product(DType::kFloat64));
  CHECK(f.blas->version() == "cuBLASLt 13.1.0");
}

TEST_CASE("cuda/blas_lt: heads of one tensor, which have lines and batches of their own") {
  Fixture f;
  const std::int64_t length = 5, count = 3, depth = 4, width = count * depth;
  const Tensor x = matrix(*f.cpu, length, 3 * width, DType::kFloat32, 1);
  const auto heads = [&](const Tensor& from, std::int64_t first) {
    return View(from).slice(1, first, width).split(1, depth).transposed(0, 1);
  };
  const Tensor scores =
      matrix(*f.cpu, count * length, length, DType::kFloat32, 2).reshaped({count, length, length});
  CHECK(f.check({.a = heads(x, 0), .b = transposed(heads(x, width)), .c = scores}));
  const Tensor y = matrix(*f.cpu, length, 2 * width, DType::kFloat32, 3);
  CHECK(f.check({.a = scores, .b = heads(x, 2 * width), .c = heads(y, width)}));
  CHECK(f.check({.a = transposed(scores), .b = heads(x, 0), .c = heads(y, 0), .accumulate = true}));
}

TEST_CASE("cuda/blas_lt: empty products") {
  Fixture f;
  const auto matrices = [&](std::int64_t rows, std::int64_t columns) {
    return matrix(*f.cpu, rows, columns, DType::kFloat32, 1).reshaped({1, rows, columns});
  };
  CHECK(f.blas->matmul({.a = matrices(0, 4), .b = matrices(4, 3), .c = matrices(0, 3)}, nullptr));
  CHECK(!f.blas->matmul({.a = matrices(2, 0), .b = matrices(0, 3), .c = matrices(2, 3)}, nullptr));
}
