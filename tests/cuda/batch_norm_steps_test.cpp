#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "tests/cuda/compare.h"
#include "tests/cuda/support.h"
#include "tests/operations/operation_table.h"

// The steps of a batch norm whose other steps convolutions carry out, and convolutions that are put together from them.
namespace starling::tests {
namespace {

using Index = std::int64_t;

struct StepSize {
  Index rows, channels;
};
/// Tails, packs and single elements, one part of the rows and several with a shorter last one.
constexpr StepSize kStepSizes[] = {{37, 3}, {70, 40}, {5, 264}, {1, 8}, {1100, 16}, {2500, 1}};

/// Tensors of one backend, `offset` elements into their memory: data of `dtype`, vectors of the parameters'. The numbers are the same, and
/// exact in `exact`, whichever the dtype.
struct StepMaker {
  Backend& backend;
  DType dtype, exact;
  Index offset;
  StepSize size;

  Tensor data(std::uint64_t seed) const {
    return placed(backend, {rounded(random_given({size.rows, size.channels}, seed).numbers, exact), {size.rows, size.channels}}, dtype,
                  offset);
  }
  Tensor vector(std::uint64_t seed, double least = -1e9) const {
    Numbers numbers = random_given({size.channels}, seed).numbers;
    for (double& number : numbers) number = std::max(number, least);
    return placed(backend, {rounded(numbers, DType::kFloat32), {size.channels}}, parameter_dtype(dtype), offset);
  }
};

using Lists = std::vector<Numbers>;
void add(Lists& results, std::initializer_list<Tensor> tensors) {
  for (const Tensor& tensor : tensors) results.push_back(numbers_of(tensor));
}

Lists sums(const StepMaker& make) {
  const ChannelSums args{make.data(1), make.vector(2), make.vector(3)};
  make.backend.channel_sums(args);
  Lists results;
  add(results, {args.sum, args.square_sum});
  return results;
}

Lists finish(const StepMaker& make, bool all) {
  const Tensor tracked(make.backend, {}, DType::kInt64);
  const std::int64_t before = 41;
  make.backend.copy_from_host(&before, tracked);
  BatchNormFinish args{.sum = make.vector(1), .square_sum = make.vector(2, 0.5)};
  if (all) {
    args.gamma = make.vector(3);
    args.beta = make.vector(4);
    args.running_mean = make.vector(5);
    args.running_var = make.vector(6, 0.1);
    args.batches_tracked = tracked;
  }
  args.saved_mean = make.vector(7);
  args.saved_inv_std = make.vector(8);
  args.scale = make.vector(9);
  args.shift = make.vector(10);
  args.count = make.size.rows;
  args.eps = 1e-3;
  args.momentum = 0.3;
  make.backend.batch_norm_finish(args);
  std::int64_t after = 0;
  make.backend.copy_to_host(tracked, &after);
  CHECK(after == (all ? 42 : 41));
  Lists results;
  add(results, {args.saved_mean, args.saved_inv_std, args.scale, args.shift});
  if (all) add(results, {args.running_mean, args.running_var});
  return results;
}

Lists apply(const StepMaker& make, int variant) {
  ScaleShift args{.x = make.data(1), .scale = make.vector(2), .shift = make.vector(3), .relu = variant % 2 == 1};
  if (variant >= 2) args.residual = make.data(4);
  if (variant >= 4) args.residual_scale = make.vector(5), args.residual_shift = make.vector(6);
  args.y = variant == 1 ? args.x : variant == 3 ? args.residual : make.data(7);
  make.backend.scale_shift(args);
  Lists results;
  add(results, {args.y});
  return results;
}

Lists backward_sums(const StepMaker& make, bool in_place, bool affine) {
  BatchNormBackwardSums args{.x = make.data(1), .dy = make.data(2), .saved_mean = make.vector(3), .saved_inv_std = make.vector(4, 0.1)};
  if (affine) args.gamma = make.vector(5), args.beta = make.vector(6);
  args.masked = in_place ? args.dy : make.data(7);
  args.sum_dy = make.vector(8);
  args.sum_dy_xhat = make.vector(9);
  make.backend.batch_norm_backward_sums(args);
  Lists results;
  add(results, {args.masked, args.sum_dy, args.sum_dy_xhat});
  return results;
}

Lists backward_apply(const StepMaker& make, int variant) {
  BatchNormBackwardApply args{.x = make.data(1), .dy = make.data(2)};
  if (variant != 0) args.gamma = make.vector(3);
  args.saved_mean = make.vector(4);
  args.saved_inv_std = make.vector(5, 0.1);
  args.sum_dy = make.vector(6);
  args.sum_dy_xhat = make.vector(7);
  args.dx = variant == 1 ? args.dy : variant == 2 ? args.x : make.data(8);
  args.dgamma = make.vector(9);
  args.dbeta = make.vector(10);
  args.accumulate = variant == 2;
  make.backend.batch_norm_backward_apply(args);
  Lists results;
  add(results, {args.dx, args.dgamma, args.dbeta});
  return results;
}

/// Every step in every variant; `data` says which results have the data's dtype.
struct Step {
  const char* name;
  std::function<Lists(const StepMaker&)> run;
  bool data;  ///< whether the first result is data
};
std::vector<Step> steps() {
  std::vector<Step> list{{"channel sums", sums, false}};
  for (const bool all : {false, true}) list.push_back({"finish", [all](const StepMaker& make) { return finish(make, all); }, false});
  for (int variant = 0; variant < 6; ++variant) {
    list.push_back({"scale and shift", [variant](const StepMaker& make) { return apply(make, variant); }, true});
  }
  for (const bool in_place : {false, true}) {
    list.push_back({"backward sums", [in_place](const StepMaker& make) { return backward_sums(make, in_place, in_place); }, true});
  }
  for (int variant = 0; variant < 3; ++variant) {
    list.push_back({"backward apply", [variant](const StepMaker& make) { return backward_apply(make, variant); }, true});
  }
  return list;
}

double data_tolerance(DType dtype) {
  return dtype == DType::kFloat64 ? 1e-11 : dtype == DType::kFloat32 ? 2e-6 : dtype == DType::kFloat16 ? 1e-3 : 8e-3;
}

}  // namespace

TEST_CASE("cuda/batch norm steps: every step, dtype and place equals the CPU's fp64") {
  for (const DType dtype : kFloatingTypes) {
    for (const StepSize& size : kStepSizes) {
      for (const Step& step : steps()) {
        for (const Index offset : {0, 1}) {
          CAPTURE(name_of(dtype));
          CAPTURE(size.rows);
          CAPTURE(size.channels);
          CAPTURE(step.name);
          CAPTURE(offset);
          const Lists wanted = step.run({plain_cpu(), DType::kFloat64, dtype, 0, size}),
                      found = step.run({gpu(), dtype, dtype, offset, size});
          REQUIRE(found.size() == wanted.size());
          for (std::size_t i = 0; i < found.size(); ++i) {
            CAPTURE(i);
            CHECK(distance(found[i], wanted[i]) < (step.data && i == 0 ? data_tolerance(dtype) : dtype == DType::kFloat64 ? 1e-11 : 2e-5));
          }
        }
      }
    }
  }
}

TEST_CASE("cuda/batch norm steps: every order of threads, and every run, gives the same bits") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    for (const Step& step : steps()) {
      CAPTURE(step.name);
      Lists first;
      in_every_order([&] {
        const Lists found = step.run({gpu(), dtype, dtype, 0, {700, 24}});
        if (first.empty()) first = found;
        CHECK(found == first);
      });
    }
  }
}

TEST_CASE("cuda/batch norm steps: together they are the batch norm as one operation") {
  constexpr StepSize kSize{900, 24};
  const double count = static_cast<double>(kSize.rows);
  for (const DType dtype : kFloatingTypes) {
    CAPTURE(name_of(dtype));
    const StepMaker make{gpu(), dtype, dtype, 0, kSize};
    Backend& backend = gpu();
    BatchNormForward whole{.x = make.data(1), .gamma = make.vector(2), .beta = make.vector(3), .y = make.data(4)};
    whole.running_mean = make.vector(5);
    whole.running_var = make.vector(6, 0.1);
    whole.saved_mean = make.vector(7);
    whole.saved_inv_std = make.vector(8);
    whole.relu = true;
    backend.batch_norm_forward(whole);

    const ChannelSums sums{whole.x, make.vector(7), make.vector(8)};
    backend.channel_sums(sums);
    const BatchNormFinish finish{.sum = sums.sum,
                                 .square_sum = sums.square_sum,
                                 .gamma = whole.gamma,
                                 .beta = whole.beta,
                                 .running_mean = make.vector(5),
                                 .running_var = make.vector(6, 0.1),
                                 .saved_mean = make.vector(7),
                                 .saved_inv_std = make.vector(8),
                                 .scale = make.vector(9),
                                 .shift = make.vector(10),
                                 .count = kSize.rows};
    backend.batch_norm_finish(finish);
    const ScaleShift apply{.x = whole.x, .scale = finish.scale, .shift = finish.shift, .y = make.data(4), .relu = true};
    backend.scale_shift(apply);
    const double tight = dtype == DType::kFloat64 ? 1e-11 : 1e-5;
    CHECK(distance(numbers_of(apply.y), numbers_of(whole.y)) < data_tolerance(dtype) * 2);
    CHECK(distance(numbers_of(finish.saved_mean), numbers_of(whole.saved_mean)) < tight);
    CHECK(distance(numbers_of(finish.saved_inv_std), numbers_of(whole.saved_inv_std)) < tight);
    CHECK(distance(numbers_of(finish.running_mean), numbers_of(whole.running_mean)) < tight);
    CHECK(distance(numbers_of(finish.running_var), numbers_of(whole.running_var)) < tight);
    CHECK(numbers_of(sums.sum)[3] / count == doctest::Approx(numbers_of(whole.saved_mean)[3]).epsilon(1e-4));

    BatchNormBackward back{.x = whole.x, .dy = make.data(11), .gamma = whole.gamma, .saved_mean = whole.saved_mean};
    back.saved_inv_std = whole.saved_inv_std;
    back.dx = make.data(12);
    back.dgamma = make.vector(13);
    back.dbeta = make.vector(14);
    back.relu = true;
    back.beta = whole.beta;
    backend.batch_norm_backward(back);
    const BatchNormBackwardSums back_sums{.x = whole.x,
                                          .dy = make.data(11),
                                          .saved_mean = whole.saved_mean,
                                          .saved_inv_std = whole.saved_inv_std,
                                          .gamma = whole.gamma,
                                          .beta = whole.beta,
                                          .masked = make.data(12),
                                          .sum_dy = make.vector(13),
                                          .sum_dy_xhat = make.vector(14)};
    backend.batch_norm_backward_sums(back_sums);
    const BatchNormBackwardApply last{.x = whole.x,
                                      .dy = back_sums.masked,
                                      .gamma = whole.gamma,
                                      .saved_mean = whole.saved_mean,
                                      .saved_inv_std = whole.saved_inv_std,
                                      .sum_dy = back_sums.sum_dy,
                                      .sum_dy_xhat = back_sums.sum_dy_xhat,
                                      .dx = back_sums.masked,
                                      .dgamma = make.vector(15),
                                      .dbeta = make.vector(16)};
    backend.batch_norm_backward_apply(last);
    CHECK(distance(numbers_of(last.dx), numbers_of(back.dx)) < data_tolerance(dtype) * 2);
    CHECK(distance(numbers_of(last.dgamma), numbers_of(back.dgamma)) < tight);
    CHECK(distance(numbers_of(last.dbeta), numbers_of(back.dbeta)) < tight);
  }
}

TEST_CASE("cuda/batch norm steps: NaN stays in its channel, and a constant has no negative variance") {
  constexpr Index kRows = 300, kChannels = 8;
  Given x = random_given({kRows, kChannels}, 3);
  for (std::size_t i = 5; i < x.numbers.size(); i += kChannels) x.numbers[i] = 1000.1;
  x.numbers[2] = std::numeric_limits<double>::quiet_NaN();
  Backend& backend = gpu();
  const Tensor in = placed(backend, x, DType::kFloat32, 0);
  const auto vector = [&] { return Tensor(backend, {kChannels}, DType::kFloat32); };
  const ChannelSums sums{in, vector(), vector()};
  backend.channel_sums(sums);
  BatchNormFinish finish{.sum = sums.sum, .square_sum = sums.square_sum, .saved_mean = vector(), .saved_inv_std = vector()};
  finish.scale = vector();
  finish.shift = vector();
  finish.count = kRows;
  backend.batch_norm_finish(finish);
  const ScaleShift apply{.x = in, .scale = finish.scale, .shift = finish.shift, .y = in, .relu = true};
  backend.scale_shift(apply);
  const Numbers inverse = numbers_of(finish.saved_inv_std), y = numbers_of(in);
  CHECK(std::isfinite(inverse[5]));
  CHECK(inverse[5] <= 1.0 / std::sqrt(1e-5) * (1.0 + 1e-6));
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (std::isnan(y[i]) != (i % kChannels == 2)) FAIL("element ", i, " is ", y[i]);
  }
}

TEST_CASE("cuda/batch norm steps: a convolution with parts of a batch norm is put together where no library does it") {
  // On the shim only a stand-in for cuDNN does.
  CHECK((on_gpu() || gpu().description().find("cuDNN") != std::string::npos || !gpu().fuses_batch_norms(DType::kFloat16)));
  const Window2d window{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
  const Shape x{2, 7, 6, 8}, y{2, 4, 3, 16}, weight{16, 3, 3, 8};
  for (const DType dtype : kFloatingTypes) {
    CAPTURE(name_of(dtype));
    const DType wide = parameter_dtype(dtype);
    const auto run = [&](Backend& backend, DType type, DType vector_type) {
      const auto data = [&](const Shape& shape, std::uint64_t seed) {
        return placed(backend, {rounded(random_given(shape, seed).numbers, dtype), shape}, type, 0);
      };
      const auto vector = [&](Index count, std::uint64_t seed) {
        return placed(backend, {rounded(random_given({count}, seed).numbers, DType::kFloat32), {count}}, vector_type, 0);
      };
      Conv2dForward forward{data(x, 1), data(weight, 2), {}, data(y, 3), window};
      forward.norm = {vector(8, 4), vector(8, 5)};
      forward.sum = vector(16, 6);
      forward.square_sum = vector(16, 7);
      backend.conv2d_forward(forward);
      Conv2dBackwardData back{data(y, 8), forward.weight, data(x, 9), window};
      back.norm = {forward.x, vector(8, 10), vector(8, 11), vector(8, 12), vector(8, 13), vector(8, 14), vector(8, 15)};
      backend.conv2d_backward_data(back);
      Conv2dBackwardWeights weights{.x = forward.x, .dy = back.dy, .window = window, .accumulate = true, .norm = forward.norm};
      weights.dweight = placed(backend, {rounded(random_given(weight, 16).numbers, DType::kFloat32), weight}, vector_type, 0);
      weights.dbias = vector(16, 17);
      backend.conv2d_backward_weights(weights);
      Lists results;
      add(results,
          {forward.y, forward.sum, forward.square_sum, back.dx, back.norm.sum_dy, back.norm.sum_dy_xhat, weights.dweight, weights.dbias});
      return results;
    };
    const Lists found = run(gpu(), dtype, wide), wanted = run(plain_cpu(), DType::kFloat64, DType::kFloat64);
    for (std::size_t i = 0; i < found.size(); ++i) {
      CAPTURE(i);
      CHECK(distance(found[i], wanted[i]) < 4.0 * data_tolerance(dtype));
    }
  }
}

TEST_CASE("cuda/batch norm steps: tensors that do not belong together are one clear error") {
  const Tensor x(gpu(), {4, 6}, DType::kFloat32), five(gpu(), {5}, DType::kFloat32), six(gpu(), {6}, DType::kFloat32);
  CHECK_THROWS_AS(gpu().channel_sums({x, six, five}), Error);
  CHECK_THROWS_AS(gpu().channel_sums({six, six, six}), Error);
  BatchNormFinish finish{.sum = six, .square_sum = six, .saved_mean = six, .saved_inv_std = six, .scale = six, .shift = six};
  CHECK_THROWS_AS(gpu().batch_norm_finish(finish), Error);  // no values
  finish.count = 4;
  finish.gamma = five;
  CHECK_THROWS_AS(gpu().batch_norm_finish(finish), Error);
  CHECK_THROWS_AS(gpu().scale_shift({.x = x, .scale = six, .shift = six, .residual_scale = six, .residual_shift = six, .y = x}), Error);
  CHECK_THROWS_AS(gpu().scale_shift({.x = x, .scale = six, .shift = six, .residual = x, .residual_scale = six, .y = x}), Error);
  BatchNormBackwardSums sums{.x = x, .dy = x, .saved_mean = six, .saved_inv_std = six, .masked = x, .sum_dy = six};
  CHECK_THROWS_AS(gpu().batch_norm_backward_sums(sums), Error);
  BatchNormBackwardApply apply{.x = x, .dy = x, .saved_mean = six, .saved_inv_std = five, .sum_dy = six, .sum_dy_xhat = six, .dx = x};
  CHECK_THROWS_AS(gpu().batch_norm_backward_apply(apply), Error);
}

}  // namespace starling::tests
