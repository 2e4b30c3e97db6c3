#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/safetensors.h"

namespace starling {

/// The files of checkpoints, `FOLDER/checkpoints/step-N/rank-R.safetensors` and `DONE`, written last. What is in a rank's file is the
/// trainer's matter. Write errors are Error(kOutput); a missing or damaged checkpoint is Error(kUsage).
class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::string output_folder) : folder_(std::move(output_folder)) {}

  std::string step_folder(std::int64_t step) const;
  std::string rank_file(std::int64_t step, int rank) const;
  /// Before the ranks write (rank 0): makes an empty step folder; a left-over incomplete one of the same step is emptied.
  void begin(std::int64_t step) const;
  void write(std::int64_t step, int rank, const SafetensorsFile& file) const;
  /// After all ranks have written (rank 0): writes DONE (fsync), then removes all but the newest `keep` complete checkpoints, and
  /// incomplete older ones.
  void complete(std::int64_t step, int keep) const;
  /// The newest complete checkpoint's step.
  std::optional<std::int64_t> newest() const;
  SafetensorsFile read(std::int64_t step, int rank) const;

 private:
  std::string folder_;
};

}  // namespace starling
