#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/operations/attention.h"
#include "core/operations/convolutions.h"
#include "core/operations/pointwise.h"
#include "kernels/cuda/libraries/cudnn.h"
#include "kernels/cuda/libraries/cudnn_finish.h"
#include "kernels/open_backend.h"
#include "tests/fakes/cuda/fake_cudnn.h"

// The library around cuDNN's graphs (which tensor goes where, what is done besides a graph, what is
// refused, which graphs are planned, how many engines are tried, which plan is kept), with plans
// that the CPU backend runs.
namespace starling::testing {
namespace {

Backend& cpu() {
  static const std::unique_ptr<Backend> backend = open_backend(DeviceType::kCpu, 1);
  return *backend;
}

class Workspaces final : public cuda::WorkspaceSource {
 public:
  std::shared_ptr<Storage> workspace(std::size_t bytes) override { return cpu().allocate(bytes); }
};

/// The library around cuDNN's graphs, with a stand-in that makes the plans, on host memory.
struct Library {
  explicit Library(const cuda::LibrarySettings& settings = {}) {
    auto owned = std::make_unique<cuda::shim::FakeGraphs>();
    graphs = owned.get();
    cudnn = cuda::make_cudnn(settings, workspaces, std::move(owned));
  }
  Workspaces workspaces;
  cuda::shim::FakeGraphs* graphs = nullptr;
  std::unique_ptr<cuda::Cudnn> cudnn;
};

/// Small multiples of 1/8, which every dtype holds.
float number(std::int64_t i, int seed) {
  return static_cast<float>((i * 2654435761LL + seed * 40503LL) / 7 % 17 - 8) / 8.0f;
}
Tensor as(DType dtype, const Tensor& from) {
  if (!from) return {};
  Tensor tensor(cpu(), from.shape(), dtype);
  cpu().cast({from, tensor});
  return tensor;
}
Tensor widened(const Tensor& from) { return as(DType::kFloat32, from); }
Tensor filled(const Shape& shape, DType dtype, int seed) {
  const Tensor tensor(cpu(), shape, DType::kFloat32);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.data<float>()[i] = number(i, seed);
  return as(dtype, tensor);
}
Tensor empty(const Shape& shape, DType dtype) {
  Tensor tensor(cpu(), shape, dtype);
  cpu().fill(tensor, NAN);
  return tensor;
}
/// The largest difference is at most `unit` of the largest number.
void check_within(double unit, const Tensor& found, const Tensor& wanted, const std::string& what) {
  REQUIRE(found.shape() == wanted.shape());
  const Tensor wide = widened(found), other = widened(wanted);
  double difference = 0.0, largest = 1e-6;
  bool finite = true;
  for (std::int64_t i = 0; i < found.elements(); ++i) {
    const double x = wide.data<float>()[i], y = other.data<float>()[i];
    finite = finite && std::isfinite(x);
    difference = std::max(difference, std::abs(x - y));
    largest = std::max(largest, std::abs(y));
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

/// Zeros that start on 16 bytes, or beside it.
Tensor zeros(const Shape& shape, DType dtype = DType::kFloat32, bool beside = false) {
  const Tensor all(cpu(), Shape{shape.elements() + 1}, dtype);
  cpu().fill(all, 0.0);
  return all.slice(beside ? 1 : 0, shape);
}

const Window2d kWindow{.kernel = {3, 3}, .padding = {1, 1}};
const Shape kX{2, 4, 4, 8}, kWeight{8, 3, 3, 8}, kChannels{8};

/// The calls with their tensors; one of them starts beside a multiple of 16 bytes, if `beside` says
/// so.
bool convolution(Library& library, DType dtype = DType::kFloat32, bool bias = false,
                 bool beside = false) {
  return library.cudnn->conv2d_forward({.x = zeros(kX, dtype, beside),
                                        .weight = zeros(kWeight, dtype),
                                        .bias = bias ? zeros(kChannels) : Tensor(),
                                        .y = zeros(kX, dtype),
                                        .window = kWindow},
                                       nullptr);
}

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

TEST_CASE("cudnn/library: attention puts every tensor where it belongs, masks and groups too") {
  const std::int64_t n = 2, heads = 4, kv_heads = 2, places = 10, depth = 8;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const bool masked : {false, true}) {
      Library library;
      const Tensor one = filled({n, places, (heads + 2 * kv_heads) * depth}, dtype, 1),
                   y = empty({n, places, heads * depth}, dtype),
                   lse(cpu(), {n, heads, places}, DType::kFloat32),
                   mask = filled({places, places}, dtype, 2);
      // Query 3 sees nothing.
      cpu().fill(mask.slice(3 * places, {places}), -INFINITY);
      const auto part = [&](const Tensor& x, std::int64_t first, std::int64_t count) {
        return View(x).split(2, depth).slice(2, first, count).transposed(1, 2);
      };
      const auto set_inputs = [&](Attention& args, const Tensor& x, const Tensor& given) {
        args.q = part(x, 0, heads), args.k = part(x, heads, kv_heads);
        args.v = part(x, heads + kv_heads, kv_heads);
        args.causal = !masked, args.scale = 0.25;
        if (masked) args.mask = View(given, {n, heads, places, places}, {0, 0, places, 1}, 0);
      };
      AttentionForward forward;
      set_inputs(forward, one, mask);
      forward.y = part(y, 0, heads), forward.lse = lse;
      REQUIRE(library.cudnn->attention_forward(forward, nullptr));
      AttentionForward wide;
      const Tensor wide_one = widened(one), wide_y = empty(y.shape(), DType::kFloat32),
                   wide_lse(cpu(), lse.shape(), DType::kFloat32), wide_mask = widened(mask);
      set_inputs(wide, wide_one, wide_mask);
      wide.y = part(wide_y, 0, heads), wide.lse = wide_lse;
      cpu().attention_forward(wide);
      check_same(y, wide_y, "y");
      CHECK(std::isinf(lse.data<float>()[3]) == masked);

      AttentionBackward back, wide_back;
      const Tensor dy = filled(y.shape(), dtype, 3), d = empty(one.shape(), dtype),
                   wide_d = empty(one.shape(), DType::kFloat32), wide_dy = widened(dy);
      set_inputs(back, one, mask), set_inputs(wide_back, wide_one, wide_mask);
      back.y = forward.y, back.dy = part(dy, 0, heads), back.lse = lse;
      wide_back.y = wide.y, wide_back.dy = part(wide_dy, 0, heads), wide_back.lse = wide_lse;
      back.dq = part(d, 0, heads), back.dk = part(d, heads, kv_heads);
      back.dv = part(d, heads + kv_heads, kv_heads);
      wide_back.dq = part(wide_d, 0, heads), wide_back.dk = part(wide_d, heads, kv_heads);
      wide_back.dv = part(wide_d, heads + kv_heads, kv_heads);
      REQUIRE(library.cudnn->attention_backward(back, nullptr));
      cpu().attention_backward(wide_back);
      check_within(2 * rounding(dtype), d, wide_d, "gradients");
      CHECK(library.graphs->planned.size() == 2);

      // Dropout, other types and masks that repeat are the own kernels'.
      forward.p = 0.1;
      CHECK_FALSE(library.cudnn->attention_forward(forward, nullptr));
      CHECK_FALSE(library.cudnn->attention_forward(wide, nullptr));
      forward.p = 0.0;
      forward.mask = View(mask, {n, heads, places, places}, {0, 0, 0, 1}, 0);
      CHECK_FALSE(library.cudnn->attention_forward(forward, nullptr));
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

TEST_CASE("cudnn/rules: what cannot run for its alignment is not planned") {
  Library library;
  CHECK_FALSE(convolution(library, DType::kFloat32, false, true));
  CHECK_FALSE(convolution(library, DType::kFloat16, true, true));
  const Tensor beside = zeros(kX, DType::kFloat32, true), x = zeros(kX), weight = zeros(kWeight);
  CHECK_FALSE(library.cudnn->conv2d_backward_data(
      {.dy = x, .weight = weight, .dx = beside, .window = kWindow}, nullptr));
  for (const bool accumulate : {false, true}) {
    CHECK_FALSE(library.cudnn->conv2d_backward_weights(
        {.x = x, .dy = beside, .dweight = weight, .window = kWindow, .accumulate = accumulate},
        nullptr));
  }
  CHECK_FALSE(library.cudnn->conv2d_backward_weights(
      {.x = x, .dy = x, .dweight = zeros(kWeight, DType::kFloat32, true), .window = kWindow},
      nullptr));
  CHECK(library.graphs->planned.empty());
  CHECK(library.graphs->finalised == 0);
  // A gradient that is added to goes through scratch memory: how it starts does not matter.
  CHECK(library.cudnn->conv2d_backward_weights({.x = x,
                                                .dy = x,
                                                .dweight = zeros(kWeight, DType::kFloat32, true),
                                                .window = kWindow,
                                                .accumulate = true},
                                               nullptr));
}

TEST_CASE("cudnn/rules: benchmark runs eight candidates at most, and a slow one once or twice") {
  Library library({.benchmark = true});
  library.graphs->candidates = 30;
  library.graphs->times.assign(30, 0.5);
  library.graphs->times[0] = 2.0;  // the best so far
  // 3 times that: dropped at its second run, the first without loading its kernels
  library.graphs->times[1] = 6.1;
  library.graphs->times[2] = 100.0;  // dropped at its first
  library.graphs->times[3] = 5.9;
  library.graphs->times[4] = 1.0;
  library.graphs->times[8] = 0.1;  // nobody looks
  CHECK(convolution(library));
  std::vector<int> wanted(4, 0);
  const auto then = [&](int candidate, int runs) {
    wanted.insert(wanted.end(), static_cast<std::size_t>(runs), candidate);
  };
  then(1, 2);
  then(2, 1);
  for (int candidate = 3; candidate < 8; ++candidate) then(candidate, 4);
  then(5, 1);  // the first of the fastest does the work
  CHECK(library.graphs->runs == wanted);
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
        const Tensor added = widened(from);
        bool same = true;
        for (std::int64_t i = 0; i < n; ++i)
          same = same && to.data<float>()[i] == added.data<float>()[i] + number(i + other, 2);
        CHECK(same);
      }
    }
  }
}

}  // namespace starling::testing
