#pragma once

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

}  // namespace starling
