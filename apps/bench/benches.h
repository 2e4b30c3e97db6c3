#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/optimizer.h"

// The benchmarks of starling-bench, each in its own source file. Single operations are timed by
// tests/operations.
namespace starling {

/// Whole training steps (forward, backward, fused update) of a model on one rank, with a resident
/// batch.
struct StepBench {
  std::string model = "resnet20";  ///< a type or a config object
  std::string optimizer = "adamw", stem = {}, device = "cpu", precision = "fp32";
  std::int64_t image = 32, classes = 10, steps = 20, batch = 128;
  std::int64_t tokens = 0;  ///< of a language model's sample; 0: samples are images
  int threads = 1;
  bool tf32 = false, cudnn_benchmark = false;  ///< for a GPU only
  bool json = false;
};

/// Prints median step time, samples/s, the ratio to the floor (`starling-bench floor`), peak
/// memory, allocations in steady state, and the time of each kind of operation (in steps in which
/// the host waits after each).
int bench_step(const StepBench& settings);

struct ExchangeBench {
  double mb = 25.0;  ///< bucket size in MiB
  std::string optimizer = "adamw";
  int threads = 1, repeats = 30;
  int buckets = 1;  ///< used in rotation: many buckets mean cold caches, one means warm caches
  bool json = false;
};

/// `mpirun -n 2 starling-bench exchange`: one pair's exchange and mixed update of a bucket,
/// alternating in one run: by reading the neighbour's parameters directly, by MPI_Sendrecv and the
/// same update kernel, and by our transport over MPI; and the update without an exchange, and with
/// a local buffer mixed in. Times are the slowest rank's. Prints a table, or one JSON object.
/// Returns the exit status.
int bench_exchange(const ExchangeBench& settings);

/// `starling-bench floor`: the least time of a training step, from the bytes and arithmetic of its
/// shapes and a device's peak rates. Needs no device.
struct FloorBench {
  /// A config's path; empty: the models that docs/gpu.md sets goals for
  std::string config;
  std::vector<std::string> settings;     ///< as starling-train --set
  std::int64_t batch = 0;                ///< 0: the config's
  std::string precision;                 ///< empty: the config's
  std::string on = "H200";               ///< a name in kCeilings
  double bandwidth = 0.0, tflops = 0.0;  ///< TB/s and TFLOP/s; 0: those of `on`
  int ranks = 1;
  bool json = false;
};

/// Prints a table, or JSON. Returns the exit status.
int bench_floor(const FloorBench& settings);

/// Reading pictures from memory on one core.
struct PicturesBench {
  std::string folder;  ///< of class folders, as data.path/train
  std::int64_t pictures = 200;
  int repeats = 5;
  bool json = false;
};

/// Prints the time of a random crop of 224×224, alternating with the time in which the library
/// decodes the whole picture. Returns the exit status.
int bench_pictures(const PicturesBench& settings);

/// Augmentation of images in memory, on one core.
struct AugmentBench {
  std::int64_t size = 32;  ///< height and width in pixels
  int repeats = 15;
  bool json = false;
};

/// Prints the microseconds per image from its bytes to the finished batch, for several
/// augmentations, alternating. Returns the exit status.
int bench_augment(const AugmentBench& settings);

/// A rule with its defaults; Error(kUsage) for an unknown name.
std::unique_ptr<OptimizerRule> make_bench_rule(const std::string& type);

inline double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

inline double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace starling
