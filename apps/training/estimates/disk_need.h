#pragma once

#include <string>

#include "apps/training/config/train_config.h"

namespace starling {

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
