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

/// Writes a run's checkpoints: `FOLDER/checkpoints/step-N`, with the files described in
/// apps/inference/checkpoint_file.h; DONE is written last. The trainer defines the contents of a
/// rank's file. Write errors are Error(kOutput).
class CheckpointFolder {
 public:
  /// The checkpoint in `checkpoints/best`, and the value that it was chosen by.
  struct Best {
    std::int64_t step = 0;
    std::string metric;  ///< "test_accuracy"
    double value = 0.0;
  };

  explicit CheckpointFolder(std::string output_folder) : folder_(std::move(output_folder)) {}

  std::string step_folder(std::int64_t step) const;
  std::string rank_file(std::int64_t step, int rank) const;
  /// Rank 0: makes an empty folder for the step before ranks write; clears an incomplete one.
  void begin(std::int64_t step) const;
  /// Writes a rank's file without tensors that are in other ranks' files (kSharedTensors).
  FileDigest write(std::int64_t step, int rank, const SafetensorsFile& file) const;
  /// Rank 0: writes DONE (with fsync) when all ranks have written `files` (by rank); then removes
  /// all but the newest `keep` complete checkpoints, and older incomplete ones.
  void complete(std::int64_t step, int keep, const std::vector<FileDigest>& files) const;
  /// Step of the newest complete checkpoint before step `before`.
  std::optional<std::int64_t> newest(std::int64_t before = INT64_MAX) const;
  CheckpointFile open(std::int64_t step) const;
  /// Number of ranks that wrote the checkpoint.
  int ranks(std::int64_t step) const { return open(step).ranks(); }
  SafetensorsFile read(std::int64_t step, int rank) const { return open(step).read(rank); }
  /// Renames a damaged one to step-N.damaged, so that it is ignored but kept. Returns the reason
  /// for a failure, or "".
  std::string set_aside(std::int64_t step) const;

  /// `checkpoints/best` is ignored by --resume. A new one is written to another folder, which
  /// replaces it when complete: rank 0 makes the folder, all ranks write into it, rank 0 completes
  /// it.
  std::string new_best_folder() const { return folder_ + "/checkpoints/best.new"; }
  void begin_best() const;
  FileDigest write_best(int rank, const SafetensorsFile& file) const;
  void complete_best(const Best& best, const std::vector<FileDigest>& files) const;
  /// The best checkpoint, if there is one. Error(kUsage) if it is damaged: DONE is corrupt, or a
  /// file that it lists is missing or has another size. Contents are checked when they are read.
  std::optional<Best> best() const;
  /// Renames a damaged one to best.damaged. Returns the reason for a failure, or "".
  std::string set_best_aside() const;

 private:
  std::string best_folder() const { return folder_ + "/checkpoints/best"; }
  std::string old_best_folder() const { return folder_ + "/checkpoints/best.old"; }

  std::string folder_;
};

/// Gathers the digests of all ranks' files, by rank. Collective.
std::vector<FileDigest> all_digests(World& world, const FileDigest& mine);

/// Records in this rank's state which tensors equal a lower rank's (kSharedTensors), by their
/// checksums `sums`. What it records already, of a replica's first rank, stays true. Collective.
void share_tensors(World& world, const std::map<std::string, std::string>& sums,
                   SafetensorsFile& state);

}  // namespace starling
