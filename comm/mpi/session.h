#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/other_ranks.h"
#include "comm/transport.h"
#include "core/error.h"

// What lives here: messages between processes and hosts. session: MPI from start to end. transport:
// the Transport. engine: the thread that moves what is under way; operation, group_operation: one
// exchange as a state machine of requests. pulse: signs of life, so that a lost rank has a name;
// watch: the thread that notices one; ulfm: what MPI itself offers after a loss. Nobody outside
// sees mpi.h.

namespace starling {

/// MPI from start to end of a program; make one in main(). A program that was not started by mpirun
/// or the like, or as its only rank, never touches MPI: it starts in milliseconds as rank 0 of 1.
class MpiSession {
 public:
  /// Initialises MPI if this process is one of several, with the settings that exchanges want
  /// (waiting yields the core, TCP runs in both directions at once) where the user gave none.
  /// Undoes Open MPI's default binding of small jobs to one core a rank, which would also hold
  /// every helper thread; binding that the user asked for stays. Where several processes were
  /// started and MPI knows each by itself, the process ends with ExitCode::kUsage, unless
  /// STARLING_ALONE=1.
  MpiSession();
  /// Finalises MPI. After a lost rank, where that would hang, it ends the job with ExitCode::kLost.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  bool active() const { return active_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// A line for each thing that slows ranks down or has stopped runs: all threads of this rank on
  /// one core of several, by the user's wish, Slurm's or the system's; several connections a pair
  /// (btl_tcp_links).
  std::vector<std::string> warnings() const;

  /// Expects signs of life from now on: a rank of another host that has given none for so many
  /// seconds ends the job (ExitCode::kLost). A process of this host that ends does so at once, from
  /// the session's start on; see comm/mpi/watch.h.
  void expect_heartbeats(double limit_seconds);

  /// The transport for this world: over MPI, or of a single rank.
  std::unique_ptr<Transport> make_transport(double timeout_seconds) const;

  /// Why a lost rank ends the job in any case, as a clause; empty where survive_losses() may be
  /// called.
  std::string why_not_survive() const;
  /// Lets no lost rank end another from now on: every wait for others fails with Error(kLost)
  /// instead, and so does whatever MPI cannot do any more. Transports are to be destroyed then, and
  /// go_on_without_lost() to be called. `patience`: seconds that a healthy rank may take to come
  /// there.
  void survive_losses(double patience_seconds);
  bool surviving() const { return surviving_; }
  struct Loss {
    std::string what;      ///< the lost ranks in words
    int ranks_before = 0;  ///< of the world that had them
  };
  /// Makes this session that of the ranks that are left: rank() and size() are theirs, in the same
  /// order. Ranks of this host that do not come within the patience are ended. Nothing where all
  /// are there: then the error had another reason. Ends the job where it cannot be done. Collective
  /// over the ranks that are left; no transport of this session may be alive.
  std::optional<Loss> go_on_without_lost();

  /// Ends the whole job within seconds with this exit code, whatever the other ranks are doing, and
  /// prints `message` (if not empty) to stderr. Where several ranks fail at the same time, the
  /// lowest one prints; the others are ended before they do. Any thread may call it; the first one
  /// speaks. Does not return.
  [[noreturn]] void abort(ExitCode code, const std::string& message);

 private:
  void watch_ranks();
  std::vector<LostRank> muster();

  bool active_ = false;
  int rank_ = 0, size_ = 1;
  std::atomic<bool> surviving_{false};
  double patience_ = 300.0;
};

/// "Open MPI v4.1.4"; may be asked before MPI is initialised.
std::string mpi_library_version();

}  // namespace starling
