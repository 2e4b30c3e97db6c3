#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/operations/convolutions.h"
#include "kernels/cuda/libraries/cudnn.h"
#include "kernels/cuda/libraries/cudnn_finish.h"
#include "tests/cudnn/stand_in.h"

// The library around cuDNN's graphs (which tensor goes where, what is done besides a graph, what is
// refused, which plan is kept), with plans that the CPU backend runs.
namespace starling::testing {

namespace {

/// Small multiples of 1/8, which every dtype holds.
float number(std::int64_t i, int seed) {
  return static_cast<float>((i * 2654435761LL + seed * 40503LL) / 7 % 17 - 8) / 8.0f;
}
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
    case DType::kBFloat16:
      return static_cast<double>(static_cast<float>(tensor.data<BFloat16>()[i]));
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
  for (std::int64_t i = 0; i < tensor.elements(); ++i)
    set(tensor, i, static_cast<float>(get(from, i)));
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
double rounding(DType dtype) {
  return dtype == DType::kFloat32 ? 2e-6 : dtype == DType::kBFloat16 ? 0.01 : 0.0015;
}
/// The same but for the rounding of `found`'s dtype.
void check_same(const Tensor& found, const Tensor& wanted, const char* name) {
  check_within(rounding(found.dtype()), found, wanted, name);
}

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

struct Sizes {
  std::int64_t n, h, w, c, o;
  Window2d window;
  Shape x() const { return {n, h, w, c}; }
  Shape y() const { return {n, window.output(0, h), window.output(1, w), o}; }
  Shape weight() const { return {o, window.kernel[0], window.kernel[1], c / window.groups}; }
};
const Sizes kConvolutions[] = {
    {2, 6, 5, 8, 16, {.kernel = {3, 3}, .padding = {1, 1}}},
    {2, 9, 9, 8, 12, {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 0}, .groups = 4}},
    {3, 8, 8, 3, 5, {.kernel = {3, 3}, .padding = {2, 2}, .dilation = {2, 2}}}};

}  // namespace

TEST_CASE("cudnn/library: convolutions put every tensor where it belongs, in every precision") {
  for (const DType dtype : kTypes) {
    for (const Sizes& s : kConvolutions) {
      Library library;
      Conv2dForward forward{
          filled(s.x(), dtype, 1), filled(s.weight(), dtype, 2), {}, empty(s.y(), dtype), s.window};
      REQUIRE(library.cudnn->conv2d_forward(forward, nullptr));
      Conv2dForward wide{
          widened(forward.x), widened(forward.weight), {}, empty(s.y(), DType::kFloat32), s.window};
      cpu().conv2d_forward(wide);
      check_same(forward.y, wide.y, "y");

      const Conv2dBackwardData data{filled(s.y(), dtype, 3), forward.weight, empty(s.x(), dtype),
                                    s.window};
      REQUIRE(library.cudnn->conv2d_backward_data(data, nullptr));
      const Conv2dBackwardData wide_data{widened(data.dy), wide.weight,
                                         empty(s.x(), DType::kFloat32), s.window};
      cpu().conv2d_backward_data(wide_data);
      check_same(data.dx, wide_data.dx, "dx");

      for (const bool accumulate : {false, true}) {
        Conv2dBackwardWeights weights{
            .x = forward.x, .dy = data.dy, .window = s.window, .accumulate = accumulate};
        weights.dweight = accumulate ? filled(s.weight(), DType::kFloat32, 4)
                                     : empty(s.weight(), DType::kFloat32);
        Conv2dBackwardWeights wide_weights{
            .x = wide.x, .dy = wide_data.dy, .window = s.window, .accumulate = accumulate};
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

TEST_CASE("cudnn/library: a bias is added by a pass of its own") {
  for (const DType dtype : kTypes) {
    for (const Sizes& s : kConvolutions) {
      Library library;
      const Conv2dForward forward{filled(s.x(), dtype, 1), filled(s.weight(), dtype, 2),
                                  filled({s.o}, DType::kFloat32, 5), empty(s.y(), dtype), s.window};
      const Conv2dForward wide{widened(forward.x), widened(forward.weight), forward.bias,
                               empty(s.y(), DType::kFloat32), s.window};
      for (int repeat = 0; repeat < 2; ++repeat)
        REQUIRE(library.cudnn->conv2d_forward(forward, nullptr));
      cpu().conv2d_forward(wide);
      // The product is rounded before the bias is added.
      check_within(2 * rounding(dtype), forward.y, wide.y, "y");
      CHECK(library.graphs->planned.size() == 1);
      CHECK(library.graphs->planned.begin()->second == 1);
    }
  }
}

TEST_CASE("cudnn/library: what no graph does exactly is left to the own kernels") {
  Library library;
  const Sizes& s = kConvolutions[0];
  CHECK_FALSE(library.cudnn->conv2d_forward({filled(s.x(), DType::kFloat64, 1),
                                             filled(s.weight(), DType::kFloat64, 2),
                                             {},
                                             empty(s.y(), DType::kFloat64),
                                             s.window},
                                            nullptr));
  CHECK(library.graphs->runs.empty());
}

TEST_CASE(
    "cudnn/library: the first plan that can be finalised is taken, or with benchmark the fastest "
    "that runs") {
  const Sizes& s = kConvolutions[0];
  const Conv2dForward forward{filled(s.x(), DType::kFloat32, 1),
                              filled(s.weight(), DType::kFloat32, 2),
                              {},
                              empty(s.y(), DType::kFloat32),
                              s.window};
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

TEST_CASE("cudnn/finish: tails and misaligned starts") {
  for (const std::int64_t n : {1, 7, 8, 9, 2055}) {
    for (const std::int64_t place : {0, 1, 2, 3}) {
      // of the activations, and of the fp32 numbers
      const std::int64_t shift = place % 2, other = place / 2;
      for (const DType dtype : kTypes) {
        const Tensor from = filled({n + shift}, dtype, 1).slice(shift, {n}),
                     to = filled({n + other}, DType::kFloat32, 2).slice(other, {n});
        cuda::take_gradient(from, to, true, nullptr);
        bool same = true;
        for (std::int64_t i = 0; i < n; ++i)
          same = same && get(to, i) == get(from, i) + static_cast<double>(number(i + other, 2));
        CHECK(same);
        const Tensor y = filled({3 * n + shift}, dtype, 3).slice(shift, {3, n}),
                     bias = filled({n + other}, DType::kFloat32, 4).slice(other, {n}),
                     before = widened(y);
        cuda::add_channel_bias(y, bias, nullptr);
        for (std::int64_t i = 0; i < 3 * n; ++i)
          same = same && get(y, i) == get(before, i) + get(bias, i % n);
        CHECK(same);
      }
    }
  }
}

}  // namespace starling::testing
