#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support.h"

// What every transport must do (comm/transport.h), as one list of checks. A test of a transport
// says how its ranks are made and calls them; what is special to a transport is tested beside.
namespace starling::test {

struct TransportKind {
  using Body = std::function<void(Transport&, Backend&)>;
  std::vector<int> ranks = {1, 2, 3, 4, 5, 8};  ///< numbers of ranks to try
  /// Runs the body on each of so many ranks, whose waits have this limit; where ranks are
  /// processes, on this one.
  std::function<void(int ranks, double timeout_seconds, const Body&)> run;
  bool lanes = true;          ///< exchanges of both lanes may be under way at once
  bool sums_in_order = true;  ///< sums have the bits of rank order (comm/transports/sums.h)
};

/// Control plane; neighbours, groups, nodes and sums of many sizes and types, several under way;
/// every topology's rounds against their matrices; lanes.
void check_transport(const TransportKind& kind);
/// The same of a transport whose exchanges follow a flow.
void check_flows(const TransportKind& kind, bool sums_by_pieces);
/// The others' waits for a rank that does not come end at the limit with Error(kLost), and say what
/// they waited for. Ranks are threads.
void check_late_rank(const TransportKind& kind);

/// Jobs with every algorithm and kind of exchange, which end with the same bits over any transport.
struct ContractJob {
  Job job;
  bool reads = false;  ///< its mixer reads parameters where they lie, if it can
  /// Over nodes: where every rank reads every other's parameters, the matrix over ranks is mixed,
  /// which sums in another order
  bool nodes = false;
};
std::vector<ContractJob> contract_jobs(int ranks);
/// Whether every job has the bits of the transport in memory.
void check_jobs(const TransportKind& kind);

}  // namespace starling::test
