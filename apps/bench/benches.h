#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/training/output/arguments.h"
#include "kernels/optimizer.h"

// The benchmarks of starling-bench, a source file each; single operations: tests/operations.
namespace starling {

/// `starling-bench step`: whole training steps of a model on one rank, with a resident batch:
/// median time, samples/s, the ratio to the floor, peak memory, allocations in steady state, and
/// the time of each kind of operation (in steps in which the host waits after each).
Command add_step_bench(CLI::App& app);
/// `mpirun -n 2 starling-bench exchange`: one pair's exchange and mixed update of a bucket,
/// alternating in one run: by reading the neighbour's parameters directly, and by MPI_Sendrecv and
/// the same update kernel; and the update alone. Times are the slowest rank's.
Command add_exchange_bench(CLI::App& app);
/// `starling-bench floor`: the least time of a step, from its shapes and a device's peak rates.
Command add_floor_bench(CLI::App& app);
/// `starling-bench pictures`: random crops of pictures on one core, and decoding them whole.
Command add_pictures_bench(CLI::App& app);
/// `starling-bench augment`: an image's way from bytes into the batch, for several augmentations.
Command add_augment_bench(CLI::App& app);

/// A rule with its defaults; Error(kUsage) for an unknown name.
std::unique_ptr<OptimizerRule> make_bench_rule(const std::string& type);

inline double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

inline double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace starling
