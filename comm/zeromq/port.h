#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/engine/wire.h"
#include "comm/membership.h"
#include "comm/zeromq/frames.h"
#include "comm/zeromq/secret.h"
#include "comm/zeromq/sockets.h"
#include "core/running_clock.h"

namespace starling::detail {

/// The listening socket of this process for as long as it is in a job, and who else is in that. The
/// wire of the present ranks receives from it; messages that arrive between two wires are queued in
/// it. Used under its lock.
struct Port {
  explicit Port(const Secret& secret);
  /// Refuses those who still wait, if the job ends.
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  /// Listens at the first free one of `count` ports from `first` on; 0: a port of the system's
  /// choice. Error(kUsage) if none is free.
  void listen(const std::string& address, int first, int count);
  /// A process that has the secret asks to join: queues or refuses it.
  void handle_join_request(const std::string& connection, const Hello& hello);
  /// Whether a process that asked is still there, or enough for a replica; forgets those that are
  /// gone.
  bool anybody_waits();
  struct Waiting;
  /// Joiners that the next roster would admit: the one that has waited longest, or the first that
  /// make a replica on one host. May be empty.
  std::vector<Waiting*> next_to_join();
  /// Answers what a waiting process asks; ignores other processes.
  void answer(const std::string& connection, const Frame& asked, const Frame& started);
  void send(const std::string& connection, const Frame& frame, const std::string& text = {});
  void refuse(const std::string& connection, const std::string& reason);
  void refuse_waiting(const std::string& reason);

  std::recursive_timed_mutex mutex;
  Secret secret;
  Keys keys;
  Context context;
  Gatekeeper gatekeeper;
  Socket in;

  bool lets_join = false;          ///< ranks may join, and the job continues without a lost one
  double heartbeat_seconds = 5.0;  ///< ZeroMqSettings
  bool admits = false;             ///< the next roster has next_to_join()
  bool joining = false;            ///< this process is in the roster, and not yet connected
  bool over = false;               ///< Membership::over()
  Roster roster = {};
  int rank = 0;
  std::map<std::string, std::string> identity = {};  ///< of joiners
  struct Waiting {
    std::string connection;  ///< ZeroMQ's name for it
    Member member;
    std::string memory;  ///< processes with the same value can share memory
    RunningClock::time_point last_heard;
    std::int32_t told = 0, has = 0;  ///< the last offer announced to it, and the last it has all of
  };
  void tell_offer(Waiting& to);
  std::vector<Waiting> waiting = {};
  OfferedState offered = {};             ///< to waiting processes
  std::int32_t offers = 0;               ///< their number so far
  std::vector<std::string> silent = {};  ///< endpoints of ranks that this one has found silent
  /// Greetings for the next wire, by connection
  std::vector<std::pair<std::string, Hello>> early = {};
};

/// The wire between the ranks of the port's roster, which are those of `messages`; or, without
/// `messages`, the next one, between those that are left and who joins (Membership::regroup()).
std::unique_ptr<Wire> make_zeromq_wire(std::shared_ptr<Port> port, Transport* messages,
                                       double timeout_seconds);

}  // namespace starling::detail
