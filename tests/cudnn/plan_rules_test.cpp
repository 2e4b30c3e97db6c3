#include <doctest/doctest.h>

#include <vector>

#include "core/operations/convolutions.h"
#include "kernels/cuda/libraries/cudnn.h"
#include "tests/cudnn/library.h"

// Which graphs are planned, and how many engines are tried.
namespace starling::testing {

namespace {

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

}  // namespace starling::testing
