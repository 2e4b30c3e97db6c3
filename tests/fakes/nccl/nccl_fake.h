#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/nccl/nccl.h"

namespace starling {

struct FakeNcclOptions {
  int refuse_init = -1, refuse_split = -1;  ///< these ranks' calls are refused
  bool registers = true;                    ///< false: NCCL has no way to register buffers
  /// What device() says, by rank; empty: each rank has one of its own
  std::vector<std::string> devices;
};

/// NCCL among the ranks of a process, which are threads: communicators that meet, and operations
/// that move numbers between the host memory that the fake of the CUDA runtime (tests/fakes/cuda)
/// gives out, sums in rank order. A group of operations is carried out as soon as every rank has
/// issued its part; until then its communicator is busy, so that whoever waits for that, as the
/// transport does, needs a limit of time. Ranks that call different collectives, or send other
/// sizes than are received, fail. Every call is in the recorder's list (kNccl…). The world outlives
/// what open() gives.
///
/// An NCCL between threads. What goes to a stream that captures is kept, and issued by each launch
/// of the graph. A launch comes back once every rank has launched its part, or once it is clear
/// that one never will. Then the launch's stream is stuck, and what the graph has done is void. As
/// with NCCL, a communicator that a graph holds must not be destroyed: this ends the process.
/// Buffers are not registered in a capture, and an operation that is captured on one rank alone
/// fails.
class FakeNccl {
 public:
  explicit FakeNccl(int ranks, const FakeNcclOptions& options = {});
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  /// A rank's end, for use by one thread and its watchdog.
  std::unique_ptr<Nccl> open(int rank);
  /// Stops a rank: from now on nothing that needs it is ever through. The operations of its peers
  /// are issued, and then their streams are stuck (recorder.h's hold_stream), as are those of ranks
  /// that need these, until they abort.
  void stop(int rank);
  /// An asynchronous error on all communicators of a rank.
  void break_down(int rank, const std::string& message);

  int initialised(int rank) const;    ///< communicators that this rank was given so far
  int aborted(int rank) const;        ///< of those, ended by abort()
  int destroyed(int rank) const;      ///< and by destroy()
  int registrations(int rank) const;  ///< buffers that are registered now
  int max_ctas(int rank) const;       ///< as its last init() asked for

  class State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace starling
