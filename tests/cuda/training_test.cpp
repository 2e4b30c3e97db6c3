#include <doctest/doctest.h>

#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "tests/cuda/support.h"
#include "tests/cuda/training_job.h"
#include "tests/support/numbers_of_ranks.h"

namespace starling::tests {

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
    CHECK(test::largest_difference({before}, {after}) > 0.01);
    return after;
  };
  for (const bool in_backward : {true, false}) {
    settings.in_backward = in_backward;
    settings.clip.norm = in_backward ? 0.0 : 0.5;
    CpuBackend cpu(1);
    CHECK(test::largest_difference({train(gpu())}, {train(cpu)}) < 1e-9);
  }
}

}  // namespace starling::tests
