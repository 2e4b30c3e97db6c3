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

/// An exchange in flight; text() is evaluated only when needed.
struct NcclWork {
  Exchange exchange;
  ExchangeLabel label;
  bool sum = false;       ///< a sum over all ranks
  bool captured = false;  ///< part of a graph
  std::string text() const;
};

/// The exchanges in a graph, labelled with the captured step.
struct NcclGraph {
  std::int64_t step = 0;
  std::vector<NcclWork> works;
  /// Describes the exchanges of a launch for `step`.
  std::string text(std::int64_t step) const;
};

/// Owns a rank's communicators, and prevents endless waits: a thread polls communicators for
/// asynchronous errors and exchanges for timeouts. On a loss it aborts all communicators, and from
/// then on all functions throw that error. All NCCL calls go through call(), one at a time.
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
  /// Makes NCCL calls. A failure is a loss during `what`.
  void call(const std::function<std::string()>& what, const std::function<void()>& calls);
  /// Runs `work`, which uses call() and settle(). NCCL errors that the thread detects during it are
  /// reported as errors of `what`, and all losses with the remedy.
  void during(const std::function<std::string()>& what, const std::function<void()>& work,
              const std::string& remedy = {});
  /// Waits until the communicator is not busy. A timeout or error is a loss.
  void settle(NcclComm comm, const std::function<std::string()>& what);
  /// Adds a communicator to those that are watched and aborted.
  void add(NcclComm comm);
  /// Aborts all communicators, for an error detected elsewhere.
  void give_up(const Error& reason);
  /// Adds an exchange: it can start at the event `ready`, and ends at `through`, by when all
  /// earlier ones have ended, too.
  void follow(std::function<std::string()> what, Event ready, Event through);
  /// To be called before the first capture: graphs must be destroyed before an abort can complete.
  void expect_graphs();
  /// Waits until all exchanges have ended. Returns false after a loss.
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
  void remove_completed();
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
  std::thread thread_;  // last, since it uses all members above
};

}  // namespace starling
