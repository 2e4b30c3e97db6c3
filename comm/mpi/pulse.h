#pragma once

#include <mpi.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/transport.h"

namespace starling::detail {

/// Guards every MPI call of the process after initialisation: MPI_THREAD_SERIALIZED suffices, and
/// an abort never interrupts a call.
std::recursive_timed_mutex& mpi_lock();

/// The communicator of all ranks: MPI_COMM_WORLD, or after survived losses that of the remaining
/// ranks.
MPI_Comm& world_communicator();

/// Throws Error(kLost) with MPI's own text unless `code` is MPI_SUCCESS.
void mpi_check(int code, const char* call);

/// pidfd_open (Linux 5.3): a file descriptor of a process; negative, with errno, on failure.
int open_process(pid_t process);

/// Small out-of-band messages. A rank that has waited for a long time asks the other for a sign of
/// life; its communication thread answers with the operation it last started. A failing rank tells
/// all others to exit. In normal operation there are no messages within a host. One per process;
/// used under mpi_lock().
class MpiPulse {
 public:
  MpiPulse();  ///< collective over world_communicator()
  ~MpiPulse();
  MpiPulse(const MpiPulse&) = delete;
  MpiPulse& operator=(const MpiPulse&) = delete;

  /// Receives messages and answers them. Ends the process after another rank's goodbye.
  void poll();
  void ask(int rank);
  /// Tells all other ranks to exit with `code`. Gives up after a moment.
  void say_goodbye(int code);
  /// Waits until every rank has called it, releasing the lock in between; returns false after the
  /// limit. After a loss that is to be survived it returns true without waiting.
  bool wait_for_all(double limit_seconds);
  void close();  ///< before MPI_Finalize

  /// From now on another rank's call of muster() counts as a loss (comm/other_ranks.h), which ends
  /// waits here.
  void survive_losses();
  /// After a loss: waits until all ranks have called it that are not lost according to `lost` or
  /// MPI. Returns those that have not within the limit. Called without mpi_lock().
  std::vector<int> muster(const std::function<bool(int)>& lost, double limit_seconds);
  /// Makes all communication of this object fail on all ranks, permanently.
  void revoke();
  /// Destroys a pulse whose world is gone, but keeps memory that MPI may still access.
  static void retire(std::unique_ptr<MpiPulse> pulse);

  void heard(int rank);  ///< called for each message from this rank
  void note_started(const ExchangeLabel& label) { started_ = label; }
  double seconds_since(int rank) const;  ///< its last message; negative: there was none
  std::string doing(int rank) const;
  /// "last started …"; empty if this rank has started nothing yet.
  std::string started() const;
  /// Where a rank runs. Ranks with the same kernel and PID namespace can watch each other.
  struct Place {
    std::string host, kernel;  ///< kernel empty: it cannot watch processes
    pid_t process = 0;
  };
  const Place& place(int rank) const { return places_[static_cast<std::size_t>(rank)]; }
  const std::string& host(int rank) const { return place(rank).host; }

  static MpiPulse* instance();
  /// Whether operations were abandoned after a loss, so that MPI_Finalize would hang.
  static bool& abandoned();

 private:
  struct Message {
    enum Kind : std::int64_t { kAsk, kAnswer, kGoodbye, kMuster, kNone };
    std::int64_t kind = kAsk, code = 0, step = -1, bucket = -1;
  };
  void post();
  void gather_places(int size);
  void send(int rank, const Message& message);
  void note_muster(int rank);

  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Request receive_ = MPI_REQUEST_NULL;
  Message incoming_;
  struct Sent {
    MPI_Request request;
    Message message;
  };
  std::vector<std::unique_ptr<Sent>> sent_;
  std::vector<double> heard_;  ///< seconds of the running clock; 0: never
  std::vector<Message> answers_;
  std::vector<Place> places_;
  std::vector<bool> mustered_;
  bool survives_ = false;
  ExchangeLabel started_{-1, -1, -1};
};

}  // namespace starling::detail
