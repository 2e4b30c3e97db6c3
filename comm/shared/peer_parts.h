#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/shared/peer_blocks.h"

namespace starling::detail {

/// Exchanges of the ranks of a replica (Exchange::kScatterSum, kGather) in the GPUs' memory. Each
/// rank copies what others get to a block of its own, piece by piece, and the others read it there:
/// the sum of a part is one kernel that reads all ranks' terms in rank order, with the bits of the
/// transport below. Pieces alternate between two places. All is on the communication stream, where
/// a rank publishes a piece before it waits for the others' piece before that.
class PeerParts {
 public:
  /// Null, with the same `refusal` on all ranks, if they cannot share the memory; null without one
  /// if a replica's ranks are on several hosts. `local`: the ranks of this host. Collective.
  static std::unique_ptr<PeerParts> open(Backend& backend, Transport& transport,
                                         MemorySharing& sharing, double timeout_seconds,
                                         int replica, std::size_t piece_bytes,
                                         const std::vector<int>& local, std::string& refusal);

  /// Whether the exchange is one of these.
  bool takes(const Exchange& exchange, const Tensor& send) const;

  // As Transport has them.

  Ticket start(const Exchange& exchange, const Tensor& send, const Tensor& receive,
               const ExchangeLabel& label);
  bool done(Ticket ticket) const;
  void wait(Ticket ticket);

  /// Throws for a failed wait, unless it is another object's.
  void report(const PeerMemory::Loss& loss) const;

 private:
  struct Work;
  struct Started {
    std::uint32_t end = 0;  ///< the count of its last piece
    Exchange exchange;
    ExchangeLabel label;
  };
  PeerParts(Backend& backend, Transport& transport, MemorySharing& sharing, double timeout_seconds,
            std::vector<int> ranks, std::size_t piece_bytes);
  /// Where the piece with this count lies in a rank's block.
  Tensor place(std::size_t member, std::uint32_t count, DType dtype) const;
  void stage(const Work& work, std::int64_t piece);
  void take(const Work& work, std::int64_t piece);

  Backend& backend_;
  Transport& transport_;
  PeerBlocks blocks_;
  std::size_t piece_bytes_;
  std::size_t me_;           ///< among the ranks
  std::vector<int> others_;  ///< the other ranks
  std::map<Ticket, Event> under_way_;
  Ticket last_ = 0;
  std::uint32_t count_ = 0;      ///< pieces so far
  std::deque<Started> started_;  ///< the last exchanges, for errors
};

}  // namespace starling::detail
