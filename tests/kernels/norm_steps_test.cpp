#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/operations/operation_table.h"

// A batch norm in steps on the CPU, and the convolutions and products that carry out parts of other operations.
namespace starling::tests {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16};

DType vector_type(DType dtype) { return dtype == DType::kFloat64 ? dtype : DType::kFloat32; }
double rounding(DType dtype) {
  return dtype == DType::kFloat64 ? 1e-12 : dtype == DType::kFloat32 ? 2e-6 : dtype == DType::kFloat16 ? 2e-3 : 1.6e-2;
}

/// Calls f(backend) for every instruction set, with one thread and with three.
template <class F>
void on_all_backends(F&& f) {
  for (const cpu::Isa isa : {cpu::Isa::kScalar, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (isa > cpu::hardware_isa()) continue;
    for (const int threads : {1, 3}) {
      CpuBackend backend(threads, isa);
      f(backend);
    }
  }
}

/// Largest difference, as a share of the largest number expected.
double difference(const Numbers& found, const Numbers& expected) {
  REQUIRE(found.size() == expected.size());
  double error = 0.0, largest = 1e-30;
  for (std::size_t i = 0; i < found.size(); ++i) {
    error = std::max(error, std::abs(found[i] - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return error / largest;
}

/// Tensors of one batch norm, rows × channels.
struct Case {
  Case(Backend& b, DType type, std::int64_t rows, std::int64_t channels, double offset = 0.0)
      : backend(b), dtype(type), shape{rows, channels}, vectors{channels} {
    Numbers numbers = random_numbers(rows * channels, 1);
    for (double& v : numbers) v += offset;
    x = to_tensor(b, numbers, shape, type);
    gamma = vector(2);
    beta = vector(3);
    mean = vector(4);
    inv_std = vector(5);
    Numbers positive = to_numbers(inv_std);
    for (double& v : positive) v = 0.5 + std::abs(v);
    inv_std = to_tensor(b, positive, vectors, vector_type(type));
  }
  Tensor vector(std::uint64_t seed) const { return to_tensor(backend, random_numbers(vectors[0], seed), vectors, vector_type(dtype)); }
  Tensor data(std::uint64_t seed) const { return to_tensor(backend, random_numbers(shape.elements(), seed), shape, dtype); }
  Tensor empty() const { return Tensor(backend, shape, dtype); }
  Tensor empty_vector() const { return Tensor(backend, vectors, vector_type(dtype)); }

  Backend& backend;
  DType dtype;
  Shape shape, vectors;
  Tensor x, gamma, beta, mean, inv_std;
};

template <class F>
void on_cases(F&& f) {
  on_all_backends([&](Backend& backend) {
    for (const DType dtype : kTypes) {
      CAPTURE(name_of(dtype));
      for (const auto& [rows, channels] : {std::pair<int, int>{1, 1}, {7, 3}, {64, 16}, {130, 24}, {37, 130}, {2100, 5}, {9, 700}}) {
        CAPTURE(rows);
        CAPTURE(channels);
        f(Case(backend, dtype, rows, channels));
      }
    }
  });
}

}  // namespace

TEST_CASE("kernels/cpu: sums and squares of channels") {
  const auto check = [](const Case& c) {
    const Tensor sum = c.empty_vector(), square_sum = c.empty_vector();
    c.backend.channel_sums({.x = c.x, .sum = sum, .square_sum = square_sum});
    const Numbers x = to_numbers(c.x);
    const auto channels = static_cast<std::size_t>(c.vectors[0]);
    Numbers expected(channels, 0.0), squares(channels, 0.0);
    for (std::size_t i = 0; i < x.size(); ++i) {
      expected[i % channels] += x[i];
      squares[i % channels] += x[i] * x[i];
    }
    const double tolerance = c.dtype == DType::kFloat64 ? 1e-13 : 3e-7;
    CHECK(difference(to_numbers(sum), expected) < tolerance * std::sqrt(x.size()));
    CHECK(difference(to_numbers(square_sum), squares) < tolerance);
  };
  on_cases(check);
  // Far from zero the squares are still as exact as their type, though fp32 blocks gather them.
  on_all_backends([&](Backend& backend) { check(Case(backend, DType::kFloat32, 30000, 6, 100.0)); });
}

TEST_CASE("kernels/cpu: from sums to a batch norm") {
  on_all_backends([](Backend& backend) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      const auto vector = [&](const Numbers& numbers) { return to_tensor(backend, numbers, {4}, dtype); };
      // Channels: an ordinary one; no variance; rounding below zero; NaN.
      const double nan = std::numeric_limits<double>::quiet_NaN();
      const Tensor sum = vector({8, 20, 0.4, nan}), square_sum = vector({48, 100, 0.0399, 1});
      const Tensor running_mean = vector({1, 1, 1, 1}), running_var = vector({2, 2, 2, 2});
      const Tensor mean = vector({0, 0, 0, 0}), inv_std = vector({0, 0, 0, 0}), scale = vector({0, 0, 0, 0}), shift = vector({0, 0, 0, 0});
      const Tensor tracked(backend, Shape{}, DType::kInt64);
      backend.fill(tracked, 4.0);
      BatchNormFinish args{.sum = sum,
                           .square_sum = square_sum,
                           .gamma = vector({3, 2, 1, 1}),
                           .beta = vector({0.5, -1, 0, 0}),
                           .running_mean = running_mean,
                           .running_var = running_var,
                           .batches_tracked = tracked,
                           .saved_mean = mean,
                           .saved_inv_std = inv_std,
                           .scale = scale,
                           .shift = shift,
                           .count = 4,
                           .eps = 0.25,
                           .momentum = 0.5};
      backend.batch_norm_finish(args);
      const double tolerance = rounding(dtype);
      const auto check = [&](const Tensor& tensor, const Numbers& expected) {
        const Numbers found = to_numbers(tensor);
        for (std::size_t i = 0; i < 3; ++i) CHECK(found[i] == doctest::Approx(expected[i]).epsilon(tolerance));
        CHECK(std::isnan(found[3]));  // divergence shows
      };
      const double inv = 1 / std::sqrt(8.25);
      check(mean, {2, 5, 0.1, 0});
      check(inv_std, {inv, 2, 2, 0});
      check(scale, {3 * inv, 4, 2, 0});
      check(shift, {0.5 - 6 * inv, -21, -0.2, 0});
      check(running_mean, {1.5, 3, 0.55, 0});
      check(running_var, {1 + 8 * 4.0 / 3 / 2, 1, 1, 0});
      CHECK(*tracked.data<std::int64_t>() == 5);

      args.gamma = args.beta = args.running_mean = args.running_var = args.batches_tracked = {};
      args.count = 1;
      backend.batch_norm_finish(args);
      CHECK(to_numbers(scale)[0] == doctest::Approx(to_numbers(inv_std)[0]));
      CHECK(*tracked.data<std::int64_t>() == 5);
      args.count = 0;
      CHECK_THROWS_AS(backend.batch_norm_finish(args), Error);
    }
  });
}

TEST_CASE("kernels/cpu: scale and shift, with every kind of residual, in place and not") {
  on_cases([](const Case& c) {
    const Numbers x = to_numbers(c.x), scale = to_numbers(c.gamma), shift = to_numbers(c.beta);
    const Tensor residual = c.data(6), other_scale = c.vector(7), other_shift = c.vector(8);
    const Numbers r = to_numbers(residual), rs = to_numbers(other_scale), rb = to_numbers(other_shift);
    for (const bool relu : {false, true}) {
      for (int kind = 0; kind < 3; ++kind) {
        Numbers expected(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
          const std::size_t ch = i % scale.size();
          double y = scale[ch] * x[i] + shift[ch];
          if (kind == 1) y += r[i];
          if (kind == 2) y += rs[ch] * r[i] + rb[ch];
          expected[i] = relu ? std::max(y, 0.0) : y;
        }
        for (int place = 0; place < 3; ++place) {  // apart, over x, over the residual
          if (place == 2 && kind == 0) continue;
          ScaleShift args{.x = to_tensor(c.backend, x, c.shape, c.dtype), .scale = c.gamma, .shift = c.beta, .relu = relu};
          if (kind > 0) args.residual = to_tensor(c.backend, r, c.shape, c.dtype);
          if (kind == 2) {
            args.residual_scale = other_scale;
            args.residual_shift = other_shift;
          }
          args.y = place == 0 ? c.empty() : place == 1 ? args.x : args.residual;
          c.backend.scale_shift(args);
          CHECK(difference(to_numbers(args.y), expected) < rounding(c.dtype));
        }
      }
    }
  });
  CpuBackend backend(1);
  const Case c(backend, DType::kFloat32, 3, 2);
  c.x.data<float>()[1] = std::numeric_limits<float>::quiet_NaN();
  const Tensor residual = c.data(1), y = c.empty();
  backend.scale_shift({.x = c.x, .scale = c.gamma, .shift = c.beta, .y = y, .relu = true});
  CHECK(std::isnan(y.data<float>()[1]));
  backend.scale_shift({.x = c.x,
                       .scale = c.gamma,
                       .shift = c.beta,
                       .residual = residual,
                       .residual_scale = c.mean,
                       .residual_shift = c.mean,
                       .y = y,
                       .relu = true});
  CHECK(std::isnan(y.data<float>()[1]));
  CHECK_THROWS_AS(
      backend.scale_shift({.x = c.x, .scale = c.gamma, .shift = c.beta, .residual = residual, .residual_scale = c.mean, .y = y}), Error);
}

TEST_CASE("kernels/cpu: a batch norm's gradient in two steps is that of one") {
  on_cases([](const Case& c) {
    const Tensor dy = c.data(9), whole = c.empty();
    const Tensor dgamma = c.vector(10), dbeta = c.vector(11);
    const Numbers dgamma_before = to_numbers(dgamma), dbeta_before = to_numbers(dbeta);
    const Tensor gamma = c.shape[0] % 2 ? Tensor() : c.gamma;  // optional
    c.backend.batch_norm_backward({.x = c.x,
                                   .dy = dy,
                                   .gamma = gamma,
                                   .saved_mean = c.mean,
                                   .saved_inv_std = c.inv_std,
                                   .dx = whole,
                                   .dgamma = dgamma,
                                   .dbeta = dbeta,
                                   .relu = true,
                                   .accumulate = true,
                                   .beta = c.beta});
    for (const bool in_place : {false, true}) {
      const Tensor gradient = to_tensor(c.backend, to_numbers(dy), c.shape, c.dtype);
      const Tensor masked = in_place ? gradient : c.empty(), sum_dy = c.empty_vector(), sum_dy_xhat = c.empty_vector();
      c.backend.batch_norm_backward_sums({.x = c.x,
                                          .dy = gradient,
                                          .saved_mean = c.mean,
                                          .saved_inv_std = c.inv_std,
                                          .gamma = gamma,
                                          .beta = c.beta,
                                          .masked = masked,
                                          .sum_dy = sum_dy,
                                          .sum_dy_xhat = sum_dy_xhat});
      const Tensor x = to_tensor(c.backend, to_numbers(c.x), c.shape, c.dtype);
      const Tensor dx = in_place ? masked : x;
      const Tensor dgamma2 = to_tensor(c.backend, dgamma_before, c.vectors, vector_type(c.dtype));
      const Tensor dbeta2 = to_tensor(c.backend, dbeta_before, c.vectors, vector_type(c.dtype));
      c.backend.batch_norm_backward_apply({.x = x,
                                           .dy = masked,
                                           .gamma = gamma,
                                           .saved_mean = c.mean,
                                           .saved_inv_std = c.inv_std,
                                           .sum_dy = sum_dy,
                                           .sum_dy_xhat = sum_dy_xhat,
                                           .dx = dx,
                                           .dgamma = dgamma2,
                                           .dbeta = dbeta2,
                                           .accumulate = true});
      CHECK(difference(to_numbers(dx), to_numbers(whole)) < rounding(c.dtype));
      CHECK(difference(to_numbers(dgamma2), to_numbers(dgamma)) < 1e-6);
      CHECK(difference(to_numbers(dbeta2), to_numbers(dbeta)) < 1e-6);
    }
  });
}

TEST_CASE("kernels/cpu: convolutions that carry out parts of a batch norm") {
  CpuBackend backend(1);
  for (const DType dtype : kTypes) {
    CAPTURE(name_of(dtype));
    const Shape in{2, 5, 4, 6}, out{2, 5, 4, 8};
    const Window2d window{.kernel = {3, 3}, .padding = {1, 1}, .groups = 2};
    const auto of = [&](const Shape& shape, std::uint64_t seed, DType type) {
      return to_tensor(backend, random_numbers(shape.elements(), seed), shape, type);
    };
    const Tensor x = of(in, 1, dtype), weight = of({8, 3, 3, 3}, 2, dtype), scale = of({6}, 3, vector_type(dtype));
    const Tensor shift = of({6}, 4, vector_type(dtype)), dy = of(out, 5, dtype);
    const Tensor normal(backend, in, dtype), y(backend, out, dtype), plain_y(backend, out, dtype);
    backend.scale_shift({.x = x, .scale = scale, .shift = shift, .y = normal, .relu = true});
    const auto vector = [&](std::int64_t n) { return Tensor(backend, {n}, vector_type(dtype)); };
    const Tensor sum = vector(8), square_sum = vector(8), plain_sum = vector(8), plain_square_sum = vector(8);
    backend.conv2d_forward(
        {.x = x, .weight = weight, .y = y, .window = window, .norm = {scale, shift}, .sum = sum, .square_sum = square_sum});
    backend.conv2d_forward({.x = normal, .weight = weight, .y = plain_y, .window = window});
    backend.channel_sums({.x = plain_y, .sum = plain_sum, .square_sum = plain_square_sum});
    CHECK(to_numbers(y) == to_numbers(plain_y));
    CHECK(to_numbers(sum) == to_numbers(plain_sum));
    CHECK(to_numbers(square_sum) == to_numbers(plain_square_sum));
    CHECK_THROWS_AS(backend.conv2d_forward({.x = x, .weight = weight, .y = y, .window = window, .square_sum = sum}), Error);

    const Tensor dw = of({8, 3, 3, 3}, 6, vector_type(dtype)), plain_dw = of({8, 3, 3, 3}, 6, vector_type(dtype));
    backend.conv2d_backward_weights({.x = x, .dy = dy, .dweight = dw, .window = window, .accumulate = true, .norm = {scale, shift}});
    backend.conv2d_backward_weights({.x = normal, .dy = dy, .dweight = plain_dw, .window = window, .accumulate = true});
    CHECK(to_numbers(dw) == to_numbers(plain_dw));

    const Tensor dx(backend, in, dtype), plain_dx(backend, in, dtype);
    const NormGradient norm{x, of({6}, 7, vector_type(dtype)), of({6}, 8, vector_type(dtype)), scale, shift, vector(6), vector(6)};
    const Tensor sum_dy = vector(6), sum_dy_xhat = vector(6);
    backend.conv2d_backward_data({.dy = dy, .weight = weight, .dx = dx, .window = window, .norm = norm});
    backend.conv2d_backward_data({.dy = dy, .weight = weight, .dx = plain_dx, .window = window});
    backend.batch_norm_backward_sums({.x = x,
                                      .dy = plain_dx,
                                      .saved_mean = norm.mean,
                                      .saved_inv_std = norm.inv_std,
                                      .gamma = norm.gamma,
                                      .beta = norm.beta,
                                      .masked = plain_dx,
                                      .sum_dy = sum_dy,
                                      .sum_dy_xhat = sum_dy_xhat});
    CHECK(to_numbers(dx) == to_numbers(plain_dx));
    CHECK(to_numbers(norm.sum_dy) == to_numbers(sum_dy));
    CHECK(to_numbers(norm.sum_dy_xhat) == to_numbers(sum_dy_xhat));
  }
}

TEST_CASE("kernels/cpu: a product with ReLU is the product, then ReLU") {
  on_all_backends([](Backend& backend) {
    for (const DType dtype : kTypes) {
      for (const DType result : {dtype, vector_type(dtype)}) {
        Numbers numbers = random_numbers(5 * 7, 1);
        numbers[0] = std::numeric_limits<double>::quiet_NaN();
        const Tensor a = to_tensor(backend, numbers, {5, 7}, dtype), b = to_tensor(backend, random_numbers(9 * 7, 2), {9, 7}, dtype);
        const Tensor bias = to_tensor(backend, random_numbers(9, 3), {9}, vector_type(dtype));
        const Tensor c(backend, {5, 9}, result), plain(backend, {5, 9}, result);
        Matmul args{.a = a, .b = b, .bias = bias, .c = plain, .transpose_b = true};
        backend.matmul(args);
        args.c = c;
        args.relu = true;
        backend.matmul(args);
        const Numbers before = to_numbers(plain), after = to_numbers(c);
        for (std::size_t i = 0; i < before.size(); ++i) {
          CHECK((std::isnan(before[i]) ? std::isnan(after[i]) : after[i] == std::max(before[i], 0.0)));
        }
        CHECK(std::isnan(after[0]));
        CHECK(std::count(after.begin(), after.end(), 0.0) > 5);
        args.accumulate = true;
        CHECK_THROWS_AS(backend.matmul(args), Error);
      }
    }
  });
}

}  // namespace starling::tests
