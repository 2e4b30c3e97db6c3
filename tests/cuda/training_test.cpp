#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "tests/cuda/support.h"
#include "tests/cuda/training_job.h"

namespace starling::tests {
namespace {

double furthest(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double result = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    result = d < 1e300 ? std::max(result, d) : 1e300;
  }
  return result;
}

}  // namespace

TEST_CASE("cuda/training: four steps equal those of the CPU") {
  TrainingSettings settings;
  settings.dtype = settings.compute = DType::kFloat64;
  const auto transport = make_single_transport();
  const auto train = [&](Backend& backend) {
    TrainingJob job(backend, *transport, settings);
    const std::vector<double> before = job.numbers();
    for (int i = 0; i < 4; ++i) job.step();
    job.finish();
    const std::vector<double> after = job.numbers();
    CHECK(furthest(before, after) > 0.01);
    return after;
  };
  for (const bool in_backward : {true, false}) {
    settings.in_backward = in_backward;
    settings.clip.norm = in_backward ? 0.0 : 0.5;
    CpuBackend cpu(1);
    CHECK(furthest(train(gpu()), train(cpu)) < 1e-9);
  }
}

}  // namespace starling::tests
