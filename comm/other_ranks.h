#pragma once

#include <map>
#include <string>
#include <vector>

#include "comm/transport.h"

// What this process knows about other ranks: which are late, lost or stopped. Noticed by
// comm/mpi/watch.h, comm/nccl/watchdog.h, and by waits that time out. All functions are
// thread-safe.
namespace starling {

/// What is known about a rank in an exchange that takes too long.
struct AwaitedRank {
  int rank = 0;
  double seconds_ago = -1.0;  ///< since its last message; negative: there was none
  std::string doing;          ///< the last operation it reported; may be empty
  bool missing = true;        ///< false: it has done its part
  std::string host = {};      ///< empty: this rank's own
};
/// Throws Error(kLost) for a wait that timed out.
[[noreturn]] void fail_wait(int rank, const std::string& what, const ExchangeLabel& label,
                            double limit_seconds, std::vector<AwaitedRank> awaited);

/// Warns about ranks that are waited for a long time: after 10 s or a third of the limit, whichever
/// is less, but not before `least_seconds`. At most once per wait and rank, with the threshold
/// doubled each time.
class LateRanks {
 public:
  explicit LateRanks(double limit_seconds, double least_seconds = 0.0);
  bool due(int rank, double waited);
  void warn(const AwaitedRank& rank, double waited, const std::string& what,
            const ExchangeLabel& label);
  /// Ends a wait: reports that the ranks it warned about have arrived.
  void came(double waited);

 private:
  double first_;
  std::map<int, double> after_;  ///< by rank: threshold in seconds
  std::vector<int> late_;        ///< in this wait
};

/// A lost rank that this process is to continue without (MpiSession::survive_losses()).
struct LostRank {
  int rank = -1;     ///< in the world that lost it
  std::string what;  ///< "rank 2 on host a has ended: process 4711 is gone"
};
/// From now on every wait for other ranks fails.
void note_lost_rank(LostRank lost);
/// Costs one load, so that waits can poll it.
bool any_lost_rank();
/// Throws Error(kLost) if any rank is lost.
void check_lost_ranks();
/// Each once, in the order in which they were noted.
std::vector<LostRank> lost_ranks();
/// Called when a new world without them is made.
void forget_lost_ranks();

/// Process ids of the other ranks of this host, by rank.
void set_rank_processes(std::map<int, int> processes);
/// The kernel's state of a rank's process, if it is on this host: "its process 4711 is stopped, by
/// SIGSTOP or a debugger"; empty if unknown. Unusual states also go into the flight record.
std::string state_of_rank(int rank);

}  // namespace starling
