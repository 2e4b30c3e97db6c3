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
/// rank stages outgoing data in a block of its own, piece by piece, and the others read it there.
/// The sum of a part is one kernel that reads all ranks' terms in rank order, bitwise equal to the
/// underlying transport's. Pieces are double-buffered. All work is on the communication stream; a
/// rank publishes piece k before it waits for the others' piece k - 1.
class PeerParts {
 public:
  /// Null, with the same `refusal` on all ranks, if they cannot share the memory; null without one
  /// if a replica's ranks are on several hosts. `local`: the ranks of this host. Collective.
  static std::unique_ptr<PeerParts> open(Backend& backend, Transport& transport,
                                         MemorySharing& sharing, double timeout_seconds,
                                         int replica, std::size_t piece_bytes,
                                         const std::vector<int>& local, std::string& refusal);

  /// Whether start() can do this exchange.
  bool supports(const Exchange& exchange, const Tensor& send) const;

  // As Transport has them.

  Ticket start(const Exchange& exchange, const Tensor& send, const Tensor& receive,
               const ExchangeLabel& label);
  bool done(Ticket ticket) const;
  void wait(Ticket ticket);

  /// Throws if the failed wait is one of this object's.
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
  void consume(const Work& work, std::int64_t piece);

  Backend& backend_;
  Transport& transport_;
  PeerBlocks blocks_;
  std::size_t piece_bytes_;
  std::size_t own_index_;    ///< this rank's, among the ranks
  std::vector<int> others_;  ///< the other ranks
  std::map<Ticket, Event> under_way_;
  Ticket last_ = 0;
  std::uint32_t count_ = 0;      ///< pieces so far
  std::deque<Started> started_;  ///< the last exchanges, for errors
};

}  // namespace starling::detail
