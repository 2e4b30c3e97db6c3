#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

// How much of an exchange over MPI is under way at once. On a long link this, not the link's rate, is the limit: the planner counts with
// it.

namespace starling {

/// A neighbour's buffer goes in pieces of at least so many bytes. The two directions of a pair run apart by about a piece: 4 MiB cost 16 %
/// on 25 MB.
inline constexpr std::size_t kPieceBytes = 256 << 10;
inline constexpr int kPiecesUnderWay = 3;  ///< to one peer, of all exchanges with it
inline constexpr double kPairWindow = static_cast<double>(kPieceBytes) * kPiecesUnderWay;

inline constexpr std::int64_t kSumPieces = 4;  ///< of one group's sum, each in as many chunks as there are members
/// Of a chunk: a piece's scratch stays in the cache.
inline std::int64_t sum_chunk_bytes(std::int64_t members) { return std::clamp<std::int64_t>((1 << 20) / members, 16 << 10, 256 << 10); }

/// One-way latencies of a message larger than what is sent unasked: the question, the answer and the message.
inline constexpr double kHandshakeLatencies = 3.0;

}  // namespace starling
