#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>

#include "comm/agreement.h"
#include "comm/flight.h"
#include "comm/zeromq/wire.h"
#include "core/error.h"
#include "core/host.h"
#include "core/text.h"

namespace starling::detail {
namespace {

using Clock = RunningClock;

constexpr double kMostConnectSeconds = 60.0;
constexpr double kFailedSeconds = 0.3;      // from a failed connection to the error
constexpr double kLastChanceSeconds = 0.5;  // of a rank that was silent for too long
constexpr double kMostPartingSeconds = 10.0;
constexpr int kLingerMilliseconds = 1000;

/// Why the other side has refused a greeting; empty if it has not.
std::string refusal(Socket& socket) {
  const auto answer = socket.receive();
  if (!answer || answer->size() != 2) return {};
  const Frame frame = parse_frame(answer->front().text(), {answer->back().size()});
  return frame.kind == Frame::Kind::kRefused ? shown(answer->back().text(), 400) : std::string();
}

[[noreturn]] void fail_of_greeting(const Hello& hello) {
  fail(ExitCode::kLost, "zeromq",
       "the rank at {} goes on without one that it has lost, or lets another in",
       hello.member.endpoint);
}

}  // namespace

ZeroMqWire::ZeroMqWire(std::shared_ptr<Port> port, Transport* messages, double timeout_seconds)
    : timeout_(timeout_seconds), port_(std::move(port)) {
  const std::scoped_lock lock(port_->mutex);
  set_roster_ranks();
  if (messages) {
    hello_.identity = port_->identity;
    on_all_ranks(*messages, [&] {
      const std::vector<int> others = partners_of(nullptr, size(), rank());
      connect_to(others);
      await_hellos(others, std::min(timeout_seconds, kMostConnectSeconds), ExitCode::kUsage);
    });
    phase_ = Phase::kOpen;
    return;
  }
  const bool joining = std::exchange(port_->joining, false);
  if (!joining) ++hello_.generation;
  hello_.silent = std::exchange(port_->silent, {});
  silent_.insert(hello_.silent.begin(), hello_.silent.end());
  const auto greet_early = [&] {
    for (const auto& [connection, hello] : std::exchange(port_->early, {}))
      greet(connection, hello);
  };
  try {
    if (!joining) {
      connect_to(partners_of(nullptr, size(), rank()));
      greet_early();
      install_roster(meet_again());
    }
    const std::vector<int> others = partners_of(nullptr, size(), rank());
    std::vector<int> strangers;
    std::copy_if(others.begin(), others.end(), std::back_inserter(strangers),
                 [&](int k) { return !peers_[static_cast<std::size_t>(k)]; });
    connect_to(strangers);
    greet_early();
    await_hellos(others, timeout_seconds, ExitCode::kLost);
    // Of ranks that have been left out
    for (const auto& [connection, hello] : std::exchange(port_->early, {}))
      port_->refuse(connection, kExcluded);
    phase_ = Phase::kOpen;
  } catch (...) {
    abandon();
    throw;
  }
}

void ZeroMqWire::set_roster_ranks() {
  const std::vector<Member>& members = port_->roster.members;
  int local_rank = 0, local_size = 0;
  for (int k = 0; k < static_cast<int>(members.size()); ++k) {
    if (members[static_cast<std::size_t>(k)].host !=
        members[static_cast<std::size_t>(port_->rank)].host)
      continue;
    if (k < port_->rank) ++local_rank;
    ++local_size;
  }
  set_ranks(port_->rank, static_cast<int>(members.size()), local_rank, local_size);
  hello_ = {.job = port_->roster.job,
            .generation = port_->roster.generation,
            .member = members[static_cast<std::size_t>(port_->rank)]};
  peers_.resize(members.size());
}

void ZeroMqWire::connect_to(const std::vector<int>& others) {
  const std::string text = encode(hello_);
  for (const int other : others) {
    const Member& member = port_->roster.members[static_cast<std::size_t>(other)];
    auto& made = peers_[static_cast<std::size_t>(other)];
    made = std::make_unique<Peer>(port_->context, port_->keys, member.endpoint,
                                  fmt::format("{}-{}", hello_.generation, member.endpoint));
    if (member.host != port_->roster.members[static_cast<std::size_t>(rank())].host)
      made->host = member.host;
    made->send({.kind = Frame::Kind::kHello}, text);
  }
}

std::string ZeroMqWire::why_no_hello(int other, double waited, double limit_seconds) {
  Peer& one = peer(other);
  if (one.refusal.empty()) one.refusal = refusal(one.out);
  if (!one.refusal.empty()) return "refuses it: " + one.refusal;
  if (one.greeted) return {};
  if (one.refused)
    return "does not accept this rank's secret; the file of sync.transport.secret must be the same "
           "on every host";
  const std::string network =
      "sync.transport.interface names the network between the hosts, sync.transport.port what a "
      "firewall lets through";
  if (one.closed) return "cannot be reached: connection refused; " + network;
  if (waited > limit_seconds)
    return fmt::format("has not connected to {} within {:g} s; {}", port_->in.endpoint(),
                       limit_seconds, network);
  return {};
}

void ZeroMqWire::await_hellos(const std::vector<int>& others, double limit_seconds, ExitCode code) {
  const auto begin = Clock::now();
  std::optional<ErrorParts> failed;
  Clock::time_point failed_at{};
  while (true) {
    poll();
    bool complete = true;
    for (const int other : others) {
      const std::string reason = why_no_hello(other, Clock::seconds_since(begin), limit_seconds);
      if (!reason.empty() && !failed) {
        failed_at = Clock::now();
        failed = {.component = "zeromq",
                  .what = fmt::format("rank {} on host {}: rank {} at {} {}", rank(), host_name(),
                                      other, peer(other).endpoint, reason)};
      }
      complete = complete && peer(other).greeted;
    }
    for (const auto& [connection, hello] : port_->early) {
      if (hello.generation > hello_.generation) fail_of_greeting(hello);
    }
    // Wait a moment, so that the other ranks notice the failure themselves.
    if (failed && Clock::seconds_since(failed_at) > kFailedSeconds) {
      abandon();
      throw Error(code, *failed);
    }
    if (complete && !failed) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

template <class... Args>
void ZeroMqWire::leave(fmt::format_string<Args...> format, Args&&... args) {
  port_->over = true;
  fail(ExitCode::kLost, "zeromq", format, std::forward<Args>(args)...);
}

Roster ZeroMqWire::meet_again() {
  const auto begin = Clock::now();
  std::string why;  // of one that is not there
  while (!decided_) {
    poll();
    std::vector<int> present{rank()};
    bool complete = true;
    for (const int other : partners_of(nullptr, size(), rank())) {
      Peer& one = peer(other);
      const std::string reason =
          why_no_hello(other, Clock::seconds_since(begin),
                       silent_.contains(one.endpoint) ? kLastChanceSeconds : timeout_);
      if (!reason.empty()) why = fmt::format("rank {} at {} {}", other, one.endpoint, reason);
      if (one.greeted && !one.closed && reason.empty())
        present.push_back(other);
      else
        complete = complete && (one.closed || !reason.empty());
    }
    std::sort(present.begin(), present.end());
    if (complete && present.front() == rank() && !decided_) {
      // After a partition of the network at most one side may continue: the majority or, of two
      // halves, the one with rank 0.
      const std::size_t left = present.size(), ranks = port_->roster.members.size();
      if (2 * left < ranks || (2 * left == ranks && rank() != 0))
        leave("only {} of {} ranks are left, which may be the smaller part{}{}", left, ranks,
              why.empty() ? "" : ": ", why);
      decided_ = make_roster(present);
      decides_ = true;
    }
    if (Clock::seconds_since(begin) > 2 * timeout_ + kFailedSeconds)
      leave("rank {} has waited {:g} s for rank {} to say who is left{}{}", rank(), 2 * timeout_,
            present.front(), why.empty() ? "" : "; ", why);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return *decided_;
}

Roster ZeroMqWire::make_roster(const std::vector<int>& present) {
  Roster roster{hello_.job, hello_.generation, {}, port_->roster.replica};
  const auto replica_of = [&](int k) { return k / roster.replica; };
  for (const int k : present) {
    const auto there = std::ranges::count(present, replica_of(k), replica_of);
    if (there == roster.replica)
      roster.members.push_back(port_->roster.members[static_cast<std::size_t>(k)]);
  }
  if (roster.members.empty())
    leave(
        "{} of {} ranks are left, and none of the replicas of {} is whole; continue with "
        "--resume latest",
        present.size(), port_->roster.members.size(), roster.replica);
  std::vector<std::string> joiners;  // their connections
  if (std::exchange(port_->admits, false) && port_->anybody_waits()) {
    for (const Port::Waiting* joiner : port_->next_to_join()) {
      joiners.push_back(joiner->connection);
      roster.members.push_back(joiner->member);
    }
    std::erase_if(port_->waiting, [&](const Port::Waiting& one) {
      return std::ranges::count(joiners, one.connection) > 0;
    });
  }
  const std::string text = encode(roster);
  const Frame frame{.kind = Frame::Kind::kRoster};
  for (const int k : present) {
    if (k != rank()) peer(k).send(frame, text);
  }
  for (const std::string& joiner : joiners) port_->send(joiner, frame, text);
  return roster;
}

void ZeroMqWire::fail_excluded(const Roster& others) {
  const auto begin = Clock::now();
  // Those that continue send kBye once they have this rank's roster.
  const auto waits = [&](int k) {
    return !peer(k).closed &&
           std::ranges::count(others.members, port_->roster.members[static_cast<std::size_t>(k)]) >
               0;
  };
  const std::vector<int> partners = partners_of(nullptr, size(), rank());
  while (decides_ && std::ranges::any_of(partners, waits) &&
         Clock::seconds_since(begin) < kMostPartingSeconds) {
    poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const int first = rank() - rank() % others.replica, end = first + others.replica;
  for (int k = first; k < end; ++k) {
    if (k != rank() && (peer(k).closed || !peer(k).greeted))
      leave("rank {} is lost, and its replica, ranks {} to {}, leaves with it; the others go on", k,
            first, end - 1);
  }
  leave("the others go on without rank {}, which they did not reach in time", rank());
}

void ZeroMqWire::install_roster(const Roster& roster) {
  const Member own = port_->roster.members[static_cast<std::size_t>(rank())];
  const auto mine = std::find(roster.members.begin(), roster.members.end(), own);
  if (mine == roster.members.end()) fail_excluded(roster);
  const std::vector<Member> before = std::exchange(port_->roster, roster).members;
  std::vector<std::unique_ptr<Peer>> old = std::exchange(peers_, {});
  std::unordered_map<int, int> renamed;
  port_->rank = static_cast<int>(mine - roster.members.begin());
  set_roster_ranks();
  for (std::size_t k = 0; k < before.size(); ++k) {
    const auto place = std::find(roster.members.begin(), roster.members.end(), before[k]);
    if (before[k] == own) continue;
    if (place == roster.members.end()) {
      old[k]->send({.kind = Frame::Kind::kBye});  // it may wait for that in fail_excluded()
      old[k]->out.linger(kLingerMilliseconds);
      continue;
    }
    const auto now = static_cast<int>(place - roster.members.begin());
    peers_[static_cast<std::size_t>(now)] = std::move(old[k]);
    renamed[static_cast<int>(k)] = now;
  }
  for (auto it = ranks_.begin(); it != ranks_.end();) {
    const auto now = renamed.find(it->second);
    it = now == renamed.end() ? ranks_.erase(it) : (it->second = now->second, std::next(it));
  }
}

void ZeroMqWire::greet(const std::string& connection, const Hello& hello) {
  if (hello.joins) return port_->handle_join_request(connection, hello);
  const std::vector<Member>& members = port_->roster.members;
  const auto place = std::find(members.begin(), members.end(), hello.member);
  // A joiner may know of its admission before this rank does.
  const bool early =
      phase_ == Phase::kMeeting && hello.generation == hello_.generation && place == members.end();
  if (hello.job == hello_.job && (early || hello.generation > hello_.generation)) {
    port_->early.emplace_back(connection, hello);
    if (phase_ == Phase::kOpen) fail_of_greeting(hello);
    return;
  }
  std::string reason = why_refused(hello_, hello);
  const auto other = static_cast<int>(place - members.begin());
  if (reason.empty() && (place == members.end() || other == rank()))
    reason = fmt::format("no other rank of this job listens at {}", hello.member.endpoint);
  if (reason.empty() && peer(other).greeted)
    reason = fmt::format("there is a rank {} already", other);
  if (!reason.empty()) return port_->refuse(connection, reason);
  silent_.insert(hello.silent.begin(), hello.silent.end());
  peer(other).greeted = true;
  peer(other).last_heard = Clock::now();
  ranks_[connection] = other;
}

}  // namespace starling::detail
