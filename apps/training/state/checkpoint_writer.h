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

/// Writes checkpoints beside training: what is saved has been copied, and a thread of each rank
/// writes it. A checkpoint has parts, each of which all ranks begin at the same step: every rank
/// makes its tensors' checksums, then writes those that no lower rank has alike; then rank 0, which
/// has all files' digests, completes it. At most one is under way. Whatever goes wrong is thrown on
/// all ranks by the call that follows it.
class CheckpointWriter {
 public:
  /// Calls done(step) where a checkpoint has become complete.
  CheckpointWriter(World& world, CheckpointFolder folder, int keep,
                   std::function<void(std::int64_t)> done);
  /// Waits for this rank's thread. What is not complete by then stays incomplete.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Waits for the one before, then begins. Collective.
  void start(std::int64_t step, SafetensorsFile state);
  /// Whether a checkpoint is under way; the same on all ranks.
  bool pending() const { return part_ != Part::kNone; }
  /// Whether this rank's thread is at work.
  bool busy() const;
  /// Counts parts, the same on all ranks: an answer to "is anybody busy?" is one about the part
  /// that it was asked in.
  std::int64_t part_number() const { return number_; }
  /// Ends the part under way, waiting for all ranks, and begins the next. Collective.
  void advance();
  /// Waits for what is under way. Collective.
  void finish();
  /// The file that was written last, or given here, for its memory; nothing while it is being
  /// written.
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
