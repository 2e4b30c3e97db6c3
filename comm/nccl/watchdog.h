#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/nccl/nccl.h"
#include "comm/transport.h"
#include "core/backend.h"
#include "core/error.h"
#include "core/running_clock.h"

namespace starling {

/// An exchange under way, and its name, once somebody asks.
struct NcclWork {
  Exchange exchange;
  ExchangeLabel label;
  bool sum = false;       ///< a sum over all ranks
  bool captured = false;  ///< kept for a graph's launches
  std::string text() const;
};

/// The exchanges that a graph holds, with the labels of the step that was captured.
struct NcclGraph {
  std::int64_t step = 0;
  std::vector<NcclWork> works;
  /// Names of the exchanges in a launch for `step`.
  std::string text(std::int64_t step) const;
};

/// Owns a rank's communicators and sees to it that nothing waits for ever: a thread asks them for
/// asynchronous errors and follows the exchanges under way. At a loss it aborts them all, and from
/// then on everything here throws what was lost. All calls of NCCL go through call(), one at a
/// time.
class NcclWatchdog {
 public:
  /// The backend outlives it.
  NcclWatchdog(std::shared_ptr<Nccl> nccl, Backend& backend, int rank, double timeout_seconds,
               double watch_seconds);
  /// Aborts the communicators, unless close() has destroyed them.
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  /// Throws Error(kLost) after a loss.
  void check();
  /// Makes calls of NCCL; one that is refused is a loss while `what` was going on.
  void call(const std::function<std::string()>& what, const std::function<void()>& calls);
  /// Runs `work`, some call() and settle(): an error of NCCL's that the thread is the first to see
  /// meanwhile is told as one of `what`, and every loss meanwhile with the remedy.
  void during(const std::function<std::string()>& what, const std::function<void()>& work,
              const std::string& remedy = {});
  /// Waits until the communicator is not busy; too long, or an error, is a loss.
  void settle(NcclComm comm, const std::function<std::string()>& what);
  /// Adds a communicator: from now on it is watched, and ended with the others.
  void add(NcclComm comm);
  /// Aborts everything, as after a loss, for a reason found elsewhere.
  void give_up(const Error& reason);
  /// An exchange is under way: `ready` marks that it can start, `through` its end. What was
  /// followed before is through by then.
  void follow(std::function<std::string()> what, Event ready, Event through);
  /// Tells that graphs hold exchanges from now on: an abort is not through before they are gone.
  void expect_graphs();
  /// Waits until every exchange is through. False where something was or is lost.
  bool drain() noexcept;
  /// Destroys the communicators, after drain().
  void close() noexcept;

 private:
  using Clock = RunningClock;
  struct Followed {
    std::function<std::string()> what;
    Event ready, through;
    Clock::time_point issued;
    std::optional<Clock::time_point> started;
  };

  void run();
  // All with the lock held.
  void look();
  void forget_what_is_through();
  void check_locked() const;
  void lose(const std::string& message) noexcept {
    lose(Error(ExitCode::kLost, {"transport", message, remedy_, {.rank = rank_}}));
  }
  void lose(const Error& error) noexcept;
  std::string last_words(NcclComm comm);
  void abort_all() noexcept;
  void stop() noexcept;

  std::shared_ptr<Nccl> nccl_;
  Backend& backend_;
  const int rank_;
  const double timeout_seconds_, watch_seconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<NcclComm> comms_;    ///< the world's first
  std::deque<Followed> followed_;  ///< in the order of issue
  const std::function<std::string()>* during_ = nullptr;
  std::string remedy_;
  std::optional<Error> lost_;
  bool stopping_ = false;
  bool graphs_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace starling
