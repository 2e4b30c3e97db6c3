#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi/launcher.h"
#include "core/running_clock.h"

namespace starling::detail {

/// MPI's start waits for every rank without an end, and says nothing. While it does, a thread of
/// this one looks which ranks of this host are there: each has a socket with the job's and its own
/// number (abstract, so in no folder, and gone with the process). A rank that was there and is no
/// more, or one that has not come within the limit, is named in one line, and this process ends
/// with ExitCode::kLost. Environment: STARLING_START_TIMEOUT_S, the limit in seconds (default 120;
/// 0: none).
/// Only under launchers that say a job's name and each rank's number (Open MPI, Slurm); otherwise
/// nothing is watched.
class StartWatch {
 public:
  explicit StartWatch(const Launcher& launcher);
  /// All have come: ends the watch. The socket stays for those that are still starting.
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
  std::vector<bool> seen_;                 ///< of each rank: its socket was there
  std::vector<Clock::time_point> absent_;  ///< since when it has been gone again
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace starling::detail
