#pragma once

#include "comm/planner/network_model.h"
#include "comm/planner/predict.h"
#include "tests/topology/support.h"

namespace starling::tests {

/// n hosts of one rank, `gigabits` links without latency, an update that costs nothing.
inline NetworkModel hosts(int n, double gigabits) {
  NetworkModel network;
  network.ranks = n;
  network.between = {0.0, gigabits * 1.25e8};
  network.memory_bandwidth = 1e18;
  return network;
}

/// All gradients ready at the very end: nothing to overlap an all-reduce with.
inline StepModel late_step(double bytes, double seconds) {
  StepModel step;
  step.forward = seconds / 2;
  step.backward = seconds / 2;
  for (int i = 0; i < 8; ++i) step.tensors.push_back({bytes / 8, 1.0});
  return step;
}

}  // namespace starling::tests
