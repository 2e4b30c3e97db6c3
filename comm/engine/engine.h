#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "comm/engine/operation.h"
#include "comm/other_ranks.h"
#include "core/running_clock.h"

namespace starling::detail {

/// Makes progress on operations. While the caller computes, a communication thread polls them; it
/// sleeps between polls so as not to take the core from the computation. While the caller waits,
/// the caller polls. The wire is used under its lock.
class WireEngine {
 public:
  WireEngine(std::unique_ptr<Wire> wire, double timeout_seconds);
  /// Completes operations in flight, unless an error is being thrown or a rank was lost.
  ~WireEngine();
  WireEngine(const WireEngine&) = delete;
  WireEngine& operator=(const WireEngine&) = delete;

  Wire& wire() const { return *wire_; }
  Ticket start(std::shared_ptr<WireOperation> operation);
  bool done(Ticket ticket);
  void wait(Ticket ticket);
  /// Starts an operation and waits for it.
  void complete(const std::shared_ptr<WireOperation>& operation) { wait(start(operation)); }

 private:
  using Clock = RunningClock;
  void run();
  /// Polls all operations once, under the wire's lock. Returns whether any made progress.
  bool drive();
  void note_start(const WireOperation& operation);
  void note_through(const WireOperation& operation);
  void throw_if_failed();
  /// Calls flow->look() while waiting, unless it is null.
  bool wait_until(const WireOperation& operation, Clock::time_point limit, Flow* flow);
  [[noreturn]] void give_up(const WireOperation& operation);
  void warn_of_late_ranks(const WireOperation& operation, double waited);

  double timeout_;
  std::unique_ptr<Wire> wire_;
  std::vector<std::shared_ptr<WireOperation>> active_;  ///< under the wire's lock
  std::unordered_map<Ticket, std::shared_ptr<WireOperation>> tickets_;
  Ticket last_ticket_ = 0;
  std::int64_t calls_ = 0;  ///< of the control plane so far, equal on all ranks
  /// The completed ones among them; under the wire's lock
  std::int64_t calls_through_ = 0;
  LateRanks late_;

  std::mutex mutex_;  ///< of the following
  std::condition_variable wake_;
  std::vector<std::shared_ptr<WireOperation>> queue_;
  std::uint64_t starts_ = 0;  ///< number of started operations, so that none is missed in a sleep
  bool stop_ = false;
  bool caller_drives_ = false;
  std::string failure_;
  std::atomic<bool> failed_{false};  ///< the wire itself failed; there is no more progress
  /// A wait timed out: all waits fail, though operations may still complete
  std::atomic<bool> lost_{false};
  int exceptions_at_start_;
  std::thread thread_;
};

}  // namespace starling::detail
