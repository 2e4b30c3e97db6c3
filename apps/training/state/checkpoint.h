#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/inference/checkpoint_file.h"
#include "comm/world.h"
#include "core/safetensors.h"

namespace starling {

/// A run's checkpoints, as it writes them: `FOLDER/checkpoints/step-N`, whose files
/// apps/inference/checkpoint_file.h describes, with DONE written last. What is in a rank's file is
/// the trainer's matter. Write errors are Error(kOutput).
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
  /// Makes an empty step folder, before the ranks write (rank 0); a left-over incomplete one of the
  /// same step is emptied.
  void begin(std::int64_t step) const;
  /// Without the tensors that `file` says to be in other ranks' files (kSharedTensors).
  FileDigest write(std::int64_t step, int rank, const SafetensorsFile& file) const;
  /// Writes DONE (fsync) after all ranks have written, which gave `files`, by rank (rank 0); then
  /// removes all but the newest `keep` complete checkpoints, and incomplete older ones.
  void complete(std::int64_t step, int keep, const std::vector<FileDigest>& files) const;
  /// The newest complete checkpoint's step; or the newest one's before a step.
  std::optional<std::int64_t> newest(std::int64_t before = INT64_MAX) const;
  CheckpointFile open(std::int64_t step) const;
  /// Number of ranks that made the checkpoint.
  int ranks(std::int64_t step) const { return open(step).ranks(); }
  SafetensorsFile read(std::int64_t step, int rank) const { return open(step).read(rank); }
  /// Renames a damaged one, so that it is none any more but still there: step-N.damaged. Says why
  /// where that cannot be done.
  std::string set_aside(std::int64_t step) const;

  /// `checkpoints/best`, which --resume does not look at. It is written beside the one that is
  /// there, and takes its place when it is complete: rank 0 makes the folder, all ranks (and
  /// whoever has more to add) write into it, rank 0 completes it.
  std::string new_best_folder() const { return folder_ + "/checkpoints/best.new"; }
  void begin_best() const;
  FileDigest write_best(int rank, const SafetensorsFile& file) const;
  void complete_best(const Best& best, const std::vector<FileDigest>& files) const;
  /// The best checkpoint, if there is one. Error(kUsage) where it is damaged: where DONE is not
  /// what was written, or a file that it lists is missing or of another length. Their bytes are
  /// checked where somebody reads them.
  std::optional<Best> best() const;
  /// Renames a damaged one to best.damaged; says why where that cannot be done.
  std::string set_best_aside() const;

 private:
  std::string best_folder() const { return folder_ + "/checkpoints/best"; }
  std::string old_best_folder() const { return folder_ + "/checkpoints/best.old"; }

  std::string folder_;
};

/// Those of the files that all ranks have written, by rank. Collective.
std::vector<FileDigest> all_digests(World& world, const FileDigest& mine);

/// Notes in this rank's state, of which `sums` are the tensors' checksums, those that a lower rank
/// has too: kSharedTensors. Collective.
void share_tensors(World& world, const std::map<std::string, std::string>& sums,
                   SafetensorsFile& state);

}  // namespace starling
