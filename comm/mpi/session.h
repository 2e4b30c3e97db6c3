#pragma once

#include <memory>
#include <string>

#include "comm/transport.h"
#include "core/error.h"

// What lives here: messages between processes and hosts. session: MPI from start to end. transport: the Transport. engine: the thread that
// moves what is under way; operation, node_operation: one exchange as a state machine of requests. pulse: signs of life, so that a lost
// rank has a name; watch: the thread that notices one. Nobody outside sees mpi.h.

namespace starling {

/// MPI from start to end of a program; make one in main(). A program that was not started by mpirun or the like, or as its only rank, never
/// touches MPI: it starts in milliseconds as rank 0 of 1.
class MpiSession {
 public:
  /// Initialises MPI if this process is one of several, with the settings that exchanges want (waiting yields the core, TCP runs in both
  /// directions at once) where the user gave none. Undoes Open MPI's default binding of small jobs to one core a rank, which would also
  /// hold every helper thread; binding that the user asked for stays.
  MpiSession();
  /// Finalises MPI. After a lost rank, where that would hang, it ends the job with ExitCode::kLost.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  /// Whether a launcher's environment says that this process is one of several.
  static bool launched();
  bool active() const { return active_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// One line where the user had mpirun bind all threads of this rank to one core; otherwise empty.
  std::string binding_warning() const;

  /// From now on a rank of another host that has given no sign of life for so many seconds ends the job (ExitCode::kLost). A process of
  /// this host that ends does so at once, from the session's start on; see comm/mpi/watch.h.
  void expect_heartbeats(double limit_seconds);

  /// The transport for this world: over MPI, or of a single rank.
  std::unique_ptr<Transport> make_transport(double timeout_seconds) const;

  /// Ends the whole job within seconds with this exit code, whatever the other ranks are doing, and prints `message` (if not empty) to
  /// stderr. Where several ranks fail at the same time, the lowest one prints; the others are ended before they do. Any thread may call it;
  /// the first one speaks. Does not return.
  [[noreturn]] void abort(ExitCode code, const std::string& message);

 private:
  bool active_ = false;
  int rank_ = 0, size_ = 1;
};

/// "Open MPI v4.1.4"; may be asked before MPI is initialised.
std::string mpi_library_version();

}  // namespace starling
