#pragma once

#include <functional>
#include <memory>

#include "comm/shared/memory_sharing.h"
#include "comm/transport.h"

namespace starling {

struct DirectSettings {
  double timeout_seconds = 300.0;
  /// Poll for some microseconds before sleeping. For ranks with cores of their own.
  bool spin = false;
  /// Called periodically while waiting; throws if the wait cannot succeed any more. May be null.
  std::function<void()> check = {};
};

/// Wraps `between` with mixers in which CPU ranks of one host read each other's parameters in
/// shared memory. Other hosts' ranks, groups that span hosts, and sums use `between`. A round needs
/// no copies and no threads: a rank publishes that its parameters are final, its neighbours' update
/// kernels read them, and the next update writes the bucket's other buffer once all readers of that
/// have released it. If shared memory cannot be set up, all ranks use `between` only, and rank 0
/// logs the reason.
std::unique_ptr<Transport> make_direct_transport(std::unique_ptr<Transport> between,
                                                 std::unique_ptr<MemorySharing> sharing,
                                                 const DirectSettings& settings);
/// The same between processes.
std::unique_ptr<Transport> make_direct_transport(std::unique_ptr<Transport> between,
                                                 const DirectSettings& settings);

}  // namespace starling
