#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apps/training/state/checkpoint.h"
#include "comm/world.h"

namespace starling {

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
  bool busy() const;
  /// Counts parts, equal on all ranks, to tell which one an exchange about busy() refers to.
  std::int64_t part_number() const { return number_; }
  /// Waits for all ranks to finish the current part, and begins the next. Collective.
  void advance();
  /// Waits for the checkpoint to be complete. Collective.
  void finish();
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
