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
  /// Which checkpoint lies in `checkpoints/best`, and what it was chosen by.
  struct Best {
    std::int64_t step = 0;
    std::string metric;  ///< "test_accuracy"
    double value = 0.0;
  };

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

  /// `checkpoints/best`, which --resume does not look at. It is written beside the one that is there, and takes its place when it is
  /// complete: rank 0 makes the folder, all ranks (and whoever has more to add) write into it, rank 0 completes it.
  std::string new_best_folder() const { return folder_ + "/checkpoints/best.new"; }
  void begin_best() const;
  void write_best(int rank, const SafetensorsFile& file) const;
  void complete_best(const Best& best) const;
  /// None where there is none, or none that is whole.
  std::optional<Best> best() const;

 private:
  std::string best_folder() const { return folder_ + "/checkpoints/best"; }
  std::string old_best_folder() const { return folder_ + "/checkpoints/best.old"; }

  std::string folder_;
};

}  // namespace starling
