#pragma once

#include <cstdint>
#include <string>

namespace starling {

/// Times whole training steps (forward, backward, fused update) of a model on one rank with a batch that lies in memory.
struct StepBench {
  std::string model = "resnet20", optimizer = "accum_adamw", stem, precision = "fp32";
  std::int64_t batch = 128, image = 32, classes = 10, steps = 20;
  int threads = 1;
  bool json = false;
};

/// Prints median step time, images/s, the convolution-only bound of the same run (the model's convolutions alone, as bare oneDNN primitives
/// on resident data, alternating with the steps), the ratio to it, the share of each operation, allocations in steady state, and peak
/// memory.
int bench_step(const StepBench& settings);

}  // namespace starling
