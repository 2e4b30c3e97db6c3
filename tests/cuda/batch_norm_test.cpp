#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <span>

#include "core/error.h"
#include "tests/cuda/compare.h"
#include "tests/cuda/support.h"
#include "tests/operations/operation_table.h"

// Batch normalisation beyond the operation table: every option, places in memory, several parts of the rows, results over inputs.
namespace starling::tests {
namespace {

using Index = std::int64_t;

/// Where a result of the backward pass goes.
enum class Over { kNothing, kDy, kX, kY, kDy2, kResidualDy, kResidualDy2 };

struct Options {
  bool training = true, relu = false, residual = false, affine = true, dy2 = false, accumulate = false, mask_x = false;
  Over over = Over::kNothing;
  double ceiling = kNoCeiling;
};

constexpr Options kOptions[] = {
    {},
    {.relu = true, .accumulate = true},
    {.relu = true, .mask_x = true, .over = Over::kDy},
    {.relu = true, .affine = false, .over = Over::kY},
    {.relu = true, .residual = true, .over = Over::kResidualDy},
    {.relu = true, .residual = true, .dy2 = true, .over = Over::kX},
    {.relu = true, .residual = true, .dy2 = true, .accumulate = true, .over = Over::kResidualDy2},
    {.training = false, .relu = true, .dy2 = true, .mask_x = true, .over = Over::kDy2},
    {.training = false, .residual = true, .affine = false},
    {.relu = true, .mask_x = true, .over = Over::kDy, .ceiling = 0.5},
    {.relu = true, .residual = true, .dy2 = true, .over = Over::kX, .ceiling = 0.5},
    {.training = false, .relu = true, .ceiling = 0.5},
    {.relu = true, .residual = true, .dy2 = true},  // for one size: cuDNN compiles a graph for each, most of a second
};

struct Inputs {
  Index rows = 0, channels = 0;
  DType dtype = DType::kFloat32;
  Options options;
  Numbers x, residual, dy, dy2, gamma, beta, running_mean, running_var, before;
  Numbers y, mean, inv_std;  ///< for the backward pass
};

Inputs inputs_of(Index rows, Index channels, DType dtype, const Options& options) {
  Inputs in{.rows = rows, .channels = channels, .dtype = dtype, .options = options};
  const auto tensor = [&](std::uint64_t seed) { return rounded(random_given({rows, channels}, seed).numbers, dtype); };
  const auto vector = [&](std::uint64_t seed) { return rounded(random_given({channels}, seed).numbers, DType::kFloat32); };
  in.x = tensor(1);
  in.residual = tensor(2);
  in.dy = tensor(3);
  in.dy2 = tensor(4);
  in.gamma = vector(5);
  in.beta = vector(6);
  in.running_mean = vector(7);
  in.running_var = vector(8);
  for (double& v : in.running_var) v = std::abs(v) + 0.5;
  in.running_var = rounded(in.running_var, DType::kFloat32);
  in.before = vector(9);
  return in;
}

/// Tensors of one backend: activations of `dtype`, `offset` elements into their memory, vectors of the parameters' dtype.
struct NormMaker {
  Backend& backend;
  DType dtype;
  Index offset, rows, channels;

  Tensor tensor(const Numbers& numbers) const { return placed(backend, {numbers, {rows, channels}}, dtype, offset); }
  Tensor vector(const Numbers& numbers) const { return placed(backend, {numbers, {channels}}, parameter_dtype(dtype), offset); }
  Tensor empty_tensor() const { return tensor(Numbers(static_cast<std::size_t>(rows * channels), 99.0)); }
  Tensor empty_vector() const { return vector(Numbers(static_cast<std::size_t>(channels), 99.0)); }
};

/// y, mean, 1/σ and the running statistics.
std::vector<Numbers> forward(Backend& backend, const Inputs& in, DType dtype, Index offset) {
  const NormMaker make{backend, dtype, offset, in.rows, in.channels};
  const Tensor tracked(backend, {}, DType::kInt64);
  const std::int64_t before = 41;
  backend.copy_from_host(&before, tracked);
  BatchNormForward args{.x = make.tensor(in.x),
                        .y = make.empty_tensor(),
                        .running_mean = make.vector(in.running_mean),
                        .running_var = make.vector(in.running_var),
                        .saved_mean = make.empty_vector(),
                        .saved_inv_std = make.empty_vector(),
                        .training = in.options.training,
                        .relu = in.options.relu,
                        .batches_tracked = tracked,
                        .ceiling = in.options.ceiling};
  if (in.options.affine) args.gamma = make.vector(in.gamma);
  if (in.options.affine) args.beta = make.vector(in.beta);
  if (in.options.residual) args.residual = make.tensor(in.residual);
  backend.batch_norm_forward(args);
  std::int64_t after = 0;
  backend.copy_to_host(tracked, &after);
  CHECK(after == (in.options.training ? 42 : 41));
  return {numbers_of(args.y), numbers_of(args.saved_mean), numbers_of(args.saved_inv_std), numbers_of(args.running_mean),
          numbers_of(args.running_var)};
}

/// dx, dresidual, dgamma and dbeta.
std::vector<Numbers> backward(Backend& backend, const Inputs& in, DType dtype, Index offset) {
  const Options& o = in.options;
  const NormMaker make{backend, dtype, offset, in.rows, in.channels};
  BatchNormBackward args{.x = make.tensor(in.x),
                         .dy = make.tensor(in.dy),
                         .saved_mean = make.vector(in.mean),
                         .saved_inv_std = make.vector(in.inv_std),
                         .dgamma = make.vector(in.before),
                         .dbeta = make.vector(in.before),
                         .relu = o.relu,
                         .accumulate = o.accumulate,
                         .training = o.training,
                         .ceiling = o.ceiling};
  if (o.relu && !(o.mask_x && o.affine)) args.y = make.tensor(in.y);
  if (o.affine) args.gamma = make.vector(in.gamma);
  if (o.mask_x) args.beta = make.vector(in.beta);
  if (o.dy2) args.dy2 = make.tensor(in.dy2);
  args.dx = o.over == Over::kDy ? args.dy : o.over == Over::kX ? args.x : o.over == Over::kY ? args.y : make.empty_tensor();
  if (o.over == Over::kDy2) args.dx = args.dy2;
  if (o.residual) {
    args.dresidual = o.over == Over::kResidualDy ? args.dy : o.over == Over::kResidualDy2 ? args.dy2 : make.empty_tensor();
  }
  backend.batch_norm_backward(args);
  return {numbers_of(args.dx), o.residual ? numbers_of(args.dresidual) : Numbers(), numbers_of(args.dgamma), numbers_of(args.dbeta)};
}

double activation_tolerance(DType dtype) {
  return dtype == DType::kFloat64 ? 1e-11 : dtype == DType::kFloat32 ? 2e-5 : dtype == DType::kFloat16 ? 1e-3 : 8e-3;
}
double parameter_tolerance(DType dtype) { return dtype == DType::kFloat64 ? 1e-11 : 5e-5; }

/// What cuDNN's backward pass may be off beside these, of the largest number. Its engines keep values between the graph's steps in the
/// tensors' type (docs/cudnn.md). A gradient that a mask lets through or not is exact there, but dy + dy2 = g is rounded: off by at most
/// u·|g|, u being half a unit in the last place, without a bias. dx = γ/σ·(g - mean g - x̂·mean g·x̂) takes this from its own g and less from
/// the means, 2.5 u of |γ/σ|·max|g| in all, which max|dx| comes near to. dgamma is a sum over rows of g·x̂: six standard deviations of its
/// error, 6 u/√3·√Σ(g·x̂)², are 3.5 u of what it is itself like, being a sum of terms of either sign. dbeta likewise.
double rounded_sum_tolerance(DType dtype, const Options& o, Index offset) {
  const bool one_graph = o.training && o.affine && o.over == Over::kNothing && o.ceiling == kNoCeiling && offset == 0;
  if (!is_low_precision(dtype) || !o.dy2 || !one_graph || gpu().description().find("cuDNN") == std::string::npos) return 0.0;
  return 4.0 * (dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8);
}

void check(Index rows, Index channels, DType dtype, const Options& options, Index offset) {
  CAPTURE(rows);
  CAPTURE(channels);
  CAPTURE(name_of(dtype));
  CAPTURE(&options - kOptions);
  CAPTURE(offset);
  Inputs in = inputs_of(rows, channels, dtype, options);
  const auto expected = forward(plain_cpu(), in, DType::kFloat64, 0);
  const auto found = forward(gpu(), in, dtype, offset);
  CHECK(distance(found[0], expected[0]) < activation_tolerance(dtype));
  for (std::size_t i = 1; i < found.size(); ++i) {
    CAPTURE(i);
    CHECK(distance(found[i], expected[i]) < parameter_tolerance(dtype));
  }
  in.y = rounded(expected[0], dtype);
  in.mean = rounded(expected[1], parameter_dtype(dtype));
  in.inv_std = rounded(expected[2], parameter_dtype(dtype));
  const auto goal = backward(plain_cpu(), in, DType::kFloat64, 0);
  const auto gradients = backward(gpu(), in, dtype, offset);
  const double carried = rounded_sum_tolerance(dtype, options, offset);
  for (std::size_t i = 0; i < goal.size(); ++i) {
    CAPTURE(i);
    CHECK(distance(gradients[i], goal[i]) < carried + (i < 2 ? activation_tolerance(dtype) : parameter_tolerance(dtype)));
  }
}

}  // namespace

TEST_CASE("cuda/batch norm: every option, dtype and place equals the CPU's fp64") {
  struct Size {
    Index rows, channels;
  };
  for (const DType dtype : kFloatingTypes) {
    for (const Options& options : std::span(kOptions).first(12)) {
      for (const Index offset : {0, 1}) {
        for (const Size& size : {Size{37, 3}, Size{70, 40}, Size{5, 264}, Size{1, 8}}) {
          if (size.rows == 1 && options.training) continue;  // a variance of zero
          check(size.rows, size.channels, dtype, options, offset);
        }
      }
    }
    // Several parts of the rows, the last one shorter, in packs and without.
    check(1100, 16, dtype, kOptions[6], 0);
    check(1100, 16, dtype, kOptions[2], 1);
    check(600, 64, dtype, kOptions[5], 0);
    check(600, 64, dtype, kOptions[12], 0);
    check(2500, 1, dtype, kOptions[1], 0);
  }
}

TEST_CASE("cuda/batch norm: every order of threads, and every run, gives the same bits") {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const Options& options : {kOptions[2], kOptions[6], kOptions[9], kOptions[10]}) {
      Inputs in = inputs_of(700, 24, dtype, options);
      std::vector<Numbers> first;
      in_every_order([&] {
        auto found = forward(gpu(), in, dtype, 0);
        if (first.empty()) {
          in.y = found[0];
          in.mean = found[1];
          in.inv_std = found[2];
        }
        for (Numbers& numbers : backward(gpu(), in, dtype, 0)) found.push_back(std::move(numbers));
        if (first.empty()) first = found;
        CHECK(found == first);
      });
    }
  }
}

TEST_CASE("cuda/batch norm: the statistics of a large mean do not cancel, a constant has none, and NaN stays in its channel") {
  constexpr Index kRows = 3000, kChannels = 5;
  Given x = random_given({kRows, kChannels}, 3);
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < x.numbers.size(); ++i) {
    x.numbers[i] = static_cast<double>(static_cast<float>(1000.0 + x.numbers[i]));
    if (i % kChannels == 3) x.numbers[i] = 7.25;
    if (i % kChannels == 2) sum += x.numbers[i];
  }
  x.numbers[4] = std::numeric_limits<double>::quiet_NaN();
  const double mean = sum / kRows;
  for (std::size_t i = 2; i < x.numbers.size(); i += kChannels) squares += (x.numbers[i] - mean) * (x.numbers[i] - mean);
  const Tensor in = placed(gpu(), x, DType::kFloat32, 0), y(gpu(), x.shape, DType::kFloat32), m(gpu(), {kChannels}, DType::kFloat32),
               inv(gpu(), {kChannels}, DType::kFloat32);
  gpu().batch_norm_forward({.x = in, .y = y, .saved_mean = m, .saved_inv_std = inv, .relu = true});
  const Numbers means = numbers_of(m), inverses = numbers_of(inv), results = numbers_of(y);
  CHECK(means[2] == doctest::Approx(mean).epsilon(1e-7));
  CHECK(inverses[2] == doctest::Approx(1.0 / std::sqrt(squares / kRows + 1e-5)).epsilon(1e-5));
  CHECK(means[3] == 7.25);
  CHECK(inverses[3] == doctest::Approx(1.0 / std::sqrt(1e-5)).epsilon(1e-6));
  CHECK(std::isnan(results[9]));
  CHECK(results[3] == 0.0);
  CHECK(!std::isnan(results[2]));
  const double expected = std::max((x.numbers[7] - mean) / std::sqrt(squares / kRows + 1e-5), 0.0);
  CHECK(results[7] == doctest::Approx(expected).epsilon(1e-4));
}

TEST_CASE("cuda/batch norm: tensors that do not belong together are one clear error") {
  const Tensor x(gpu(), {4, 6}, DType::kFloat32), short_vector(gpu(), {5}, DType::kFloat32), vector(gpu(), {6}, DType::kFloat32);
  CHECK_THROWS_AS(gpu().batch_norm_forward({.x = x, .y = x, .saved_mean = short_vector, .saved_inv_std = vector}), Error);
  CHECK_THROWS_AS(gpu().batch_norm_forward({.x = vector, .y = vector, .saved_mean = vector, .saved_inv_std = vector}), Error);
  CHECK_THROWS_AS(gpu().batch_norm_forward({.x = x, .y = x, .training = false}), Error);
  CHECK_THROWS_AS(gpu().batch_norm_backward({.x = x, .dy = x, .saved_mean = vector, .saved_inv_std = vector, .relu = true}), Error);
  const Tensor low(gpu(), {4, 6}, DType::kBFloat16), low_vector(gpu(), {6}, DType::kBFloat16);
  CHECK_THROWS_AS(gpu().batch_norm_forward({.x = low, .gamma = low_vector, .y = low, .saved_mean = vector, .saved_inv_std = vector}),
                  Error);
}

}  // namespace starling::tests
