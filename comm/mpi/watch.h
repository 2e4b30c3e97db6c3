#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/mpi/launcher.h"
#include "comm/mpi/pulse.h"
#include "comm/other_ranks.h"
#include "core/running_clock.h"

namespace starling::detail {

/// A thread with all signals blocked, so that they go to the thread that waits for them.
template <class Run>
std::thread start_quiet_thread(Run&& run) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by the new thread
  std::thread thread(std::forward<Run>(run));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

/// MPI_Init waits for all ranks, silently and without a limit. Meanwhile a thread of this class
/// checks which ranks of this host have started: each holds a socket named after the job and the
/// rank (in the abstract namespace: no file, and it disappears with the process). If a rank
/// disappears, or does not start within STARLING_START_TIMEOUT_S (environment; seconds, default
/// 120, 0: no limit), it prints one line with that rank and exits with ExitCode::kLost. Requires a
/// launcher that provides a job name and rank numbers (Open MPI, Slurm).
class StartWatch {
 public:
  explicit StartWatch(const Launcher& launcher);
  /// Called after MPI_Init. The socket stays, for ranks that are still starting.
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

 private:
  using Clock = RunningClock;
  void run();
  void look();
  std::string missing_text() const;
  std::string remedy_text() const;
  bool is_here(int rank) const;
  [[noreturn]] void end(int speaker, const std::string& message);

  std::string job_, hosts_;
  int rank_ = 0, size_ = 0, local_size_ = 0;
  double limit_ = 0.0;
  Clock::time_point begin_ = Clock::now();
  std::vector<bool> seen_;                 ///< by rank: its socket existed
  std::vector<Clock::time_point> absent_;  ///< by rank: when it disappeared
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// Seconds between heartbeat requests, for a heartbeat limit in seconds.
double question_interval(double limit);

/// Detects lost ranks, independently of what this process is waiting for or computing. A thread
/// sleeps until the kernel reports the end of another rank's process on this host (pidfd_open,
/// Linux 5.3), which costs nothing in normal operation. Between hosts there are heartbeats in a
/// ring: the lowest rank of each host sends requests to that of the next, about one small message
/// per host and second. The rank that detects a loss informs all others (MpiPulse::say_goodbye()).
/// If the kernel does not support watching processes every rank is treated as a separate host.
class RankWatch {
 public:
  /// Handles a lost rank. `rest` is the end of the message: what this rank was doing, and a remedy.
  /// If it returns, watching continues.
  using Lost = std::function<void(const LostRank& lost, const std::string& rest)>;

  /// The caller holds mpi_lock().
  RankWatch(MpiPulse& pulse, int rank, int size, Lost lost);
  /// Must not be called under mpi_lock().
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  /// From now on a host that is silent for this long is lost.
  void expect_heartbeats(double limit_seconds);

  /// Whether the rank's process is known to have ended; false for other hosts' ranks.
  bool has_ended(int rank) const;
  std::string text_of_end(int rank) const;
  /// Kills an unresponsive rank of this host and waits for its end. Returns false on failure.
  bool end_process(int rank);

 private:
  using Clock = RunningClock;
  struct Process {
    int rank;
    pid_t id;
    /// pidfd, readable once the process has ended; -1: it ended before it could be opened
    int file;
  };
  struct Heartbeat {
    Clock::time_point last_question, silent_since;
  };
  void run();
  /// Reports a loss, unless a goodbye of another rank arrives first, which has the cause.
  void report(const Process& process);
  const Process* process_of(int rank) const;
  void look_for_heartbeat(Heartbeat& state);
  std::string doing() const;

  MpiPulse& pulse_;
  Lost lost_;
  std::vector<Process> processes_;  ///< the other ranks of this host
  bool several_hosts_ = false;
  int watched_ = -1;  ///< the next host's rank that this one sends requests to; -1: none
  std::atomic<double> limit_{0.0};
  int wake_ = -1;  ///< eventfd
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace starling::detail
