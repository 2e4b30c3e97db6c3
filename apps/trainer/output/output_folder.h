#pragma once

#include <cstdint>
#include <string>

#include "apps/trainer/config/options.h"

namespace starling {

/// Where a run's files go and how it starts.
struct RunFolder {
  std::string path;
  bool resume = false;
  std::int64_t resume_step = 0;  ///< of the checkpoint, where there is one
};

/// Decides where a run's files go and whether it continues from a checkpoint, and makes the folder. Runs on one rank. A non-empty
/// folder without --resume is Error(kUsage) and stays untouched; one that cannot be written is Error(kOutput).
RunFolder prepare_output_folder(const TrainOptions& options);

/// A folder's config.json. Error(kOutput) if it cannot be written.
void write_config(const std::string& folder, const std::string& text);

}  // namespace starling
