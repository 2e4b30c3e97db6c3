#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/transport.h"
#include "topology/topology.h"

namespace starling {

/// Plans what `rank` does in a round: nothing, a pair's send and receive, or a group sum for
/// uniform groups of three or more; messages with several neighbours if the round is given by rows.
/// In a round over nodes the nodes do this, with each rank exchanging its shard. `flat`: treat a
/// round over nodes as its matrix over ranks, if traffic between nodes need not be kept low.
Exchange plan_exchange(const Round& round, int rank, bool flat = false);

/// The exchange as messages between pairs of ranks, for encoded data, which cannot be summed in
/// transit. Not for rounds over nodes.
Exchange as_messages(const Exchange& exchange, int rank);

/// The exchanges of one rank, by round. A periodic topology's are planned once, others round by
/// round.
class ExchangeSchedule {
 public:
  /// Plans a topology's rounds; without one, the identity (a single rank). `flat` as for
  /// plan_exchange().
  ExchangeSchedule(const Topology* topology, int rank, bool flat);
  /// The result is valid until round k + 2 is asked for.
  const Exchange& round(std::int64_t k);
  /// The largest of size(exchange) over a period's rounds; 0 for a topology without period.
  template <class Size>
  std::size_t most_over_period(const Size& size) const {
    std::size_t most = 0;
    for (const Exchange& exchange : period_) most = std::max<std::size_t>(most, size(exchange));
    return most;
  }

 private:
  const Topology* topology_;
  int rank_;
  bool flat_;
  std::vector<Exchange> period_;
  /// Of a topology without period, where rounds t - 1 and t are in use at the same time
  std::array<Exchange, 2> recent_;
  std::array<std::int64_t, 2> recent_round_{-1, -1};
  Exchange identity_;
};

/// The groups that need sums, for Transport::prepare(): each once, in the order of their first
/// round, the same on every rank. `flat` as for plan_exchange(); `nodes_only` excludes groups that
/// are not nodes. Of a topology without period only round 0 is considered, since all its rounds
/// have pairs or the same nodes.
std::vector<std::vector<int>> summed_groups(const Topology& topology, bool flat,
                                            bool nodes_only = false);

}  // namespace starling
