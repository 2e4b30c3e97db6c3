#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "apps/training/config/options.h"
#include "apps/training/output/folder_lock.h"

namespace starling {

/// Where a run's files go and how it starts.
struct RunFolder {
  std::string path;
  bool resume = false;
  std::int64_t resume_step = 0;           ///< of the checkpoint, where there is one
  std::shared_ptr<FolderLock> lock = {};  ///< on the rank that prepared it
};

/// Decides where a run's files go and whether it continues from a checkpoint, makes the folder and
/// locks it. Runs on one rank. A non-empty folder without --resume, and one in which another run is
/// writing, is Error(kUsage) and stays untouched; one that cannot be written is Error(kOutput).
RunFolder prepare_output_folder(const TrainOptions& options);

/// The run that --resume names, and its newest complete checkpoint's step: -1 where `latest` has
/// none yet. Looks, and changes nothing. Error(kUsage) where --resume DIR has none.
std::pair<std::string, std::int64_t> newest_of_run(const TrainOptions& options);

/// A folder's config.json. Error(kOutput) if it cannot be written.
void write_config(const std::string& folder, const std::string& text);

}  // namespace starling
