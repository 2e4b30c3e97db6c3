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

/// One lock for every MPI call of the process after initialisation: MPI_THREAD_SERIALIZED is
/// enough, and an abort never meets a call half done.
std::recursive_timed_mutex& mpi_lock();

/// The communicator of all ranks: MPI_COMM_WORLD, or after a loss that was survived that of those
/// that are left.
MPI_Comm& world_communicator();

/// Throws Error(kLost) with MPI's own text unless `code` is MPI_SUCCESS.
void mpi_check(int code, const char* call);

/// A descriptor of a process (pidfd_open, Linux 5.3); below 0, with errno, where there is none.
int open_process(pid_t process);

/// Small messages beside the data: a rank that waits for long asks "are you there?", the other's
/// communication thread answers with what it last started; a rank that fails tells all others to
/// end. Nothing is sent within a host while all goes well. One per process; callers hold
/// mpi_lock().
class MpiPulse {
 public:
  MpiPulse();  ///< collective over world_communicator()
  ~MpiPulse();
  MpiPulse(const MpiPulse&) = delete;
  MpiPulse& operator=(const MpiPulse&) = delete;

  /// Receives and answers what has come. On another rank's goodbye the process ends.
  void poll();
  void ask(int rank);
  /// Tells every other rank to end with `code`; tries for a moment only.
  void say_goodbye(int code);
  /// Waits until every rank has called it, with the lock free in between; false after so many
  /// seconds. Where ranks are lost and this is to be survived, it does not wait for them, nor for
  /// anybody else: true.
  bool wait_for_all(double limit_seconds);
  void close();  ///< before MPI_Finalize

  /// Notes a rank's call to muster as a loss from now on (comm/other_ranks.h), so that waits end.
  void survive_losses();
  /// Calls all others together after a loss, and waits for those that are not lost, as `lost` and
  /// MPI know it, until each has called too. Returns those that did not within so many seconds. The
  /// caller does not hold mpi_lock().
  std::vector<int> muster(const std::function<bool(int)>& lost, double limit_seconds);
  /// All that is under way here fails, on all ranks; for good.
  void revoke();
  /// The world of this pulse is no more; what MPI may still touch stays.
  static void retire(std::unique_ptr<MpiPulse> pulse);

  void heard(int rank);  ///< any message came from this rank
  void note_started(const ExchangeLabel& label) { started_ = label; }
  double seconds_since(int rank) const;  ///< negative: never heard of
  std::string doing(int rank) const;
  /// What this rank last started, as "last started …"; empty: nothing yet.
  std::string started() const;
  /// Where a rank is. Ranks with the same kernel and the same numbers of processes can watch each
  /// other.
  struct Place {
    std::string host, kernel;  ///< kernel empty: it cannot watch processes
    pid_t process = 0;
  };
  const Place& place(int rank) const { return places_[static_cast<std::size_t>(rank)]; }
  const std::string& host(int rank) const { return place(rank).host; }

  static MpiPulse* instance();
  /// Operations were left behind after a lost rank: MPI_Finalize would hang.
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
