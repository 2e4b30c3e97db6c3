#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

// How much of an exchange over MPI is in flight at a time. On links with high latency this limits
// the throughput; the planner takes it into account.

namespace starling {

/// Minimal size of the pieces that a buffer is sent in. The two directions of a pair get out of
/// step by about one piece: pieces of 4 MiB cost 16 % on 25 MB.
inline constexpr std::size_t kPieceBytes = 256 << 10;
/// Limits of the number of pieces in flight to one peer: 64 MiB, what 10 Gbit/s carry in 54 ms.
/// Most kernels' buffers hold less unless they are told to (NetworkModel::window).
inline constexpr int kFewestPieces = 3, kMostPieces = 256;
inline constexpr double kPairWindow = static_cast<double>(kPieceBytes) * kMostPieces;

/// Congestion window: the number of pieces that may be in flight to one peer. As few as fill the
/// link, since handshakes of the other direction and of other exchanges queue behind them (four
/// hosts in pairs at 100 Mbit/s took 1.7 times the link's optimum without a limit, 1.04 times with
/// it). As in TCP Vegas (Brakmo et al., 1994) the queue is estimated from times: of w pieces in
/// flight, w · (1 - shortest time / time) are queued.
class PieceWindow {
 public:
  bool open() const { return under_way_ < limit_; }
  int limit() const { return limit_; }
  /// A piece was sent. Returns whether its time can be used: the first ones after a pause may wait
  /// for a late peer.
  bool sent() {
    if (under_way_++ == 0) consecutive_ = 0;
    return ++consecutive_ > limit_;
  }
  /// A piece arrived, `seconds` after it was sent; infinity for a small one, which is ignored.
  void arrived(double seconds, bool is_sample) {
    --under_way_;
    min_time_ = std::min(min_time_, seconds);
    if (!is_sample || min_time_ < kLongLink || !std::isfinite(seconds) ||
        ++since_change_ < (growing_ ? 1 : limit_))
      return;
    const double waiting = limit_ * (1.0 - min_time_ / seconds);
    since_change_ = 0;
    // For large windows the thresholds are a fraction of the window, since the times of pieces
    // vary. While the window grows its pieces leave in one burst, whose last ones wait for the
    // first.
    if (waiting < std::max(1.5, (growing_ ? 0.25 : 0.1) * limit_)) {
      limit_ = std::min(limit_ + (growing_ ? 1 : std::max(1, limit_ / 16)), kMostPieces);
    } else {
      growing_ = false;
      if (waiting > std::max(4.0, 0.25 * limit_))
        limit_ = std::max(limit_ - std::max(1, limit_ / 8), kFewestPieces);
    }
  }

 private:
  static constexpr double kLongLink = 1e-3;  // seconds; below this kFewestPieces fill a link

  int under_way_ = 0, limit_ = kFewestPieces, since_change_ = 0, consecutive_ = 0;
  // Slow start, until a queue was seen once: the window grows with each piece, not each window
  bool growing_ = true;
  double min_time_ = std::numeric_limits<double>::infinity();
};

/// Pieces of one group's sum in flight, each in as many chunks as there are members; and of a round
/// over nodes, where they wait for a link
inline constexpr std::int64_t kSumPieces = 4, kNodePieces = 16;
/// Bytes of a chunk, such that a piece's scratch memory fits the cache.
inline std::int64_t sum_chunk_bytes(std::int64_t members) {
  return std::clamp<std::int64_t>((1 << 20) / members, 16 << 10, 256 << 10);
}

/// One-way latencies of a message above the eager limit: request, answer, data.
inline constexpr double kHandshakeLatencies = 3.0;

}  // namespace starling
