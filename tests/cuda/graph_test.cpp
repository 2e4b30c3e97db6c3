#include <doctest/doctest.h>

#include <vector>

#include "core/error.h"
#include "core/operations/map.h"
#include "tests/cuda/support.h"

// A graph on the device under test. That whole trainings have the bits of steps that are issued is
// in graph_training_test.cpp.
namespace starling::tests {

TEST_CASE(
    "cuda/graph: streams that fork and join, eager work before and behind, and a capture that is "
    "given up") {
  Backend& backend = gpu();
  const Tensor x(backend, Shape{4096}, DType::kFloat32), y(backend, x.shape(), x.dtype()),
      z(backend, x.shape(), x.dtype());
  backend.fill(x, 1.0);
  std::vector<float> host(4096);
  REQUIRE(backend.begin_capture({}));
  CHECK_THROWS_AS(backend.copy_to_host(x, host.data()), Error);
  backend.abandon_capture();
  const auto on = [&](StreamKind stream, Event after, const auto& work) {
    const StreamScope scope(backend, stream);
    backend.wait(after);
    work();
    return backend.record();
  };
  REQUIRE(backend.begin_capture({}));
  const Event begun = backend.record();
  {
    const StreamScope scope(backend, StreamKind::kUpload);
    (void)backend.record();  // a stream that takes no part is used on
  }
  const Event doubled = on(StreamKind::kUpdate, begun, [&] {
    backend.map({MapFunction::kAdd, x, x, y});
  });
  const Event tripled = on(StreamKind::kCommunication, doubled, [&] {
    backend.map({MapFunction::kAdd, x, y, z});
  });
  backend.wait(tripled);
  backend.map({MapFunction::kAdd, y, z, x});
  const auto graph = backend.end_capture();
  for (int launch = 0; launch < 3; ++launch) graph->launch({});
  backend.map({MapFunction::kAdd, x, x, x});
  CHECK(host_copy(x) == std::vector<float>(4096, 250.0f));  // 5 · 5 · 5 · 2
}

}  // namespace starling::tests
