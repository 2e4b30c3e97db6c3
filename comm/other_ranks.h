#pragma once

#include <map>
#include <string>
#include <vector>

#include "comm/transport.h"

// What this process knows of the other ranks: who is late, lost or stopped. Any thread may note and
// ask. Those that notice: comm/mpi/watch.h, comm/nccl/watchdog.h, and every wait, which has a
// limit.
namespace starling {

/// A rank of an exchange that takes too long, and what is known about it.
struct AwaitedRank {
  int rank = 0;
  double seconds_ago = -1.0;  ///< since its last message; negative: never heard of
  std::string doing;          ///< what it last said that it started; may be empty
  bool missing = true;        ///< false: it has done its part
  std::string host = {};      ///< empty: this rank's own
};
/// Throws Error(kLost): a wait passed its limit.
[[noreturn]] void fail_wait(int rank, const std::string& what, const ExchangeLabel& label,
                            double limit_seconds, std::vector<AwaitedRank> awaited);

/// Warns of ranks for which one wait after the other takes long: once a wait, of each rank after 10
/// s, or a third of the limit, but not before `least_seconds`; in later waits after twice as long.
class LateRanks {
 public:
  explicit LateRanks(double limit_seconds, double least_seconds = 0.0);
  bool due(int rank, double waited);
  void warn(const AwaitedRank& rank, double waited, const std::string& what,
            const ExchangeLabel& label);
  /// The wait is over: tells that those came which it called late.
  void came(double waited);

 private:
  double first_;
  std::map<int, double> after_;  ///< by rank: seconds of waiting
  std::vector<int> late_;        ///< in this wait
};

/// A rank that went, where this process is to go on without it (MpiSession::survive_losses).
struct LostRank {
  int rank = -1;     ///< in the world that lost it
  std::string what;  ///< "rank 2 on host a has ended: process 4711 is gone"
};
/// Notes a lost rank: from now on every wait for others fails.
void note_lost_rank(LostRank lost);
/// Costs a load: waits ask it between their looks.
bool any_lost_rank();
/// Throws Error(kLost) where any rank is lost.
void check_lost_ranks();
/// The ranks noted so far, each once, in the order in which they were noticed.
std::vector<LostRank> lost_ranks();
/// The world that lost them is no more.
void forget_lost_ranks();

/// The processes of the other ranks of this host, by rank; those that watch them say so.
void set_rank_processes(std::map<int, int> processes);
/// Text of what the kernel says of a rank's process, where it is on this host: "its process 4711 is
/// stopped, by SIGSTOP or a debugger"; empty where nobody knows. What is out of the ordinary is
/// noted for the flight record too.
std::string state_of_rank(int rank);

}  // namespace starling
