#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/training/config/train_config.h"

namespace starling {

/// Bytes that a rank takes on its device, by shapes: without CUDA's own memory and workspaces.
struct MemoryNeed {
  double parameters = 0.0, gradients = 0.0, states = 0.0;
  double frozen = 0.0;   ///< parameters that are not trained; on CPUs a host's ranks share a base's
  double low = 0.0;      ///< bf16 or fp16 copies of the parameters
  double receive = 0.0;  ///< what neighbours send
  double average = 0.0;  ///< `ema`, `lookahead`
  double sync = 0.0;     ///< what the algorithm keeps from step to step
  double activations = 0.0, batches = 0.0;
  double tests = 0.0;  ///< what a test counts of classes
  double cache = 0.0;  ///< samples of `data.cache`, which lie in host memory: 0 on a GPU
  /// Each under the name that --dry-run gives it.
  std::vector<std::pair<std::string, double>> parts() const;
  double total() const;
};
MemoryNeed memory_need(const TrainConfig& config, const RankLayout& site, const ShapeTrace& trace);

/// A line if this host has less memory free than its ranks take, with what takes less; else empty.
std::string memory_warning(const TrainConfig& config, const RankLayout& site,
                           const ShapeTrace& trace);

/// What --dry-run prints, what matters most last, as a terminal shows the end of a text: data,
/// length, topology, parameters, buckets, memory a rank. With `device` cuda also which rank takes
/// which GPU, NCCL's communicators, and the floor of a step. `network`: see outer_steps_text().
std::string dry_run_report(const TrainConfig& config, const RankLayout& site,
                           const ShapeTrace& trace, const std::string& network = {});
/// The same with --json: the resolved config, the numbers (sizes in bytes), and the lines.
std::string dry_run_json(const TrainConfig& config, const RankLayout& site, const ShapeTrace& trace,
                         const std::string& network = {});
/// One or two lines for the start of a run: model, buckets, algorithm, topology.
std::string run_headline(const TrainConfig& config, const RankLayout& site,
                         const ShapeTrace& trace);
/// A line for each period of the algorithm that does not divide the run's steps; else empty.
std::string period_text(const TrainConfig& config, const RankLayout& site);
/// "1.5 MiB"
std::string size_text(double bytes);

/// Bytes that a run takes on the disk, as far as shapes tell: tensors, without the files' headers.
struct DiskNeed {
  double model = 0.0;       ///< model.safetensors
  double checkpoint = 0.0;  ///< all ranks' files of one
  double best = 0.0;        ///< checkpoints/best, with its model
  double kept = 0.0;        ///< what is there at the end: the newest checkpoints, best, the models
  double most = 0.0;        ///< while one more is written
};
DiskNeed disk_need(const TrainConfig& config, const RankLayout& site, const ShapeTrace& trace);

/// A line of --dry-run.
std::string disk_text(const TrainConfig& config, const RankLayout& site, const ShapeTrace& trace);

}  // namespace starling
