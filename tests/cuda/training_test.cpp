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

TEST_CASE(
    "cuda/training: from the third step on nothing is allocated, and the host waits for the loss "
    "of the step before at most") {
  const TrainingSettings bf16{.compute = DType::kBFloat16},
      fp16{.compute = DType::kFloat16, .in_backward = false, .check_overflow = true};
  for (const TrainingSettings& settings : {TrainingSettings(), bf16, fp16, in_fp16({})}) {
    CAPTURE(name_of(settings.compute));
    const auto transport = make_single_transport();
    TrainingJob job(gpu(), *transport, settings);
    job.step();
    job.step();
    const cuda::RuntimeCounters before = cuda::runtime_counters();
    for (int i = 0; i < 3; ++i) job.step();
    const cuda::RuntimeCounters after = cuda::runtime_counters();
    CHECK(after.device_allocations == before.device_allocations);
    CHECK(after.host_waits - before.host_waits <= (on_gpu() ? 3 : 0));
    CHECK(after.launches > before.launches);
    job.finish();
    for (const double number : job.numbers()) REQUIRE(std::isfinite(number));
  }
}

}  // namespace starling::tests
