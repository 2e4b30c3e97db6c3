#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/transport.h"

namespace starling {

struct FakeWorldOptions {
  double timeout_seconds = 30.0;
  /// Every message takes a time from [0, most_delay_seconds) that depends on (seed, from, to,
  /// number of the message) alone.
  double most_delay_seconds = 0.0;
  std::uint64_t seed = 0;
  int ranks_per_host = 0;  ///< 0: all on one
  /// Ranks of one host read each other's parameters where they lie (comm/shared/direct_transport.h)
  bool direct = false;
  int refuse = -1;  ///< with `direct`: this rank has no memory to share
};

/// A world of n ranks as threads of one process, for tests without MPI: the same sums in rank
/// order, the same rules. Messages are delivered by a thread of the world's own, straight from the
/// sender's buffer. So a program that touches a buffer too early is found out (by wrong numbers, or
/// by the thread sanitizer). The world outlives its transports.
class FakeWorld {
 public:
  explicit FakeWorld(int ranks, const FakeWorldOptions& options = {});
  ~FakeWorld();
  FakeWorld(const FakeWorld&) = delete;
  FakeWorld& operator=(const FakeWorld&) = delete;

  int size() const;
  /// Rank's end of the world, for use by one thread.
  std::unique_ptr<Transport> transport(int rank);
  /// Stops a rank: from now on nothing reaches or leaves it, as if its host had gone.
  void stop(int rank);
  /// Runs body(transport of rank r) on a thread for each rank and joins them. If one throws, the
  /// others' waits end at once, and the exception of the rank that threw first is thrown again.
  void run(const std::function<void(Transport&)>& body);
  /// The same with a CPU backend of one thread for each rank.
  void run(const std::function<void(Transport&, Backend&)>& body);

  class State;

 private:
  std::vector<std::unique_ptr<Backend>> backends_;  ///< outlive the messages, which hold tensors
  std::shared_ptr<State> state_;
};

}  // namespace starling
