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
/// uniform groups of three or more. Where the round is given by rows, it sends to and receives from
/// several neighbours. In a round over nodes the same goes on between nodes, each rank carrying its
/// shard. `flat`: a round over nodes is taken as its matrix over ranks, where no link is worth
/// sparing.
Exchange plan_exchange(const Round& round, int rank, bool flat = false);

/// The exchange as messages between any two: for encoded numbers, which nobody sums on the way. Not
/// for rounds over nodes.
Exchange as_messages(const Exchange& exchange, int rank);

/// What one rank does in round k: planned once for a topology with a period, round by round for one
/// without.
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
  /// Exchanges of a topology without period: round t - 1 and round t are in use at once
  std::array<Exchange, 2> recent_;
  std::array<std::int64_t, 2> recent_round_{-1, -1};
  Exchange identity_;
};

/// The groups for whose sums a transport may want a communicator (Transport::prepare), each once,
/// in the order of their first round: the same on every rank. `flat` as for plan_exchange();
/// `nodes_only` leaves out the groups that are no nodes. Of a topology without period, which has
/// pairs or the same nodes in every round, those of its first round.
std::vector<std::vector<int>> summed_groups(const Topology& topology, bool flat,
                                            bool nodes_only = false);

}  // namespace starling
