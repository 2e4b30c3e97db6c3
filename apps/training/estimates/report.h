#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/training/config/train_config.h"

namespace starling {

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
