#include <doctest/doctest.h>

#include <string>

#include "core/error.h"
#include "core/forwarding_backend.h"
#include "core/operations/copying.h"
#include "core/operations/norms.h"
#include "core/operations/pictures.h"
#include "core/operations/products.h"
#include "core/operations/reduce.h"
#include "tests/core/host_backend.h"
#include "tests/support/errors.h"

using namespace starling;

TEST_CASE(
    "core/operations: one that a backend lacks is an error with the operation's and the backend's "
    "name") {
  test::HostBackend backend;
  ForwardingBackend outer(backend);
  const Tensor x(backend, {2, 3}, DType::kFloat32), y(backend, {3}, DType::kFloat32);
  for (Backend* asked : {static_cast<Backend*>(&backend), static_cast<Backend*>(&outer)}) {
    const std::string text = test::error_of(ExitCode::kUsage, [&] { asked->reduce({x, y}); });
    CHECK(test::contains(text, "reduce"));
    CHECK(test::contains(text, "\"test\""));
  }
}

TEST_CASE(
    "core/operations: bytes and arithmetic are those of the tensors that are read and written") {
  const auto meta = make_meta_backend();
  const auto tensor = [&](Shape shape, DType dtype = DType::kFloat32) {
    return Tensor(*meta, shape, dtype);
  };
  const Tensor a = tensor({6, 4}), b = tensor({4, 5}), c = tensor({6, 5});
  const Accesses product = Matmul{.a = a, .b = b, .c = c}.accesses();
  CHECK(product.bytes == 4 * (24 + 20 + 30));
  CHECK(product.flops == 2.0 * 6 * 5 * 4);
  CHECK(Matmul{.a = a, .b = b, .c = c, .accumulate = true}.accesses().bytes ==
        4 * (24 + 20 + 2 * 30));
  // Of each second pixel and of 3 channels, 2 x 2 pixels are read; all 5 channels are written.
  using Dimension = StridedCopy::Dimension;
  const Accesses part =
      StridedCopy{.x = tensor({1, 4, 4, 3}),
                  .y = tensor({1, 2, 2, 5}),
                  .dimensions = {Dimension::whole(2, 24), Dimension::whole(2, 6),
                                 Dimension{.size = 5, .begin = 1, .count = 3, .stride = 1}},
                  .rank = 3}
          .accesses();
  CHECK(part.bytes == 4 * (4 * 3 + 4 * 5));
  CHECK(part.reads.size() == 1);
  CHECK(part.writes.size() == 1);
  // A counter is changed, but its bytes do not count.
  const Tensor v = tensor({8}), count = tensor({}, DType::kInt64);
  const Accesses finish =
      BatchNormFinish{.sum = v, .square_sum = v, .batches_tracked = count, .saved_mean = v}
          .accesses();
  CHECK(finish.bytes == 3 * 4 * 8);
  CHECK(finish.reads.size() == 3);
  CHECK(finish.writes.size() == 2);
}

TEST_CASE("core/operations: pixels are changed in pictures of up to 2^31 - 1 of them") {
  const auto meta = make_meta_backend();
  const auto takes = [&](std::int64_t height, std::int64_t width) {
    const Tensor x(*meta, {1, height, width, 1}, DType::kUInt8),
        steps(*meta, {1, 1, kPixelStepNumbers}, DType::kInt32);
    try {
      check(ChangePixels{.x = x, .steps = steps, .scratch = x, .y = x});
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  const std::int64_t most = (std::int64_t{1} << 31) - 1;
  CHECK(takes(1, most));
  CHECK(takes(most, 1));
  CHECK(!takes(1, most + 1));
  CHECK(!takes(most + 1, 1));
}
