#pragma once

#include "comm/transport.h"
#include "topology/topology.h"

namespace starling {

/// What `rank` does in a round: nothing, a pair's send and receive, a group sum for uniform groups
/// of three or more, sends and receives with several neighbours where the round is given by rows,
/// or, in a round over nodes, the same between nodes with each rank carrying its shard. `flat`: a
/// round over nodes is taken as its matrix over ranks, where no link is worth sparing.
Exchange plan_exchange(const Round& round, int rank, bool flat = false);

/// The same as messages between any two: for encoded numbers, which nobody sums on the way. Not for
/// rounds over nodes.
Exchange as_messages(const Exchange& exchange, int rank);

}  // namespace starling
