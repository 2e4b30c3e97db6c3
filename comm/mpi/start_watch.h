#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi/launcher.h"
#include "core/running_clock.h"

namespace starling::detail {

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

}  // namespace starling::detail
