#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi/pulse.h"
#include "comm/other_ranks.h"
#include "core/running_clock.h"

namespace starling::detail {

/// Seconds between two questions to a rank that must give a sign of life within `limit` seconds.
double question_interval(double limit);

/// Notices a rank that is gone, whatever this process waits for or computes at the time: messages,
/// shared memory, NCCL, a disk. A thread of its own sleeps until the kernel says that a process of
/// this host has ended (pidfd_open, Linux 5.3), so that costs nothing while all goes well. Between
/// hosts, the lowest rank of each asks that of the next one for a sign of life, and the last asks
/// the first: so one small message a host and second finds a lost host, and whoever finds one tells
/// all (MpiPulse::say_goodbye). Where the kernel refuses to watch processes, each rank counts as a
/// host of its own.
class RankWatch {
 public:
  /// What to do about a lost rank: `rest` completes its line, with what this rank did and what may
  /// be done about it. Where it returns, the watch goes on with the others.
  using Lost = std::function<void(const LostRank& lost, const std::string& rest)>;

  /// The caller holds mpi_lock().
  RankWatch(MpiPulse& pulse, int rank, int size, Lost lost);
  /// Ends the watch; the caller does not hold mpi_lock().
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  /// Expects signs of life: from now on a host that is silent for so many seconds is lost.
  void expect_heartbeats(double limit_seconds);

  /// Whether the kernel says that the rank's process has ended; false of other hosts' ranks.
  bool has_ended(int rank) const;
  std::string text_of_end(int rank) const;
  /// Ends a rank of this host, which does not answer any more, and waits for its end; false where
  /// that cannot be done.
  bool end_process(int rank);

 private:
  using Clock = RunningClock;
  struct Process {
    int rank;
    pid_t id;
    /// The process's pidfd: readable once it has ended; -1: it had ended before it could be opened
    int file;
  };
  struct Heartbeat {
    Clock::time_point last_question, silent_since;
  };
  void run();
  /// Lets another rank's goodbye count first, which has said why, and reports the loss otherwise.
  void report(const Process& process);
  const Process* process_of(int rank) const;
  void look_for_heartbeat(Heartbeat& state);
  std::string doing() const;

  MpiPulse& pulse_;
  Lost lost_;
  std::vector<Process> processes_;  ///< the other ranks of this host
  bool several_hosts_ = false;
  int watched_ = -1;  ///< the rank of the next host that this rank asks; -1: this rank asks nobody
  std::atomic<double> limit_{0.0};
  int wake_ = -1;  ///< eventfd
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace starling::detail
