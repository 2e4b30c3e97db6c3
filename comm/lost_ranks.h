#pragma once

#include <string>
#include <vector>

// What this process knows of ranks that went, where it is to go on without them
// (MpiSession::survive_losses). Any thread may note and ask.

namespace starling {

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

}  // namespace starling
