#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/libraries/cudnn.h"
#include "kernels/cuda/libraries/cudnn_finish.h"
#include "kernels/cuda/operations/running_statistics.h"
#include "tests/cudnn/stand_in.h"
#include "tests/fakes/cuda/recorder.h"

// The library around cuDNN's graphs (which tensor goes where, what is done besides a graph, what is refused, which plan is kept), with
// plans that the CPU backend runs.
namespace starling::testing {

namespace {

/// Small multiples of 1/8, which every dtype holds.
float number(std::int64_t i, int seed) { return static_cast<float>((i * 2654435761LL + seed * 40503LL) / 7 % 17 - 8) / 8.0f; }
void set(const Tensor& tensor, std::int64_t i, float value) {
  switch (tensor.dtype()) {
    case DType::kFloat32: tensor.data<float>()[i] = value; break;
    case DType::kFloat64: tensor.data<double>()[i] = static_cast<double>(value); break;
    case DType::kBFloat16: tensor.data<BFloat16>()[i] = BFloat16(value); break;
    case DType::kFloat16: tensor.data<Float16>()[i] = Float16(value); break;
    default: FAIL("no floating tensor");
  }
}
double get(const Tensor& tensor, std::int64_t i) {
  switch (tensor.dtype()) {
    case DType::kFloat32: return static_cast<double>(tensor.data<float>()[i]);
    case DType::kBFloat16: return static_cast<double>(static_cast<float>(tensor.data<BFloat16>()[i]));
    case DType::kFloat16: return static_cast<double>(static_cast<float>(tensor.data<Float16>()[i]));
    default: FAIL("no floating tensor");
  }
  return 0.0;
}
Tensor filled(const Shape& shape, DType dtype, int seed) {
  Tensor tensor(cpu(), shape, dtype);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) set(tensor, i, number(i, seed));
  return tensor;
}
Tensor empty(const Shape& shape, DType dtype) {
  Tensor tensor(cpu(), shape, dtype);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) set(tensor, i, NAN);
  return tensor;
}
Tensor widened(const Tensor& from) {
  if (!from) return {};
  Tensor tensor(cpu(), from.shape(), DType::kFloat32);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) set(tensor, i, static_cast<float>(get(from, i)));
  return tensor;
}
/// The largest difference is at most `unit` of the largest number.
void check_within(double unit, const Tensor& found, const Tensor& wanted, const std::string& what) {
  REQUIRE(found.shape() == wanted.shape());
  double difference = 0.0, largest = 1e-6;
  bool finite = true;
  for (std::int64_t i = 0; i < found.elements(); ++i) {
    finite = finite && std::isfinite(get(found, i));
    difference = std::max(difference, std::abs(get(found, i) - get(wanted, i)));
    largest = std::max(largest, std::abs(get(wanted, i)));
  }
  CHECK_MESSAGE(finite, what);
  CHECK_MESSAGE(difference <= unit * largest, what, ": ", difference, " of ", largest);
}
double rounding(DType dtype) { return dtype == DType::kFloat32 ? 2e-6 : dtype == DType::kBFloat16 ? 0.01 : 0.0015; }
/// The same but for the rounding of `found`'s dtype.
void check_same(const Tensor& found, const Tensor& wanted, const char* name) { check_within(rounding(found.dtype()), found, wanted, name); }
/// fp32 sums of numbers that are rounded to fp16 on the way.
void check_near(const Tensor& found, const Tensor& wanted, const char* name) { check_within(0.002, found, wanted, name); }

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

struct Sizes {
  std::int64_t n, h, w, c, o;
  Window2d window;
  Shape x() const { return {n, h, w, c}; }
  Shape y() const { return {n, window.output(0, h), window.output(1, w), o}; }
  Shape weight() const { return {o, window.kernel[0], window.kernel[1], c / window.groups}; }
};
const Sizes kConvolutions[] = {{2, 6, 5, 8, 16, {.kernel = {3, 3}, .padding = {1, 1}}},
                               {2, 9, 9, 8, 12, {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 0}, .groups = 4}},
                               {3, 8, 8, 3, 5, {.kernel = {3, 3}, .padding = {2, 2}, .dilation = {2, 2}}}};

}  // namespace

TEST_CASE("cudnn/library: convolutions put every tensor where it belongs, in every precision") {
  for (const DType dtype : kTypes) {
    for (const Sizes& s : kConvolutions) {
      Library library;
      Conv2dForward forward{filled(s.x(), dtype, 1), filled(s.weight(), dtype, 2), {}, empty(s.y(), dtype), s.window};
      REQUIRE(library.cudnn->conv2d_forward(forward, nullptr));
      Conv2dForward wide{widened(forward.x), widened(forward.weight), {}, empty(s.y(), DType::kFloat32), s.window};
      cpu().conv2d_forward(wide);
      check_same(forward.y, wide.y, "y");

      const Conv2dBackwardData data{filled(s.y(), dtype, 3), forward.weight, empty(s.x(), dtype), s.window};
      REQUIRE(library.cudnn->conv2d_backward_data(data, nullptr));
      const Conv2dBackwardData wide_data{widened(data.dy), wide.weight, empty(s.x(), DType::kFloat32), s.window};
      cpu().conv2d_backward_data(wide_data);
      check_same(data.dx, wide_data.dx, "dx");

      for (const bool accumulate : {false, true}) {
        Conv2dBackwardWeights weights{.x = forward.x, .dy = data.dy, .window = s.window, .accumulate = accumulate};
        weights.dweight = accumulate ? filled(s.weight(), DType::kFloat32, 4) : empty(s.weight(), DType::kFloat32);
        Conv2dBackwardWeights wide_weights{.x = wide.x, .dy = wide_data.dy, .window = s.window, .accumulate = accumulate};
        wide_weights.dweight = filled(s.weight(), DType::kFloat32, 4);
        REQUIRE(library.cudnn->conv2d_backward_weights(weights, nullptr));
        cpu().conv2d_backward_weights(wide_weights);
        // The sum over the batch is rounded to the low precision before it becomes fp32.
        check_within(rounding(dtype), weights.dweight, wide_weights.dweight, "dweight");
      }
      CHECK(library.graphs->planned.size() == 3);
      for (const auto& [spec, count] : library.graphs->planned) CHECK(count == 1);
    }
  }
}

TEST_CASE("cudnn/library: a bias is added by the graph, or by a pass of its own where no engine does it") {
  for (const DType dtype : kTypes) {
    for (const bool engine : {true, false}) {
      for (const Sizes& s : kConvolutions) {
        Library library;
        if (!engine) library.graphs->refuses = [](const cuda::GraphSpec& spec) { return spec.kind == cuda::GraphKind::kConvolutionBias; };
        const Conv2dForward forward{filled(s.x(), dtype, 1), filled(s.weight(), dtype, 2), filled({s.o}, DType::kFloat32, 5),
                                    empty(s.y(), dtype), s.window};
        const Conv2dForward wide{widened(forward.x), widened(forward.weight), forward.bias, empty(s.y(), DType::kFloat32), s.window};
        for (int repeat = 0; repeat < 2; ++repeat) REQUIRE(library.cudnn->conv2d_forward(forward, nullptr));
        cpu().conv2d_forward(wide);
        check_same(forward.y, wide.y, "y");
        // A refusal is remembered.
        CHECK(library.graphs->planned.size() == (engine ? 1 : 2));
        for (const auto& [spec, count] : library.graphs->planned) CHECK(count == 1);
      }
    }
  }
}

TEST_CASE("cudnn/library: fp16 convolutions that carry out parts of a batch norm put every tensor where it belongs") {
  constexpr DType kLow = DType::kFloat16, kWide = DType::kFloat32;
  for (const Sizes& s : kConvolutions) {
    if (s.window.groups != 1) continue;
    Library library;
    const Shape in{s.c}, out{s.o};
    for (const bool norm : {false, true}) {
      const auto forward_of = [&](DType dtype) {
        Conv2dForward args{filled(s.x(), kLow, 1), filled(s.weight(), kLow, 2), {}, empty(s.y(), dtype), s.window};
        if (dtype == kWide) args.x = widened(args.x), args.weight = widened(args.weight);
        if (norm) args.norm = {filled(in, kWide, 3), filled(in, kWide, 4)};
        args.sum = empty(out, kWide);
        args.square_sum = empty(out, kWide);
        return args;
      };
      const Conv2dForward forward = forward_of(kLow), wide = forward_of(kWide);
      REQUIRE(library.cudnn->conv2d_forward(forward, nullptr));
      cpu().conv2d_forward(wide);
      check_same(forward.y, wide.y, "y");
      check_near(forward.sum, wide.sum, "sum");
      check_near(forward.square_sum, wide.square_sum, "square_sum");
    }
    const auto back_of = [&](DType dtype) {
      Conv2dBackwardData args{filled(s.y(), kLow, 5), filled(s.weight(), kLow, 2), empty(s.x(), dtype), s.window};
      args.norm = {filled(s.x(), kLow, 1), filled(in, kWide, 6), filled(in, kWide, 7), filled(in, kWide, 8), filled(in, kWide, 9)};
      if (dtype == kWide) args.dy = widened(args.dy), args.weight = widened(args.weight), args.norm.x = widened(args.norm.x);
      args.norm.sum_dy = empty(in, kWide);
      args.norm.sum_dy_xhat = empty(in, kWide);
      return args;
    };
    const Conv2dBackwardData data = back_of(kLow), wide_data = back_of(kWide);
    REQUIRE(library.cudnn->conv2d_backward_data(data, nullptr));
    cpu().conv2d_backward_data(wide_data);
    check_same(data.dx, wide_data.dx, "dx");
    check_near(data.norm.sum_dy, wide_data.norm.sum_dy, "sum_dy");
    check_near(data.norm.sum_dy_xhat, wide_data.norm.sum_dy_xhat, "sum_dy_xhat");

    for (const bool accumulate : {false, true}) {
      const auto weights_of = [&](DType dtype) {
        Conv2dBackwardWeights args{.x = filled(s.x(), kLow, 1), .dy = filled(s.y(), kLow, 5), .window = s.window, .accumulate = accumulate};
        if (dtype == kWide) args.x = widened(args.x), args.dy = widened(args.dy);
        args.norm = {filled(in, kWide, 3), filled(in, kWide, 4)};
        args.dweight = accumulate ? filled(s.weight(), kWide, 10) : empty(s.weight(), kWide);
        return args;
      };
      const Conv2dBackwardWeights weights = weights_of(kLow), wide_weights = weights_of(kWide);
      REQUIRE(library.cudnn->conv2d_backward_weights(weights, nullptr));
      cpu().conv2d_backward_weights(wide_weights);
      check_near(weights.dweight, wide_weights.dweight, "dweight");
    }
    CHECK(library.graphs->planned.size() == 4);
    for (const auto& [spec, count] : library.graphs->planned) {
      CHECK(cuda::is_fused(spec.kind));
      CHECK(count == 1);
    }
  }
}

TEST_CASE("cudnn/library: a weight gradient takes its forward pass's fp16 copies of scale and shift while these tensors live") {
  const Sizes& s = kConvolutions[0];
  Library library;
  NormOnLoad norm{filled({s.c}, DType::kFloat32, 3), filled({s.c}, DType::kFloat32, 4)};
  const auto forward = [&] {
    REQUIRE(library.cudnn->conv2d_forward({.x = filled(s.x(), DType::kFloat16, 1),
                                           .weight = filled(s.weight(), DType::kFloat16, 2),
                                           .y = empty(s.y(), DType::kFloat16),
                                           .window = s.window,
                                           .norm = norm,
                                           .sum = empty({s.o}, DType::kFloat32),
                                           .square_sum = empty({s.o}, DType::kFloat32)},
                                          nullptr));
  };
  const auto backward = [&] {
    const auto weights_of = [&](DType dtype) {
      Conv2dBackwardWeights args{.x = filled(s.x(), DType::kFloat16, 1), .dy = filled(s.y(), DType::kFloat16, 5), .window = s.window};
      if (dtype == DType::kFloat32) args.x = widened(args.x), args.dy = widened(args.dy);
      args.norm = norm;
      args.dweight = empty(s.weight(), DType::kFloat32);
      return args;
    };
    const Conv2dBackwardWeights found = weights_of(DType::kFloat16), wanted = weights_of(DType::kFloat32);
    REQUIRE(library.cudnn->conv2d_backward_weights(found, nullptr));
    cpu().conv2d_backward_weights(wanted);
    check_near(found.dweight, wanted.dweight, "dweight");
  };
  const auto copies = [](const auto& body) {
    cuda::shim::start_recording();
    body();
    int count = 0;
    for (const cuda::shim::Call& call : cuda::shim::stop_recording()) count += call.label.find("narrow_scales") != std::string::npos;
    return count;
  };
  CHECK(copies([&] { forward(), backward(); }) == 1);
  CHECK(copies(backward) == 0);
  CHECK(copies([&] { forward(), forward(), backward(); }) == 2);
  // Other tensors at the same addresses: the copies of those before them are not taken.
  class Lent final : public Storage {
   public:
    Lent(std::vector<float>& memory) : Storage(cpu(), reinterpret_cast<std::byte*>(memory.data()), memory.size() * sizeof(float)) {}
  };
  std::vector<float> scales(static_cast<std::size_t>(s.c)), shifts(scales);
  for (const int seed : {6, 8}) {
    norm = {Tensor(std::make_shared<Lent>(scales), 0, {s.c}, DType::kFloat32),
            Tensor(std::make_shared<Lent>(shifts), 0, {s.c}, DType::kFloat32)};
    for (std::size_t i = 0; i < scales.size(); ++i) {
      scales[i] = number(static_cast<std::int64_t>(i), seed);
      shifts[i] = number(static_cast<std::int64_t>(i), seed + 1);
    }
    CHECK(copies(backward) == 1);
    if (seed == 6) forward();
  }
}

TEST_CASE("cudnn/library: what no fused graph does is left to the backend, which puts it together") {
  const Sizes& s = kConvolutions[0];
  const Shape in{s.c}, out{s.o};
  const auto vector = [](const Shape& shape) { return filled(shape, DType::kFloat32, 3); };
  const auto forward_of = [&](DType dtype) {
    return Conv2dForward{.x = filled(s.x(), dtype, 1),
                         .weight = filled(s.weight(), dtype, 2),
                         .y = empty(s.y(), dtype),
                         .window = s.window,
                         .norm = {vector(in), vector(in)},
                         .sum = vector(out),
                         .square_sum = vector(out)};
  };
  Library library;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) CHECK_FALSE(library.cudnn->conv2d_forward(forward_of(dtype), nullptr));
  Conv2dForward forward = forward_of(DType::kFloat16);
  forward.bias = vector(out);
  CHECK_FALSE(library.cudnn->conv2d_forward(forward, nullptr));
  forward.bias = {};
  forward.sum = forward.square_sum = {};
  CHECK_FALSE(library.cudnn->conv2d_forward(forward, nullptr));  // a norm without statistics
  Conv2dBackwardData data{filled(s.y(), DType::kFloat16, 5), forward.weight, empty(s.x(), DType::kFloat16), s.window};
  data.norm = {forward.x, vector(in), vector(in), {}, vector(in), vector(in), vector(in)};
  CHECK_FALSE(library.cudnn->conv2d_backward_data(data, nullptr));  // no gamma
  data.norm.gamma = vector(in);
  data.dx = data.norm.x;
  CHECK_FALSE(library.cudnn->conv2d_backward_data(data, nullptr));
  CHECK(library.graphs->planned.empty());
  forward = forward_of(DType::kFloat16);
  const Sizes& grouped = kConvolutions[1];
  CHECK_FALSE(library.cudnn->conv2d_forward({.x = filled(grouped.x(), DType::kFloat16, 1),
                                             .weight = filled(grouped.weight(), DType::kFloat16, 2),
                                             .y = empty(grouped.y(), DType::kFloat16),
                                             .window = grouped.window,
                                             .sum = vector({grouped.o}),
                                             .square_sum = vector({grouped.o})},
                                            nullptr));
  // Sums that start between multiples of 16 bytes: the engine is there, but may not have them.
  Conv2dForward shifted = forward;
  shifted.sum = filled({s.o + 1}, DType::kFloat32, 1).slice(1, out);
  CHECK_FALSE(library.cudnn->conv2d_forward(shifted, nullptr));
  CHECK(library.graphs->runs.empty());
  // Vectors of another size, and one sum without the other, are a defect of the caller.
  for (const Tensor& wrong : {vector(in), Tensor()}) {
    shifted.sum = wrong;
    CHECK_THROWS_AS(library.cudnn->conv2d_forward(shifted, nullptr), Error);
  }

  // No engine: refused, each time after one look.
  Library without;
  without.graphs->refuses = [](const cuda::GraphSpec& spec) { return cuda::is_fused(spec.kind); };
  for (int i = 0; i < 2; ++i) CHECK_FALSE(without.cudnn->conv2d_forward(forward, nullptr));
  CHECK(without.graphs->planned.size() == 1);
  CHECK(without.graphs->planned.begin()->second == 1);
}

TEST_CASE("cudnn/library: batch norms are fused in fp16 where the device has engines of all four kinds, which is asked once") {
  using cuda::GraphKind;
  constexpr GraphKind kFused[] = {GraphKind::kConvolutionStatistics, GraphKind::kNormConvolutionStatistics,
                                  GraphKind::kConvolutionBackwardDataNorm, GraphKind::kNormConvolutionBackwardWeights};
  Library all;
  CHECK_FALSE(all.cudnn->fuses_batch_norms(DType::kFloat32));
  CHECK_FALSE(all.cudnn->fuses_batch_norms(DType::kBFloat16));
  CHECK(all.graphs->planned.empty());
  for (int i = 0; i < 2; ++i) CHECK(all.cudnn->fuses_batch_norms(DType::kFloat16));
  CHECK(all.graphs->planned.size() == 4);
  for (const auto& [spec, count] : all.graphs->planned) CHECK(count == 1);
  for (const GraphKind missing : kFused) {
    Library library;
    library.graphs->refuses = [missing](const cuda::GraphSpec& spec) { return spec.kind == missing; };
    for (int i = 0; i < 2; ++i) CHECK_FALSE(library.cudnn->fuses_batch_norms(DType::kFloat16));
    CHECK(library.graphs->planned.rbegin()->second == 1);
  }
}

TEST_CASE("cudnn/library: batch norm forward moves the running statistics and counts the batch") {
  for (const DType dtype : kTypes) {
    for (const bool residual : {false, true}) {
      for (const bool image : {true, false}) {
        Library library;
        const Shape shape = image ? Shape{3, 4, 5, 12} : Shape{30, 12}, channels{12};
        const auto args_of = [&](DType type) {
          BatchNormForward args{
              .x = filled(shape, type, 1), .gamma = filled(channels, DType::kFloat32, 2), .beta = filled(channels, DType::kFloat32, 3)};
          if (residual) args.residual = filled(shape, type, 4);
          args.y = empty(shape, type);
          args.running_mean = filled(channels, DType::kFloat32, 5);
          args.running_var = filled(channels, DType::kFloat32, 6);
          for (std::int64_t c = 0; c < 12; ++c) set(args.running_var, c, 2.0f + number(c, 6));
          args.saved_mean = empty(channels, DType::kFloat32);
          args.saved_inv_std = empty(channels, DType::kFloat32);
          args.relu = residual;
          args.eps = 1e-3;
          args.momentum = 0.3;
          args.batches_tracked = Tensor(cpu(), {}, DType::kInt64);
          *args.batches_tracked.data<std::int64_t>() = 41;
          return args;
        };
        const BatchNormForward args = args_of(dtype), wide = args_of(DType::kFloat32);
        REQUIRE(library.cudnn->batch_norm_forward(args, nullptr));
        cuda::PendingStatistics statistics;
        statistics.add(args, nullptr);
        statistics.finish();
        cpu().batch_norm_forward(wide);
        check_same(args.y, wide.y, "y");
        check_same(args.saved_mean, wide.saved_mean, "saved_mean");
        check_same(args.saved_inv_std, wide.saved_inv_std, "saved_inv_std");
        check_same(args.running_mean, wide.running_mean, "running_mean");
        check_same(args.running_var, wide.running_var, "running_var");
        CHECK(*args.batches_tracked.data<std::int64_t>() == 42);
      }
    }
  }
}

TEST_CASE("cudnn/library: batch norm backward with and without a mask, and both terms") {
  const Shape shape{2, 3, 4, 8}, channels{8};
  for (const DType dtype : kTypes) {
    for (int variant = 0; variant < 8; ++variant) {
      const bool two = variant % 2 == 1, mask = variant / 2 % 2 == 1, accumulate = variant / 4 == 1;
      Library library;
      const auto args_of = [&](DType type) {
        BatchNormBackward args{.x = filled(shape, type, 1), .dy = filled(shape, type, 2), .gamma = filled(channels, DType::kFloat32, 3)};
        if (two) args.dy2 = filled(shape, type, 4);
        args.relu = mask;
        if (mask) args.beta = filled(channels, DType::kFloat32, 6);
        args.saved_mean = filled(channels, DType::kFloat32, 7);
        args.saved_inv_std = filled(channels, DType::kFloat32, 8);
        args.dx = empty(shape, type);
        args.dgamma = filled(channels, DType::kFloat32, 9);
        args.dbeta = filled(channels, DType::kFloat32, 10);
        args.accumulate = accumulate;
        return args;
      };
      const BatchNormBackward args = args_of(dtype), wide = args_of(DType::kFloat32);
      REQUIRE(library.cudnn->batch_norm_backward(args, nullptr));
      cpu().batch_norm_backward(wide);
      check_same(args.dx, wide.dx, "dx");
      check_same(args.dgamma, wide.dgamma, "dgamma");
      check_same(args.dbeta, wide.dbeta, "dbeta");
    }
  }
}

TEST_CASE("cudnn/library: what no graph does exactly is left to the own kernels") {
  Library library;
  const Sizes& s = kConvolutions[0];
  CHECK_FALSE(library.cudnn->conv2d_forward(
      {filled(s.x(), DType::kFloat64, 1), filled(s.weight(), DType::kFloat64, 2), {}, empty(s.y(), DType::kFloat64), s.window}, nullptr));

  const Shape shape{4, 8}, channels{8};
  const auto image = [&](int seed) { return filled(shape, DType::kFloat32, seed); };
  const auto vector = [&](int seed) { return filled(channels, DType::kFloat32, seed); };
  BatchNormForward inference{.x = image(1),
                             .gamma = vector(2),
                             .beta = vector(3),
                             .y = image(6),
                             .running_mean = vector(4),
                             .running_var = vector(5),
                             .training = false};
  CHECK_FALSE(library.cudnn->batch_norm_forward(inference, nullptr));

  BatchNormForward relu6 = inference;
  relu6.training = relu6.relu = true;
  relu6.saved_mean = vector(7);
  relu6.saved_inv_std = vector(8);
  relu6.ceiling = 6.0;
  CHECK_FALSE(library.cudnn->batch_norm_forward(relu6, nullptr));

  const BatchNormBackward back{.x = image(1),
                               .dy = image(2),
                               .gamma = vector(3),
                               .saved_mean = vector(4),
                               .saved_inv_std = vector(5),
                               .dx = image(6),
                               .dgamma = vector(7),
                               .dbeta = vector(8)};
  BatchNormBackward relu6_back = back;
  relu6_back.relu = true;
  relu6_back.beta = vector(9);
  relu6_back.ceiling = 6.0;
  CHECK_FALSE(library.cudnn->batch_norm_backward(relu6_back, nullptr));
  for (const Tensor& where : {back.x, back.dy}) {
    BatchNormBackward in_place = back;
    in_place.dx = where;
    CHECK_FALSE(library.cudnn->batch_norm_backward(in_place, nullptr));
  }
  CHECK(library.graphs->runs.empty());
  // Shapes that do not belong together are a defect of the caller.
  CHECK_THROWS_AS(
      library.cudnn->conv2d_forward(
          {filled(s.x(), DType::kFloat32, 1), filled({4, 4}, DType::kFloat32, 2), {}, empty(s.y(), DType::kFloat32), s.window}, nullptr),
      Error);
}

TEST_CASE("cudnn/library: the first plan that can be finalised is taken, or with benchmark the fastest that runs") {
  const Sizes& s = kConvolutions[0];
  const Conv2dForward forward{
      filled(s.x(), DType::kFloat32, 1), filled(s.weight(), DType::kFloat32, 2), {}, empty(s.y(), DType::kFloat32), s.window};
  {
    Library library({.tf32 = true, .deterministic = false});
    library.graphs->cannot_finalise = [](int candidate) { return candidate == 0; };
    for (int i = 0; i < 2; ++i) REQUIRE(library.cudnn->conv2d_forward(forward, nullptr));
    CHECK(library.graphs->runs == std::vector<int>{1, 1});
    CHECK(library.graphs->rules.tf32);
    CHECK_FALSE(library.graphs->rules.deterministic);
  }
  {
    Library library;
    library.graphs->cannot_finalise = [](int) { return true; };
    for (int i = 0; i < 2; ++i) CHECK_FALSE(library.cudnn->conv2d_forward(forward, nullptr));
    CHECK(library.graphs->planned.begin()->second == 1);
  }
  Library library({.benchmark = true});
  library.graphs->candidates = 4;
  library.graphs->times = {3.0, 1.0, 2.0, 0.5};
  library.graphs->cannot_run = [](int candidate) { return candidate == 3; };
  REQUIRE(library.cudnn->conv2d_forward(forward, nullptr));
  CHECK(library.graphs->runs.size() == 3 * 4 + 1);
  CHECK(library.graphs->runs.back() == 1);
  library.graphs->runs.clear();
  REQUIRE(library.cudnn->conv2d_forward(forward, nullptr));
  CHECK(library.graphs->runs == std::vector<int>{1});
  // A graph that cannot run at all is an error with cuDNN's message, not a silent fallback.
  library.graphs->cannot_run = [](int) { return true; };
  CHECK_THROWS_AS(library.cudnn->conv2d_forward(forward, nullptr), Error);
}

TEST_CASE("cudnn/finish: scale and shift are rounded to fp16, and stay finite") {
  const Tensor scale = filled({1003}, DType::kFloat32, 1), shift = filled({1003}, DType::kFloat32, 2),
               to_scale = empty({1003}, DType::kFloat16), to_shift = empty({1003}, DType::kFloat16);
  set(scale, 0, 1e9f);
  set(scale, 1, -INFINITY);
  set(shift, 2, NAN);
  cuda::narrow_scales(scale, shift, to_scale, to_shift, nullptr);
  CHECK(get(to_scale, 0) == 65504.0);
  CHECK(get(to_scale, 1) == -65504.0);
  CHECK(std::isnan(get(to_shift, 2)));
  for (std::int64_t i = 3; i < 1003; ++i) {
    if (get(to_scale, i) != get(scale, i) || get(to_shift, i) != get(shift, i)) FAIL("number ", i);
  }
}

TEST_CASE("cudnn/finish: tails and misaligned starts") {
  for (const std::int64_t n : {1, 7, 8, 9, 2055}) {
    for (const std::int64_t place : {0, 1, 2, 3}) {
      const std::int64_t shift = place % 2, other = place / 2;  // of the activations, and of the fp32 numbers
      for (const DType dtype : kTypes) {
        const Tensor from = filled({n + shift}, dtype, 1).slice(shift, {n}), to = filled({n + other}, DType::kFloat32, 2).slice(other, {n});
        cuda::take_gradient(from, to, true, nullptr);
        bool same = true;
        for (std::int64_t i = 0; i < n; ++i) same = same && get(to, i) == get(from, i) + static_cast<double>(number(i + other, 2));
        CHECK(same);
        const Tensor y = filled({3 * n + shift}, dtype, 3).slice(shift, {3, n}),
                     bias = filled({n + other}, DType::kFloat32, 4).slice(other, {n}), before = widened(y);
        cuda::add_channel_bias(y, bias, nullptr);
        for (std::int64_t i = 0; i < 3 * n; ++i) same = same && get(y, i) == get(before, i) + get(bias, i % n);
        CHECK(same);
      }
    }
  }
}

}  // namespace starling::testing
