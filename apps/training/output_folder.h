#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "apps/training/config/options.h"
#include "apps/training/output/output_file.h"

namespace starling {

/// A run's output folder, and whether it is resumed.
struct RunFolder {
  std::string path;
  bool resume = false;
  std::int64_t resume_step = 0;           ///< of the checkpoint, if there is one
  std::shared_ptr<FolderLock> lock = {};  ///< on the rank that prepared it
};

/// Determines the output folder and whether to continue from a checkpoint, creates the folder and
/// locks it. Called on one rank. Error(kUsage), without changes, for a non-empty folder without
/// --resume, and for one that another run is writing; Error(kOutput) if it cannot be written.
/// `from_memory`: the run continues in it without a checkpoint.
RunFolder prepare_output_folder(const TrainOptions& options, bool from_memory = false);

/// The run to resume according to --resume, and the step of its newest complete checkpoint: -1 if
/// `latest` has none yet. Changes nothing. Error(kUsage) if --resume DIR has none.
std::pair<std::string, std::int64_t> newest_of_run(const TrainOptions& options);

}  // namespace starling
