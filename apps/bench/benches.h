#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/scheduler.h"

// starling-bench's benchmarks, a source file each.
namespace starling {

/// What a benchmark trains.
struct ModelBench {
  std::string model, optimizer;  ///< a type, or the config's object; of the optimizer the type
  std::int64_t image = 32, classes = 10, steps = 20;
  std::int64_t tokens = 0;  ///< of a sample of a language model; 0: samples are images
  std::string stem = {};
};

/// Whole training steps (forward, backward, fused update) of a model on one rank, with a batch that
/// lies in memory.
struct StepBench : ModelBench {
  std::string precision;
  std::int64_t batch = 0;
  int threads = 1;
  bool json = false;
  // Of a GPU alone; `plain`: without scheduler and gossip, one update of each bucket after the
  // backward pass.
  bool tf32 = false, cudnn_benchmark = false, plain = false;
};

/// Prints median step time, images/s, the convolution-only bound of the same run (the model's
/// convolutions alone, as bare oneDNN primitives on resident data, alternating with the steps), the
/// ratio to it, the share of each operation, allocations in steady state, and peak memory.
int bench_step(const StepBench& settings);

struct KernelsBench {
  std::string device = "cpu", precision = "fp32";
  std::int64_t batch = 0;  ///< 0: by the device
  int threads = 1, repeats = 20;
  bool json = false;
};

/// `starling-bench kernels`: the rows of the operation table (tests/operations/operation_table.h)
/// at ResNet-20's shapes, forward and backward. Operations that only move memory are set against a
/// copy in the same run, convolutions and matrix products against the fastest product of the run.
/// Prints a table, or one JSON object. Returns the exit status.
int bench_kernels(const KernelsBench& settings);

struct FunctionsBench {
  std::string device = "cpu", precision = "fp32";
  std::string only;  ///< a part of the functions' names; empty: all
  int threads = 1, repeats = 7;
  bool json = false;
};

/// `starling-bench functions`: functions of tensors (layers/functions.h), forward and backward,
/// against a copy of the bytes that must be moved at least, or against a large product. Prints a
/// table, or one JSON object. Returns the exit status.
int bench_functions(const FunctionsBench& settings);

/// `starling-bench update`: the fused update kernel (mix + scale + decay + rule) of one bucket of
/// `parameters` fp32 numbers on `threads` cores, against plain copies that move as many bytes as
/// AdamW with mixing does (32 per parameter), measured alternately in the same run. Prints a table,
/// or one JSON object. Returns the exit status.
int bench_update(std::int64_t parameters, int threads, int repeats, bool json);

struct ExchangeBench {
  double mb = 25.0;  ///< MiB of the bucket
  std::string optimizer = "adamw";
  int threads = 1, repeats = 30;
  int buckets = 1;  ///< taken in turn: many find the caches cold, one finds them as it left them
  bool json = false;
};

/// `mpirun -n 2 starling-bench exchange`: one pair's exchange and mixed update of a bucket,
/// alternating in one run: by reading the neighbour's parameters where they lie, by MPI_Sendrecv
/// and the same update kernel, by our own transport over MPI; and the update alone, and with a
/// local buffer mixed in. Times are the slowest rank's. Prints a table, or one JSON object. Returns
/// the exit status.
int bench_exchange(const ExchangeBench& settings);

/// The host's time in bucket scheduler and algorithms: everything that they call does nothing.
struct SchedulerBench : ModelBench {
  std::string topology;
  double bucket_mb = 25.0;
  int ranks = 8;
  bool json = false;
};

/// Prints for gossip and all-reduce the microseconds of host time that BucketScheduler and
/// Algorithm take in a step over the model's buckets (median, and where they go), against the goal,
/// with warm caches and after other memory has been read; and how often they ask the backend and
/// the heap for memory. The backend's operations do nothing, and the transport's exchanges are done
/// at once.
int bench_scheduler(const SchedulerBench& settings);

/// The same on one GPU: prints median step time, images/s, the share of the floor (`starling-bench
/// floor`), peak memory, allocations in steady state, and the time of each kind of operation (from
/// steps in which the host waits after each).
int bench_gpu_step(const StepBench& settings);

/// The fused update of one bucket of fp32 parameters with one neighbour mixed in, AdamW and
/// AccumAdamW, against copies that move as many bytes, 32 a parameter, in turns.
int bench_gpu_update(std::int64_t parameters, int repeats, bool json);

/// `starling-bench floor`: the bytes and the arithmetic of a training step, from shapes alone, over
/// a device's ceilings. Runs anywhere.
struct FloorBench {
  /// A config's path; empty: the rows that docs/gpu.md sets goals for
  std::string config;
  std::vector<std::string> settings;     ///< as starling-train --set
  std::int64_t batch = 0;                ///< 0: the config's
  std::string precision;                 ///< empty: the config's
  std::string on = "H200";               ///< of kCeilings
  double bandwidth = 0.0, tflops = 0.0;  ///< TB/s and TFLOP/s; 0: that device's
  int ranks = 1;
  bool json = false;
};

/// Prints a table, or JSON. Returns the exit status.
int bench_floor(const FloorBench& settings);

/// Reading pictures on one core, from memory.
struct PicturesBench {
  std::string folder;  ///< with a folder for each class, as data.path/train; or shards
  std::int64_t pictures = 200;
  int repeats = 5;
  bool json = false;
};

/// Prints the time of a random crop of 224×224 against that in which the library decodes the whole
/// picture, in turns. Returns the exit status.
int bench_pictures(const PicturesBench& settings);
/// Prints the times of a folder of shards: of opening it and of crops, and how far raw pixels are
/// from copying as many bytes.
int bench_shards(const PicturesBench& settings);

/// Random changes of images that lie in memory, on one core.
struct AugmentBench {
  std::int64_t size = 32;  ///< pixels, both ways
  int repeats = 15;
  bool json = false;
};

/// Prints the microseconds an image from its bytes to its place in a batch, for ways to augment, in
/// turns. Returns the exit status.
int bench_augment(const AugmentBench& settings);

}  // namespace starling
