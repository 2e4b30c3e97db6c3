#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/bucket.h"
#include "core/backend.h"

namespace starling {

class Mixer;
class Transport;

/// State of a transport or a mixer for one captured graph: which of its exchanges the graph
/// contains. If destroyed before the first launch it reverts what was counted during the capture.
class CapturePart {
 public:
  virtual ~CapturePart() = default;
  /// The graph was launched, with the exchanges of `step`.
  virtual void launched(std::int64_t step) = 0;
};

/// Captures a device's work as a graph, including exchanges, and buckets whose buffers its updates
/// swap. Between begin() and end() all work on all streams is recorded and not executed. If it is
/// destroyed before the first launch nothing has happened, and the same step may be run again.
class Capture {
 public:
  /// Null if the device has no graphs. The arguments outlive the capture; `mixer` may be null.
  static std::unique_ptr<Capture> begin(Backend& backend, Transport& transport, Mixer* mixer,
                                        std::vector<Bucket>& buckets, const StepValues& values);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// Throws Error(kInternal) if the device cannot make a graph of the recorded work.
  void end();
  /// All ranks launch their graphs in the same order.
  void launch(const StepValues& values);

 private:
  Capture(Backend& backend, std::vector<Bucket>& buckets) : backend_(backend), buckets_(buckets) {}
  bool flipped(std::size_t bucket) const {
    return buckets_[bucket].parameters.raw() != before_[bucket];
  }

  Backend& backend_;
  std::vector<Bucket>& buckets_;
  std::vector<const std::byte*> before_;  ///< addresses of the buckets' parameters at begin()
  std::vector<char> flips_;               ///< by bucket: a launch swaps its buffers
  std::vector<std::unique_ptr<CapturePart>> parts_;
  std::unique_ptr<DeviceGraph> graph_;
  bool launched_ = false;
};

}  // namespace starling
