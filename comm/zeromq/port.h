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

/// Where this process listens as long as it is in a job, and who else is in it. The wire of the
/// present ranks receives from it; what others send between two wires waits in it. Used under its
/// lock.
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
  void consider(const std::string& connection, const Hello& hello);
  /// Whether one of them is still there, or a whole replica; forgets those that are not.
  bool anybody_waits();
  struct Waiting;
  /// Those whom the next roster would have: the one that has waited longest, or the first replica's
  /// ranks of one host. Empty: nobody.
  std::vector<Waiting*> next_to_join();
  /// Answers what a process asks that waits; nothing to others.
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

  bool lets_join = false;  ///< ranks may join, and the others go on without a lost one
  bool admits = false;     ///< the next roster has next_to_join()
  bool joining = false;    ///< this process is in the roster, and not yet connected
  bool over = false;       ///< Membership::over()
  Roster roster = {};
  int rank = 0;
  std::map<std::string, std::string> identity = {};  ///< of joiners
  struct Waiting {
    std::string connection;  ///< ZeroMQ's name for it
    Member member;
    std::string memory;  ///< those that have the same can share theirs
    RunningClock::time_point heard;
    std::int32_t told = 0, has = 0;  ///< offers that it was told of, and that it has all of
  };
  void tell_offer(Waiting& to);
  std::vector<Waiting> waiting = {};
  OfferedState offered = {};  ///< to those
  std::int32_t offers = 0;    ///< so many were made
  /// Greetings for the next wire, by connection
  std::vector<std::pair<std::string, Hello>> early = {};
};

/// The wire between the ranks of the port's roster, which are those of `messages`; or, without
/// `messages`, the next one, between those that are left and who joins (Membership::regroup()).
std::unique_ptr<Wire> make_zeromq_wire(std::shared_ptr<Port> port, Transport* messages,
                                       double timeout_seconds);

}  // namespace starling::detail
