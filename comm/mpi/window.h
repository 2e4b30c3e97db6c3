#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

// How much of an exchange over MPI is under way at once. On a long link this, not the link's rate,
// is the limit: the planner counts with it.

namespace starling {

/// A neighbour's buffer goes in pieces of at least so many bytes. The two directions of a pair run
/// apart by about a piece: 4 MiB cost 16 % on 25 MB.
inline constexpr std::size_t kPieceBytes = 256 << 10;
/// Pieces under way to one peer, of all exchanges with it; the most is what Linux buffers
inline constexpr int kFewestPieces = 3, kMostPieces = 16;
inline constexpr double kPairWindow = static_cast<double>(kPieceBytes) * kMostPieces;

/// How many pieces may be on their way to one peer: as few as fill the link, since the handshakes
/// of the other direction, and of other exchanges, wait behind them in its queue (four hosts in
/// pairs at 100 Mbit/s: 1.7 × the link's limit without a bound, 1.04 × with it). As in TCP Vegas
/// (Brakmo et al., 1994) that is known by time: of w pieces under way, w · (1 - quickest / time)
/// wait in queues.
class PieceWindow {
 public:
  bool open() const { return under_way_ < most_; }
  int most() const { return most_; }
  /// A piece leaves. Returns whether its time will tell something: the first ones after a pause may
  /// wait for a peer that is late.
  bool sent() {
    if (under_way_++ == 0) in_a_row_ = 0;
    return ++in_a_row_ > most_;
  }
  /// A piece is there, `seconds` after it left; infinity: a small one, which tells nothing.
  void arrived(double seconds, bool tells) {
    --under_way_;
    quickest_ = std::min(quickest_, seconds);
    if (!tells || quickest_ < kLongLink || !std::isfinite(seconds) ||
        ++since_change_ < (growing_ ? 1 : most_))
      return;
    const double waiting = most_ * (1.0 - quickest_ / seconds);
    since_change_ = 0;
    if (waiting < 1.5) {
      most_ = std::min(most_ + 1, kMostPieces);
    } else {
      growing_ = false;
      if (waiting > 4.0) most_ = std::max(most_ - 1, kFewestPieces);
    }
  }

 private:
  static constexpr double kLongLink = 1e-3;  // s; a quicker piece's link is filled by the fewest

  int under_way_ = 0, most_ = kFewestPieces, since_change_ = 0, in_a_row_ = 0;
  // True until the link was full once: the window grows by one for each piece, not for each window
  // of them
  bool growing_ = true;
  double quickest_ = std::numeric_limits<double>::infinity();
};

/// Pieces of one group's sum under way, each in as many chunks as there are members
inline constexpr std::int64_t kSumPieces = 4;
/// Bytes of a chunk: a piece's scratch stays in the cache.
inline std::int64_t sum_chunk_bytes(std::int64_t members) {
  return std::clamp<std::int64_t>((1 << 20) / members, 16 << 10, 256 << 10);
}

/// One-way latencies of a message larger than what is sent unasked: the question, the answer and
/// the message.
inline constexpr double kHandshakeLatencies = 3.0;

}  // namespace starling
