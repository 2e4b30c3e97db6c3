#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tests/cuda/nccl_world.h"
#include "tests/cuda/race_training.h"

namespace starling::tests {

/// The record of training steps whose buckets go by NCCL, for the race checker.
inline std::vector<cuda::shim::Call> record_by_nccl(const TrainingSettings& settings, int ranks, int steps) {
  FakeNccl nccl(ranks);
  return record_training({settings, ranks, steps}, [&](std::unique_ptr<Transport> control, Backend& backend) {
    const int rank = control->rank();
    return make_nccl_transport(std::move(control), backend, nccl.open(rank), {20.0, 0, 0.01});
  });
}

}  // namespace starling::tests
