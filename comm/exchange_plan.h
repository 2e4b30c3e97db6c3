#pragma once

#include "comm/transport.h"
#include "topology/topology.h"

namespace starling {

/// What `rank` does in a round: nothing, a pair's send and receive, a group sum for uniform groups of three or more, or sends and
/// receives with several neighbours where the round is given by rows.
Exchange plan_exchange(const Round& round, int rank);

}  // namespace starling
