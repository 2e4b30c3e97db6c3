#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/transport.h"

namespace starling::detail {

/// One lock for every MPI call of the process after initialisation: MPI_THREAD_SERIALIZED is enough, and an abort never meets a call half
/// done.
std::recursive_timed_mutex& mpi_lock();

/// Throws Error(kLost) with MPI's own text unless `code` is MPI_SUCCESS.
void mpi_check(int code, const char* call);

/// Lets the signals that end a job end this process at once again, whatever was arranged for them before.
void let_signals_end_this_process();

/// Small messages beside the data: a rank that waits for long asks "are you there?", the other's communication thread answers with what it
/// last started; a rank that fails tells all others to end. Nothing is sent within a host while all goes well. One per process; callers
/// hold mpi_lock().
class MpiPulse {
 public:
  MpiPulse();  ///< collective over MPI_COMM_WORLD
  ~MpiPulse();
  MpiPulse(const MpiPulse&) = delete;
  MpiPulse& operator=(const MpiPulse&) = delete;

  /// Receives and answers what has come. On another rank's goodbye the process ends.
  void poll();
  void ask(int rank);
  /// Tells every other rank to end with `code`; tries for a moment only.
  void say_goodbye(int code);
  /// Waits until every rank has called it, with the lock free in between; false after so many seconds.
  bool wait_for_all(double limit_seconds);
  void close();  ///< before MPI_Finalize

  void heard(int rank);  ///< any message came from this rank
  void note_started(const ExchangeLabel& label) { started_ = label; }
  double seconds_since(int rank) const;  ///< negative: never heard of
  std::string doing(int rank) const;
  /// What this rank last started, as "last started …"; empty: nothing yet.
  std::string started() const;
  const std::string& host(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }

  static MpiPulse* instance();
  /// Operations were left behind after a lost rank: MPI_Finalize would hang.
  static bool& abandoned();

 private:
  struct Message {
    enum Kind : std::int64_t { kAsk, kAnswer, kGoodbye };
    std::int64_t kind = kAsk, code = 0, step = -1, bucket = -1;
  };
  void post();
  void gather_hosts(int size);
  void send(int rank, const Message& message);

  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Request receive_ = MPI_REQUEST_NULL;
  Message incoming_;
  struct Sent {
    MPI_Request request;
    Message message;
  };
  std::vector<std::unique_ptr<Sent>> sent_;
  std::vector<double> heard_;  ///< seconds of the steady clock; 0: never
  std::vector<Message> answers_;
  std::vector<std::string> hosts_;
  ExchangeLabel started_{-1, -1, -1};
};

}  // namespace starling::detail
