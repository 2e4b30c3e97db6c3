#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/other_ranks.h"
#include "comm/transport.h"
#include "core/error.h"

// This folder: messages between processes and hosts over MPI. Only files in it include mpi.h.
// - session: MPI from initialisation to finalisation; wire: messages and collective calls, for
//   comm/engine
// - pulse: heartbeats; watch: the thread that detects lost ranks; ulfm: MPI's own support for
//   continuing after a loss

namespace starling {

/// MPI for the lifetime of a program; make one in main(). A program not started by a launcher, or
/// as its only rank, does not initialise MPI: it starts in milliseconds as rank 0 of 1.
class MpiSession {
 public:
  /// Initialises MPI if this process is one of several, with settings that suit exchanges (waiting
  /// yields the core, TCP in both directions at once) unless the user has set them. Undoes Open
  /// MPI's default binding of small jobs to one core per rank, which would bind helper threads as
  /// well; a binding set by the user stays. If several processes were started that MPI does not
  /// connect, exits with ExitCode::kUsage, unless STARLING_ALONE=1.
  MpiSession();
  /// Finalises MPI, or ends the job with ExitCode::kLost if that would hang after a loss.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  /// Finalises MPI before the end, as ranks that have other ways to each other need it no more:
  /// they then end as processes that were started alone. Collective; all transports over MPI must
  /// be destroyed before.
  void leave();

  bool active() const { return active_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Settings that slow ranks down or are known to stop runs, one line each: binding of all threads
  /// to one core, by the user, Slurm or the system; several TCP connections per pair
  /// (btl_tcp_links).
  std::vector<std::string> warnings() const;

  /// From now on, a rank of another host that is silent for this long ends the job
  /// (ExitCode::kLost). On the same host the end of a rank's process ends the job at once, in any
  /// case; see comm/mpi/watch.h.
  void expect_heartbeats(double limit_seconds);

  /// A transport over MPI, or for a single rank.
  std::unique_ptr<Transport> make_transport(double timeout_seconds) const;

  /// Why survive_losses() cannot be called, as a clause; empty if it can.
  std::string why_not_survive() const;
  /// From now on a lost rank does not end the job. Instead, waits for others, and anything that MPI
  /// cannot complete, fail with Error(kLost); then destroy the transports and call
  /// go_on_without_lost(), within `patience_seconds` of each other. `replica`: the number of
  /// consecutive ranks that are lost together (comm/replica.h).
  void survive_losses(double patience_seconds, int replica = 1);
  bool surviving() const { return surviving_; }
  struct Loss {
    std::string what;      ///< describes the lost ranks
    int ranks_before = 0;  ///< size of the world that had them
  };
  /// Restricts the session to the remaining ranks, renumbered in the same order. Kills ranks of
  /// this host that do not call it in time. Returns nothing if no rank is lost: the error had
  /// another cause. Ends the job on failure, and this process where a rank of its replica is lost.
  /// Collective over the remaining ranks; all transports of this session must be destroyed before.
  std::optional<Loss> go_on_without_lost();

  /// Ends the whole job within seconds with this exit code and prints `message` (if not empty) to
  /// stderr. If several ranks fail at the same time only the lowest one prints, and of several
  /// threads the first. May be called on any thread.
  [[noreturn]] void abort(ExitCode code, const std::string& message);

 private:
  void finalise();
  void watch_ranks();
  std::vector<LostRank> muster();

  bool active_ = false;
  int rank_ = 0, size_ = 1;
  std::atomic<bool> surviving_{false};
  double patience_ = 300.0;
  int replica_ = 1;
};

/// "Open MPI v4.1.4". Can be called before MPI is initialised.
std::string mpi_library_version();

}  // namespace starling
