#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/shared/direct_control.h"
#include "comm/shared/memory_sharing.h"
#include "comm/transport.h"
#include "core/backend.h"
#include "core/peer_memory.h"

namespace starling::detail {

/// Counters in their owner's device memory, which only that device sets.
struct DeviceCounts {
  /// How many exchanges' data its owner has published
  alignas(128) std::uint32_t published = 0;
  /// How often its owner has finished reading other ranks' memory
  alignas(128) std::uint32_t released = 0;
};

/// What a stream waits for, as PeerMemory::Purpose::kind.
enum class PeerWait : std::uint8_t {
  kNeighbour,    ///< a neighbour's parameters (PeerTransport's mixer)
  kReaders,      ///< readers of this rank's parameters
  kParts,        ///< a staged part of another rank of the replica (PeerParts)
  kPartReaders,  ///< readers of this rank's staged part
};

/// A block of device memory for each of some ranks of a host, which all of them have mapped.
/// Counters come first in it. A failed wait reports what the awaited rank did last.
class PeerBlocks {
 public:
  /// `ranks`: ascending, this one included. The arguments outlive this object.
  PeerBlocks(Backend& backend, Transport& transport, MemorySharing& sharing, double timeout_seconds,
             std::vector<int> ranks);
  ~PeerBlocks();
  PeerBlocks(const PeerBlocks&) = delete;
  PeerBlocks& operator=(const PeerBlocks&) = delete;

  /// Makes a zeroed block for each rank. Returns why there are none, or "". Collective over the
  /// transport; the ranks may be another set on each host.
  std::string open(std::size_t bytes);
  /// Unmaps the blocks, when the device has finished with them.
  void close();

  const std::vector<int>& ranks() const { return ranks_; }
  const std::vector<std::shared_ptr<PeerBlock>>& blocks() const { return blocks_; }  ///< by rank
  Pulse& pulse() const { return *pulse_; }  ///< of this rank

  // On the current stream.

  /// Sets one of this rank's counters.
  void signal(int index, std::uint32_t DeviceCounts::*member, std::uint32_t value);
  /// Waits for that counter of other ranks.
  void await(const std::vector<int>& ranks, int index, std::uint32_t DeviceCounts::*member,
             std::uint32_t target, int bucket, PeerWait what);
  /// Throws Error(kLost) for a failed wait; `what` says what was awaited.
  [[noreturn]] void report(const PeerMemory::Loss& loss, const std::string& what,
                           const ExchangeLabel& label) const;

 private:
  DeviceCounts& counts_of(int rank, int index) const;

  Backend& backend_;
  Transport& transport_;
  MemorySharing& sharing_;
  PeerMemory* memory_;
  double timeout_seconds_;
  int exceptions_at_start_;
  std::vector<int> ranks_;
  std::vector<std::shared_ptr<PeerBlock>> blocks_;
  std::vector<std::shared_ptr<SharedBlock>> pulse_blocks_;
  Pulse* pulse_ = nullptr;
  std::map<int, const Pulse*> pulses_;        ///< by rank
  std::vector<PeerMemory::Awaited> awaited_;  ///< a member to reuse its memory
};

/// Allocates a zeroed block for every rank of `ranks`, and maps the others'. Collective.
HostBlocks<PeerBlock> share_peer_blocks(World& world, const std::vector<int>& ranks,
                                        PeerMemory* memory, std::size_t bytes);

}  // namespace starling::detail
