#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/fakes/cuda/recorder.h"

// Walks a record of calls (recorder.h) and finds what only luck would let go well on a device. What
// is ordered is taken from streams, events and waits alone, not from the order in which the calls
// were made.
namespace starling::cuda::shim {

struct Finding {
  enum class Kind : std::uint8_t {
    /// Two accesses to the same bytes, one of them a write, that nothing orders
    kRace,
    kUnrecordedEvent,  ///< a wait for an event that was never recorded, which waits for nothing
    kReusedMemory,     ///< the pool gives out memory that work before may still use
    kFreedMemory,      ///< an operation on memory that the pool has got back
    /// Two ranks issue NCCL's operations in different orders, or nothing orders those of two
    /// communicators on one device: each waits for the other
    kCommunicatorOrder,
  };
  Kind kind;
  std::string text;  ///< one line: the operations, their streams and memory
  /// The places of the two calls in the record; in kCommunicatorOrder, each in its own rank's
  std::size_t first, second;
  std::string one, other;  ///< the operations' names; of a kRace, in the order of issue
};

/// One process's record, with answers, from before its backends were made. Findings in the order of
/// their second call; of accesses to the same bytes the nearest pair alone. What a thread waits
/// for, or is told to be done, comes before what it issues then. What the host does with pinned
/// memory is taken from the copies: it writes what a copy to the device reads, and reads what a
/// copy from it wrote, before it issues the next copy of those bytes; there, what any thread has
/// waited for counts.
///
/// Finds races in a record of calls. What is captured between the runtime's begin and end of a
/// capture is walked by itself, with the order that forks and joins within the graph give it. A
/// launch is one piece of work of the stream that it is on: other work comes before all of it, or
/// after all of it, or races with all of it. So every launch touches all of that memory, as that
/// stream.
std::vector<Finding> check_races(const std::vector<Call>& calls);

/// The calls of each thread that uses NCCL, in the order of the ranks that they have in their first
/// communicator. What was captured stands where its graph is launched, as often as that is.
std::vector<std::vector<Call>> ranks_of(const std::vector<Call>& calls);
/// Whether any two ranks issue what they do together in the same order: NCCL's operations on
/// communicators that both are in, and messages between the two. What is grouped counts as one.
std::vector<Finding> check_communicators(const std::vector<std::vector<Call>>& ranks);

}  // namespace starling::cuda::shim
