#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/libraries/cudnn.h"
#include "tests/cudnn/stand_in.h"
#include "tests/support/errors.h"
#include "tests/support/stderr_lines.h"

// Which graphs are planned, how many engines are tried, and when the library stops asking.
namespace starling::testing {

namespace {

using cuda::GraphSpec;
using test::contains;

/// Zeros that start on 16 bytes, or beside it.
Tensor zeros(const Shape& shape, DType dtype = DType::kFloat32, bool beside = false) {
  const Tensor all(cpu(), Shape{shape.elements() + 1}, dtype);
  cpu().fill(all, 0.0);
  return all.slice(beside ? 1 : 0, shape);
}

const Window2d kWindow{.kernel = {3, 3}, .padding = {1, 1}};
const Shape kX{2, 4, 4, 8}, kWeight{8, 3, 3, 8}, kChannels{8};

/// The calls with their tensors; one of them starts beside a multiple of 16 bytes, if `beside` says so.
bool convolution(Library& library, DType dtype = DType::kFloat32, bool bias = false, bool beside = false) {
  return library.cudnn->conv2d_forward({.x = zeros(kX, dtype, beside),
                                        .weight = zeros(kWeight, dtype),
                                        .bias = bias ? zeros(kChannels) : Tensor(),
                                        .y = zeros(kX, dtype),
                                        .window = kWindow},
                                       nullptr);
}
bool batch_norm(Library& library, std::int64_t images = 2, bool beside = false) {
  const Shape shape{images, 4, 4, 8};
  return library.cudnn->batch_norm_forward({.x = zeros(shape),
                                            .gamma = zeros(kChannels),
                                            .beta = zeros(kChannels),
                                            .y = zeros(shape, DType::kFloat32, beside),
                                            .saved_mean = zeros(kChannels),
                                            .saved_inv_std = zeros(kChannels)},
                                           nullptr);
}

}  // namespace

TEST_CASE("cudnn/rules: what cannot run for its alignment is not planned") {
  Library library;
  CHECK_FALSE(convolution(library, DType::kFloat32, false, true));
  CHECK_FALSE(convolution(library, DType::kFloat16, true, true));
  CHECK_FALSE(batch_norm(library, 2, true));
  const Tensor beside = zeros(kX, DType::kFloat32, true), x = zeros(kX), weight = zeros(kWeight), c = zeros(kChannels);
  CHECK_FALSE(library.cudnn->conv2d_backward_data({.dy = x, .weight = weight, .dx = beside, .window = kWindow}, nullptr));
  for (const bool accumulate : {false, true}) {
    CHECK_FALSE(library.cudnn->conv2d_backward_weights(
        {.x = x, .dy = beside, .dweight = weight, .window = kWindow, .accumulate = accumulate}, nullptr));
    CHECK_FALSE(library.cudnn->batch_norm_backward({.x = x,
                                                    .dy = beside,
                                                    .gamma = c,
                                                    .saved_mean = c,
                                                    .saved_inv_std = c,
                                                    .dx = zeros(kX),
                                                    .dgamma = c,
                                                    .dbeta = c,
                                                    .accumulate = accumulate},
                                                   nullptr));
  }
  CHECK_FALSE(library.cudnn->conv2d_backward_weights({.x = x, .dy = x, .dweight = zeros(kWeight, DType::kFloat32, true), .window = kWindow},
                                                     nullptr));
  // Nor is a batch norm whose parameters no graph takes.
  CHECK_FALSE(library.cudnn->batch_norm_forward({.x = x,
                                                 .gamma = zeros(kChannels, DType::kFloat64),
                                                 .beta = c,
                                                 .y = zeros(kX),
                                                 .saved_mean = zeros(kChannels),
                                                 .saved_inv_std = zeros(kChannels)},
                                                nullptr));
  CHECK(library.graphs->planned.empty());
  CHECK(library.graphs->finalised == 0);
  // A gradient that is added to goes through scratch memory: how it starts does not matter.
  CHECK(library.cudnn->conv2d_backward_weights(
      {.x = x, .dy = x, .dweight = zeros(kWeight, DType::kFloat32, true), .window = kWindow, .accumulate = true}, nullptr));
}

TEST_CASE("cudnn/rules: where nothing can be compiled, that is found out once, said in one line, and convolutions go on") {
  Library library;
  library.graphs->candidates = 30;
  library.graphs->why_not = [](const GraphSpec& spec, int candidate) {
    // The number differs, the status does not.
    return cuda::compiled_at_run_time(spec) ? "engine " + std::to_string(candidate) + ", and code: CUDNN_STATUS_INTERNAL_ERROR" : "";
  };
  std::vector<std::string> said = test::stderr_lines([&] { CHECK_FALSE(batch_norm(library)); });
  CHECK(library.graphs->finalised == 3 + 1);  // and one of the smallest graph
  CHECK(library.graphs->planned.size() == 2);
  REQUIRE(said.size() == 1);
  CHECK(contains(said[0], "nothing can be compiled at run time (engine 2, and code: CUDNN_STATUS_INTERNAL_ERROR)"));
  CHECK(contains(said[0], "libnvrtc"));
  said = test::stderr_lines([&] {
    for (const std::int64_t images : {2, 3, 4}) CHECK_FALSE(batch_norm(library, images));
    CHECK(convolution(library));
    CHECK(convolution(library, DType::kBFloat16, true));  // its bias by a pass of its own
  });
  CHECK(said.empty());
  CHECK(library.graphs->finalised == 4 + 2);
  CHECK(library.graphs->planned.size() == 2 + 2);
}

TEST_CASE("cudnn/rules: a graph that cannot be compiled where others can has an own kernel, the others have cuDNN's") {
  for (const bool first : {true, false}) {
    Library library;
    library.graphs->candidates = 30;
    library.graphs->why_not = [](const GraphSpec& spec, int) { return spec.x[0] == 3 ? "CUDNN_STATUS_INTERNAL_ERROR" : ""; };
    if (!first) CHECK(batch_norm(library, 2));
    const int before = library.graphs->finalised;
    const std::vector<std::string> said = test::stderr_lines([&] {
      for (int i = 0; i < 2; ++i) CHECK_FALSE(batch_norm(library, 3));
    });
    CHECK(library.graphs->finalised - before == 3 + (first ? 1 : 0));
    REQUIRE(said.size() == 1);
    CHECK(contains(said[0], "batch norm forward fp32 3x4x4x8: no engine"));
    CHECK(batch_norm(library, 4));
  }
}

TEST_CASE("cudnn/rules: STARLING_CUDNN_COMPILED=0 asks for nothing that is compiled") {
  setenv("STARLING_CUDNN_COMPILED", "0", 1);
  Library library;
  unsetenv("STARLING_CUDNN_COMPILED");
  CHECK_FALSE(batch_norm(library));
  CHECK(convolution(library, DType::kBFloat16, true));
  CHECK(library.graphs->planned.size() == 1);
  CHECK(library.graphs->planned.begin()->first.kind == cuda::GraphKind::kConvolution);
}

TEST_CASE("cudnn/rules: three failures with one status are enough, but not of engines that do not take the graph") {
  const auto attempts = [](const std::function<std::string(const GraphSpec&, int)>& why_not, bool found) {
    Library library;
    library.graphs->candidates = 30;
    library.graphs->why_not = why_not;
    test::stderr_lines([&] { CHECK(convolution(library) == found); });
    return library.graphs->finalised;
  };
  CHECK(attempts([](const GraphSpec&, int) { return "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED"; }, false) == 3);
  CHECK(attempts([](const GraphSpec&, int) { return "CUDNN_STATUS_NOT_SUPPORTED_SHAPE"; }, false) == 30);
  CHECK(attempts([](const GraphSpec&, int candidate) { return candidate < 20 ? "CUDNN_STATUS_NOT_SUPPORTED" : ""; }, true) == 21);
  // Not in a row: as many tries as it takes.
  CHECK(attempts([](const GraphSpec&, int i) { return i == 9 ? "" : i % 2 ? "CUDNN_STATUS_A" : "CUDNN_STATUS_B"; }, true) == 10);
}

TEST_CASE("cudnn/rules: benchmark runs eight candidates at most, and a slow one once or twice") {
  Library library({.benchmark = true});
  library.graphs->candidates = 30;
  library.graphs->times.assign(30, 0.5);
  library.graphs->times[0] = 2.0;    // the best so far
  library.graphs->times[1] = 6.1;    // 3 times that: dropped at its second run, the first without loading its kernels
  library.graphs->times[2] = 100.0;  // dropped at its first
  library.graphs->times[3] = 5.9;
  library.graphs->times[4] = 1.0;
  library.graphs->times[8] = 0.1;  // nobody looks
  CHECK(convolution(library));
  std::vector<int> wanted(4, 0);
  const auto then = [&](int candidate, int runs) { wanted.insert(wanted.end(), static_cast<std::size_t>(runs), candidate); };
  then(1, 2);
  then(2, 1);
  for (int candidate = 3; candidate < 8; ++candidate) then(candidate, 4);
  then(5, 1);  // the first of the fastest does the work
  CHECK(library.graphs->runs == wanted);
  // What is compiled at run time is not compared.
  library.graphs->runs.clear();
  CHECK(convolution(library, DType::kBFloat16, true));
  CHECK(batch_norm(library));
  CHECK(library.graphs->runs == std::vector<int>{0, 0});
}

}  // namespace starling::testing
