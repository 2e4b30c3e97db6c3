#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/scheduler.h"

// The benchmarks of starling-bench, each in its own source file.
namespace starling {

/// The model that a benchmark uses.
struct ModelBench {
  std::string model, optimizer;  ///< model: a type or a config object; optimizer: a type
  std::int64_t image = 32, classes = 10, steps = 20;
  std::int64_t tokens = 0;  ///< of a language model's sample; 0: samples are images
  std::string stem = {};
};

/// Whole training steps (forward, backward, fused update) of a model on one rank, with a resident
/// batch.
struct StepBench : ModelBench {
  std::string precision;
  std::int64_t batch = 0;
  int threads = 1;
  bool json = false;
  // For a GPU only. `plain`: without scheduler and gossip; one update per bucket after the backward
  // pass.
  bool tf32 = false, cudnn_benchmark = false, plain = false;
};

/// Prints median step time, images/s, the time of the model's convolutions alone (as bare oneDNN
/// primitives on resident data, alternating with the steps) and the ratio to it, the share of each
/// operation, allocations in steady state, and peak memory.
int bench_step(const StepBench& settings);

struct KernelsBench {
  std::string device = "cpu", precision = "fp32";
  std::int64_t batch = 0;  ///< 0: depends on the device
  int threads = 1, repeats = 20;
  bool json = false;
};

/// `starling-bench kernels`: the rows of the operation table (tests/operations/operation_table.h)
/// at ResNet-20's shapes, forward and backward. Memory-bound operations are compared with a copy in
/// the same run, convolutions and matrix products with the fastest product of the run. Prints a
/// table, or one JSON object. Returns the exit status.
int bench_kernels(const KernelsBench& settings);

struct FunctionsBench {
  std::string device = "cpu", precision = "fp32";
  std::string only;  ///< part of the functions' names; empty: all
  int threads = 1, repeats = 7;
  bool json = false;
};

/// `starling-bench functions`: functions of tensors (layers/functions.h), forward and backward,
/// compared with copying the bytes that must be moved at least, or with a large product. Prints a
/// table, or one JSON object. Returns the exit status.
int bench_functions(const FunctionsBench& settings);

/// `starling-bench update`: the fused update kernel (mix + scale + decay + rule) of one bucket of
/// `parameters` fp32 numbers on `threads` cores, compared with copies that move as many bytes as
/// AdamW with mixing (32 per parameter), alternating in the same run. Prints a table, or one JSON
/// object. Returns the exit status.
int bench_update(std::int64_t parameters, int threads, int repeats, bool json);

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

/// The host time of bucket scheduler and algorithms, measured with backend and transport that do
/// nothing.
struct SchedulerBench : ModelBench {
  std::string topology;
  double bucket_mb = 25.0;
  int ranks = 8;
  bool json = false;
};

/// Prints for gossip and all-reduce the microseconds of host time that BucketScheduler and
/// Algorithm take in a step over the model's buckets (median, and by part), compared with the goal,
/// with warm caches and after reading other memory; and how many requests they make to the backend
/// and the heap. Backend operations do nothing, and exchanges complete immediately.
int bench_scheduler(const SchedulerBench& settings);

/// bench_step() on one GPU: prints median step time, images/s, the ratio to the floor
/// (`starling-bench floor`), peak memory, allocations in steady state, and the time of each kind of
/// operation (in steps in which the host waits after each).
int bench_gpu_step(const StepBench& settings);

/// The fused update of one bucket of fp32 parameters with one neighbour mixed in, AdamW and
/// AccumAdamW, alternating with copies that move as many bytes, 32 per parameter.
int bench_gpu_update(std::int64_t parameters, int repeats, bool json);

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
  std::string folder;  ///< of class folders, as data.path/train; or of shards
  std::int64_t pictures = 200;
  int repeats = 5;
  bool json = false;
};

/// Prints the time of a random crop of 224×224, alternating with the time in which the library
/// decodes the whole picture. Returns the exit status.
int bench_pictures(const PicturesBench& settings);
/// Prints the time to open a folder of shards and to read crops from it, and how raw pixels compare
/// with copying as many bytes.
int bench_shards(const PicturesBench& settings);

/// Augmentation of images in memory, on one core.
struct AugmentBench {
  std::int64_t size = 32;  ///< height and width in pixels
  int repeats = 15;
  bool json = false;
};

/// Prints the microseconds per image from its bytes to the finished batch, for several
/// augmentations, alternating. Returns the exit status.
int bench_augment(const AugmentBench& settings);

}  // namespace starling
