#pragma once

#include <functional>
#include <memory>

#include "comm/shared/memory_sharing.h"
#include "comm/transport.h"

namespace starling {

struct DirectSettings {
  double timeout_seconds = 300.0;
  /// Whether each rank of this host has cores of its own, so that a waiting rank may look for some
  /// microseconds before it sleeps.
  bool spin = false;
  /// Called now and then while waiting; throws where waiting has become vain. May be empty.
  std::function<void()> check = {};
};

/// `between`, with mixers by which ranks of one host read each other's parameters where they lie;
/// other hosts' ranks, groups that span hosts and sums go by `between`. A round of a shared bucket
/// copies nothing and starts no thread: a rank publishes that its parameters are final, its
/// neighbours' update kernels read them, and the next update writes the bucket's other buffer once
/// all readers of its contents have said so. On the CPU; where the memory is refused, all ranks go
/// on with `between` alone, and rank 0 says why.
std::unique_ptr<Transport> make_direct_transport(std::unique_ptr<Transport> between,
                                                 std::unique_ptr<MemorySharing> sharing,
                                                 const DirectSettings& settings);
/// A direct transport between processes.
std::unique_ptr<Transport> make_direct_transport(std::unique_ptr<Transport> between,
                                                 const DirectSettings& settings);

}  // namespace starling
