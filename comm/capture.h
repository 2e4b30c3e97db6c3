#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/bucket.h"
#include "core/backend.h"

namespace starling {

class Mixer;
class Transport;

/// What a transport or a mixer knows of a capture that it takes part in: which of its exchanges the
/// graph holds. One that goes before it was launched takes back what was counted in its capture.
class CapturePart {
 public:
  virtual ~CapturePart() = default;
  /// The graph was launched: its exchanges are those of `step` now.
  virtual void launched(std::int64_t step) = 0;
};

/// Device work that is captured as a graph, with all that goes with it: the exchanges in it, and
/// the buckets whose buffers its updates change. From its making to end() all work of the device is
/// kept, on all streams. One that goes before its first launch is abandoned: nothing of it was
/// done, and the same step may begin again.
class Capture {
 public:
  /// Begins a capture; null where the device has no graphs. The rest outlives the capture; `mixer`
  /// is null where nothing is mixed.
  static std::unique_ptr<Capture> begin(Backend& backend, Transport& transport, Mixer* mixer,
                                        std::vector<Bucket>& buckets, const StepValues& values);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// The work is whole. Throws Error(kInternal) where the device cannot make a graph of it.
  void end();
  /// Launches the graph. All ranks do, in the same order.
  void launch(const StepValues& values);

 private:
  Capture(Backend& backend, std::vector<Bucket>& buckets) : backend_(backend), buckets_(buckets) {}
  bool flipped(std::size_t bucket) const {
    return buckets_[bucket].parameters.raw() != before_[bucket];
  }

  Backend& backend_;
  std::vector<Bucket>& buckets_;
  std::vector<const std::byte*> before_;  ///< where the buckets' parameters lay
  std::vector<char> flips_;               ///< by bucket: a launch changes its buffers
  std::vector<std::unique_ptr<CapturePart>> parts_;
  std::unique_ptr<DeviceGraph> graph_;
  bool launched_ = false;
};

}  // namespace starling
