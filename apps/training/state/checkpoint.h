#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/inference/checkpoint_file.h"
#include "comm/world.h"
#include "core/safetensors.h"

namespace starling {

/// Writes a run's checkpoints: `FOLDER/checkpoints/step-N`, as apps/inference/checkpoint_file.h has
/// them; DONE is written last. Write errors are Error(kOutput).
class CheckpointFolder {
 public:
  /// The checkpoint in `checkpoints/best`, and the value that it was chosen by.
  struct Best {
    std::int64_t step = 0;
    std::string metric;  ///< "test_accuracy"
    double value = 0.0;
  };

  explicit CheckpointFolder(std::string output_folder) : folder_(std::move(output_folder)) {}

  std::string step_folder(std::int64_t step) const { return checkpoint_path(folder_, step); }
  std::string rank_file(std::int64_t step, int rank) const {
    return step_folder(step) + "/" + rank_file_name(rank);
  }
  /// Rank 0: makes an empty folder for the step before ranks write; clears an incomplete one.
  void begin(std::int64_t step) const { begin_folder(step_folder(step)); }
  /// Writes a rank's file without tensors that are in other ranks' files (kSharedTensors).
  FileDigest write(std::int64_t step, int rank, const SafetensorsFile& file) const {
    return write_rank(rank_file(step, rank), file);
  }
  /// Rank 0: writes DONE (with fsync) when all ranks have written `files` (by rank); then removes
  /// all but the newest `keep` complete checkpoints, and older incomplete ones.
  void complete(std::int64_t step, int keep, const std::vector<FileDigest>& files) const;
  /// Step of the newest complete checkpoint before step `before`.
  std::optional<std::int64_t> newest(std::int64_t before = INT64_MAX) const;
  CheckpointFile open(std::int64_t step) const { return CheckpointFile(step_folder(step), step); }
  /// Number of ranks that wrote the checkpoint.
  int ranks(std::int64_t step) const { return open(step).ranks(); }
  SafetensorsFile read(std::int64_t step, int rank) const { return open(step).read(rank); }
  /// Renames a damaged one to step-N.damaged. Returns the reason for a failure, or "".
  std::string set_aside(std::int64_t step) const { return rename_damaged(step_folder(step)); }

  /// `checkpoints/best` is ignored by --resume. Rank 0 makes a folder for a new one, all ranks
  /// write into it, and rank 0 puts it in the old one's place.
  std::string new_best_folder() const { return folder_ + "/checkpoints/best.new"; }
  void begin_best() const { begin_folder(new_best_folder()); }
  FileDigest write_best(int rank, const SafetensorsFile& file) const {
    return write_rank(new_best_folder() + "/" + rank_file_name(rank), file);
  }
  void complete_best(const Best& best, const std::vector<FileDigest>& files) const;
  /// The best checkpoint, if there is one. Error(kUsage) if it is damaged: DONE is corrupt, or a
  /// file that it lists is missing or has another size. Contents are checked when they are read.
  std::optional<Best> best() const;
  /// Renames a damaged one to best.damaged. Returns the reason for a failure, or "".
  std::string set_best_aside() const { return rename_damaged(best_folder()); }

 private:
  static void begin_folder(const std::string& folder);
  /// Without the tensors that the file says to be in others'.
  static FileDigest write_rank(const std::string& path, const SafetensorsFile& file);
  /// Gives a damaged folder another name; why that cannot be done.
  static std::string rename_damaged(const std::string& folder);
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

/// Writes checkpoints in the background: a thread of each rank writes a copy of the state. All
/// ranks begin each part of a checkpoint at the same step: first every rank computes its tensors'
/// checksums, then writes those that no lower rank has, then rank 0 completes it with all files'
/// digests. At most one is in progress. Errors are thrown on all ranks by the next call.
class CheckpointWriter {
 public:
  /// Calls done(step) when a checkpoint is complete.
  CheckpointWriter(World& world, CheckpointFolder folder, int keep,
                   std::function<void(std::int64_t)> done);
  /// Waits for this rank's thread. An unfinished checkpoint stays incomplete.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Waits for the preceding one, then starts another. Collective.
  void start(std::int64_t step, SafetensorsFile state);
  /// Whether a checkpoint is in progress; the same on all ranks.
  bool pending() const { return part_ != Part::kNone; }
  /// Whether this rank's thread is working.
  bool busy() const {
    return work_.valid() && work_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  }
  /// Counts parts, equal on all ranks, to tell which one an exchange about busy() refers to.
  std::int64_t part_number() const { return number_; }
  /// Waits for all ranks to finish the current part, and begins the next. Collective.
  void advance();
  /// Waits for the checkpoint to be complete. Collective.
  void finish() {
    while (pending()) advance();
  }
  /// The last state that was written, whose memory can be reused; empty while it is being written.
  SafetensorsFile take_used();
  void give_used(SafetensorsFile state) { state_ = std::move(state); }

 private:
  enum class Part { kNone, kSums, kFiles, kCompletion };
  void write_file();
  void run(const std::function<void()>& work);

  World& world_;
  CheckpointFolder folder_;
  int keep_;
  std::function<void(std::int64_t)> done_;
  Part part_ = Part::kNone;
  std::int64_t step_ = 0, number_ = 0;
  SafetensorsFile state_;
  std::map<std::string, std::string> sums_;  ///< of the state's tensors
  FileDigest digest_;
  std::vector<FileDigest> digests_;
  std::future<void> work_;
};

}  // namespace starling
