#pragma once

#include <map>
#include <memory>
#include <string>

#include "comm/membership.h"
#include "comm/transports/plan.h"

// This folder: messages between processes and hosts over ZeroMQ, encrypted and authenticated
// (CurveZMQ). Only files in it include zmq.h.
// - transport: settings; wire: connections and messages, for comm/engine;
//   meeting: connection set-up and changes of membership
// - port: where a process listens while it is in a job; membership: jobs, and joining one
// - sockets: ZeroMQ's calls; frames: the format of messages; secret: the secret that ranks share
// - address: of a network interface
// - no_zeromq: in place of the rest in a build without ZeroMQ

namespace starling {

struct ZeroMqSettings {
  /// Rank r of a host listens at port + r; 0: ports of the system's choice
  int port = 0;
  /// The network interface whose address the others connect to; empty: 127.0.0.1 where all ranks
  /// are on one host, otherwise the first interface with an IPv4 address
  std::string interface = {};
  /// File of the secret (read_secret()); empty: one is drawn and told over `messages`
  std::string secret = {};
  bool lets_join = false;  ///< see Membership
  int replica = 1;         ///< with it: ranks of a replica
  /// With it: a rank that others wait for is lost after so long without a sign of life
  double heartbeat_seconds = 5.0;
  /// What must be equal on all ranks, by name; a refusal names the first that differs
  std::map<std::string, std::string> identity = {};
};

/// A transport over ZeroMQ between the ranks of `messages`, by which they meet. Collective.
/// AgreedError (kUsage) for wrong settings and where this build has no ZeroMQ, (kLost) if ranks do
/// not reach each other.
std::unique_ptr<Transport> make_zeromq_transport(std::unique_ptr<Transport> messages,
                                                 const ZeroMqSettings& settings,
                                                 double timeout_seconds,
                                                 std::shared_ptr<Membership>* membership = nullptr);

/// Asks a running job to let this process in, and waits until it is: then regroup() connects it.
/// `roster`: Membership::roster() of the job, which may want as many processes of this host as a
/// replica has ranks. Error(kUsage) with the reason if the job refuses it;
/// (kLost) if rank 0 is not there, ends, or is silent for longer than the limit. `pieces` gets the
/// state that rank 0 offers meanwhile; null: none is fetched.
std::shared_ptr<Membership> join_zeromq_job(const std::string& roster,
                                            const ZeroMqSettings& settings, double timeout_seconds,
                                            const StatePieces& pieces = {});

}  // namespace starling
