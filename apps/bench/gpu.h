#pragma once

#include <cstdint>
#include <string>

namespace starling {

/// Whole training steps (forward, backward, fused update) of a model on one GPU, on a batch that lies in its memory.
struct GpuStepBench {
  std::string model = "resnet50", optimizer = "adamw", stem, precision = "bf16";
  std::int64_t batch = 256, image = 224, classes = 1000, steps = 40;
  bool tf32 = false, cudnn_benchmark = false, json = false;
  bool plain = false;  ///< without scheduler and gossip: one update of each bucket after the backward pass, on the compute stream
};
/// Prints median step time, images/s, the share of the floor (`starling-bench floor`), peak memory, allocations in steady state, and
/// the time of each kind of operation (from steps in which the host waits after each).
int bench_gpu_step(const GpuStepBench& settings);

/// The fused update of one bucket of fp32 parameters with one neighbour mixed in, AdamW and AccumAdamW, against copies that move as many
/// bytes, 32 a parameter, in turns.
int bench_gpu_update(std::int64_t parameters, int repeats, bool json);

}  // namespace starling
