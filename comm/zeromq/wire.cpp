#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "comm/agreement.h"
#include "comm/engine/operation.h"
#include "comm/flight.h"
#include "comm/zeromq/frames.h"
#include "comm/zeromq/port.h"
#include "comm/zeromq/sockets.h"
#include "core/error.h"
#include "core/host.h"
#include "core/running_clock.h"
#include "core/text.h"

namespace starling {
namespace detail {
namespace {

using Clock = RunningClock;

/// Larger messages are sent when the receiver has memory for them, so that a rank that is behind
/// does not have to keep what others send.
constexpr std::size_t kAtOnceBytes = 64 << 10;
constexpr auto kLookAfter = std::chrono::milliseconds(20);  // at connections
/// After a connection has closed: its last messages may still come, and a wait that is about to
/// time out says more.
constexpr double kGoneSeconds = 1.0;
constexpr double kMostConnectSeconds = 60.0;
constexpr int kMostTaken = 64;          // messages, until operations have looked at them
constexpr double kFailedSeconds = 0.3;  // from a failed connection to the error

/// Whether a request has completed. Set by ZeroMQ's thread for a send without a copy.
using Flag = std::shared_ptr<std::atomic<bool>>;
Flag make_flag(bool value) { return std::make_shared<std::atomic<bool>>(value); }

/// A message from or to a peer.
struct Key {
  int tag;
  std::size_t place;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  std::size_t operator()(const Key& key) const {
    return std::hash<std::size_t>()(key.place * static_cast<std::size_t>(kMostTag) +
                                    static_cast<std::size_t>(key.tag));
  }
};
template <class T>
using ByKey = std::unordered_map<Key, T, KeyHash>;

struct Peer {
  Peer(Context& context, const Keys& keys, const std::string& the_endpoint, const std::string& name)
      : endpoint(the_endpoint), out(context, ZMQ_DEALER), monitor(context, out, name) {
    keys.connect(out);
    out.set(ZMQ_SNDHWM, 0);
    out.set(ZMQ_RECONNECT_IVL, -1);
    zmq_check(zmq_connect(out.get(), endpoint.c_str()), "zmq_connect");
  }
  void send(const Frame& frame) {
    const FrameBytes bytes = encode(frame);
    out.send({bytes.data(), bytes.size()});
  }

  std::string endpoint, host;  ///< host: empty where it is this rank's
  std::string refusal;         ///< why it has refused this rank's greeting
  Socket out;
  Monitor monitor;
  bool greeted = false, ended = false, refused = false;
  std::optional<Clock::time_point> closed;  ///< or it has ended
  Clock::time_point heard{};
  std::optional<Frame> answer;

  struct Posted {
    std::byte* data;
    std::size_t bytes;
    Flag done;
  };
  struct Waiting {
    const std::byte* data;
    std::size_t bytes;
    Flag done;
  };
  struct Early {
    std::size_t bytes;
    std::optional<Part> data;  ///< none: an offer
  };
  ByKey<Posted> posted;    ///< receives that nothing has come for
  ByKey<Early> early;      ///< what has come before its receive
  ByKey<Waiting> waiting;  ///< sends that the peer has no memory for yet
  ByKey<bool> ready;       ///< memory of the peer for sends that are not posted yet
};

class ZeroMqWire final : public Wire {
 public:
  ZeroMqWire(std::shared_ptr<Port> port, std::unique_ptr<Transport> messages,
             double timeout_seconds);
  ~ZeroMqWire() override;

  std::string name() const override { return "zeromq"; }
  std::recursive_timed_mutex& lock() override { return port_->mutex; }
  std::unique_ptr<RequestSet> make_requests() override;
  std::shared_ptr<WireCall> make_call(Call kind, std::string what, std::vector<std::byte> mine,
                                      std::vector<int> counts, int root) override;
  bool poll() override;
  void ask(int rank) override { peer(rank).send({.kind = Frame::Kind::kAsk}); }
  void note_started(const ExchangeLabel& label) override {
    started_.a = label.step;
    started_.b = label.bucket;
  }
  AwaitedRank known_of(int rank) const override;
  void revoke() override {}  // the closed connections tell the others
  bool abandon() override {
    phase_ = Phase::kMeeting;
    peers_.clear();
    return false;
  }

  Flag send(const std::byte* data, std::size_t bytes, int to, MessageTag tag);
  Flag receive(std::byte* data, std::size_t bytes, int from, MessageTag tag);

 private:
  /// Makes connections to these ranks of the roster, and sends greetings.
  void call(const std::vector<int>& others);
  /// Waits until they have greeted too. Error(code) that names one that has not.
  void connect(const std::vector<int>& others, double limit_seconds, ExitCode code);
  /// Why a rank does not greet; empty if it still may.
  std::string why_silent(int other, double waited, double limit_seconds);
  Roster meet_again();
  /// Those who are left, and who is let in, if this rank decides that.
  Roster decide(const std::vector<int>& present);
  /// From here on the ranks are those.
  void become(const Roster& roster);
  /// Fails for good: Membership::over().
  template <class... Args>
  [[noreturn]] void leave(fmt::format_string<Args...> format, Args&&... args);
  void set_roster_ranks();
  void take(std::vector<Part>& parts);
  void greet(const std::string& connection, const Hello& hello);
  void take(int from, const Frame& frame, Part* content);
  void look_at_connections();
  void put(Peer& to, Key key, const std::byte* data, std::size_t bytes, const Flag& done);
  Peer& peer(int rank) { return *peers_.at(static_cast<std::size_t>(rank)); }
  const Peer& peer(int rank) const { return *peers_.at(static_cast<std::size_t>(rank)); }

  std::unique_ptr<Transport> messages_;  ///< of the same ranks
  double timeout_;
  std::shared_ptr<Port> port_;
  Hello hello_;
  std::vector<std::unique_ptr<Peer>> peers_;    ///< by rank; none for this one
  std::unordered_map<std::string, int> ranks_;  ///< of connections, by ZeroMQ's name for them
  Clock::time_point looked_{};
  Frame started_{.kind = Frame::Kind::kAnswer, .a = -1, .b = -1};
  int calls_ = 0;
  enum class Phase : std::uint8_t { kMeeting, kOpen, kLeaving } phase_ = Phase::kMeeting;
  std::optional<Roster> decided_;  ///< by the lowest rank that is left
  int exceptions_at_start_ = std::uncaught_exceptions();
};

class ZeroMqRequests final : public RequestSet {
 public:
  explicit ZeroMqRequests(ZeroMqWire& wire) : wire_(wire) {}

 protected:
  void post_send(const std::byte* data, std::size_t bytes, int peer, MessageTag tag) override {
    flags_.push_back(wire_.send(data, bytes, peer, tag));
  }
  void post_receive(std::byte* data, std::size_t bytes, int peer, MessageTag tag) override {
    flags_.push_back(wire_.receive(data, bytes, peer, tag));
  }
  int test_some() override {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < flags_.size(); ++i) {
      entries_[i].done = flags_[i]->load(std::memory_order_acquire);
      if (!entries_[i].done) flags_[kept++] = std::move(flags_[i]);
    }
    const int count = static_cast<int>(flags_.size() - kept);
    flags_.resize(kept);
    return count;
  }

 private:
  ZeroMqWire& wire_;
  std::vector<Flag> flags_;
};

/// Why the other side has refused a greeting; empty if it has not.
std::string refusal(Socket& socket) {
  const auto answer = socket.receive();
  if (!answer || answer->size() != 2) return {};
  const Frame frame = parse_frame(answer->front().text(), {answer->back().size()});
  return frame.kind == Frame::Kind::kRefused ? shown(answer->back().text(), 400) : std::string();
}

[[noreturn]] void fail_of_greeting(const Hello& hello) {
  fail(ExitCode::kLost, "zeromq", "the rank at {} goes on without one that it has lost",
       hello.member.endpoint);
}

ZeroMqWire::ZeroMqWire(std::shared_ptr<Port> port, std::unique_ptr<Transport> messages,
                       double timeout_seconds)
    : messages_(std::move(messages)), timeout_(timeout_seconds), port_(std::move(port)) {
  const std::scoped_lock lock(port_->mutex);
  set_roster_ranks();
  if (messages_) {
    hello_.identity = port_->identity;
    on_all_ranks(*messages_, [&] {
      const std::vector<int> others = partners_of(nullptr, size(), rank());
      call(others);
      connect(others, std::min(timeout_seconds, kMostConnectSeconds), ExitCode::kUsage);
    });
    phase_ = Phase::kOpen;
    return;
  }
  const bool joining = std::exchange(port_->joining, false);
  if (!joining) ++hello_.generation;
  const auto greet_early = [&] {
    for (const auto& [connection, hello] : std::exchange(port_->early, {}))
      greet(connection, hello);
  };
  try {
    if (!joining) {
      call(partners_of(nullptr, size(), rank()));
      greet_early();
      become(meet_again());
    }
    const std::vector<int> others = partners_of(nullptr, size(), rank());
    std::vector<int> strangers;
    std::copy_if(others.begin(), others.end(), std::back_inserter(strangers),
                 [&](int k) { return !peers_[static_cast<std::size_t>(k)]; });
    call(strangers);
    greet_early();
    connect(others, timeout_seconds, ExitCode::kLost);
    // Of ranks that have been left out
    for (const auto& [connection, hello] : std::exchange(port_->early, {}))
      port_->refuse(connection, kGoneOn);
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

void ZeroMqWire::call(const std::vector<int>& others) {
  const std::string text = encode(hello_);
  const FrameBytes frame = encode(Frame{.kind = Frame::Kind::kHello});
  for (const int other : others) {
    const Member& member = port_->roster.members[static_cast<std::size_t>(other)];
    auto& made = peers_[static_cast<std::size_t>(other)];
    made = std::make_unique<Peer>(port_->context, port_->keys, member.endpoint,
                                  fmt::format("{}-{}", hello_.generation, member.endpoint));
    if (member.host != port_->roster.members[static_cast<std::size_t>(rank())].host)
      made->host = member.host;
    if (made->out.send({frame.data(), frame.size()}, true)) made->out.send(text);
  }
}

std::string ZeroMqWire::why_silent(int other, double waited, double limit_seconds) {
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

void ZeroMqWire::connect(const std::vector<int>& others, double limit_seconds, ExitCode code) {
  const auto begin = Clock::now();
  std::optional<ErrorParts> failed;
  Clock::time_point failed_at{};
  while (true) {
    poll();
    bool complete = true;
    for (const int other : others) {
      const std::string reason = why_silent(other, Clock::seconds_since(begin), limit_seconds);
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
    // The others are to find out as well, each for itself.
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
      const std::string reason = why_silent(other, Clock::seconds_since(begin), timeout_);
      if (!reason.empty()) why = fmt::format("rank {} at {} {}", other, one.endpoint, reason);
      if (one.greeted && !one.closed && reason.empty())
        present.push_back(other);
      else
        complete = complete && (one.closed || !reason.empty());
    }
    std::sort(present.begin(), present.end());
    if (complete && present.front() == rank() && !decided_) decided_ = decide(present);
    if (Clock::seconds_since(begin) > 2 * timeout_ + kFailedSeconds)
      leave("rank {} has waited {:g} s for rank {} to say who is left{}{}", rank(), 2 * timeout_,
            present.front(), why.empty() ? "" : "; ", why);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::size_t ranks = port_->roster.members.size();
  std::size_t left = 0;
  for (const Member& member : decided_->members)
    left += std::count(port_->roster.members.begin(), port_->roster.members.end(), member) > 0;
  // Of two parts that do not reach each other one goes on at most.
  if (2 * left < ranks ||
      (2 * left == ranks && decided_->members.front() != port_->roster.members.front()))
    leave("only {} of {} ranks are left, which may be the smaller part{}{}", left, ranks,
          why.empty() ? "" : ": ", why);
  return *decided_;
}

Roster ZeroMqWire::decide(const std::vector<int>& present) {
  Roster roster{hello_.job, hello_.generation};
  for (const int k : present)
    roster.members.push_back(port_->roster.members[static_cast<std::size_t>(k)]);
  std::optional<Port::Waiting> joiner;
  if (std::exchange(port_->admits, false) && port_->anybody_waits()) {
    joiner = port_->waiting.front();
    port_->waiting.erase(port_->waiting.begin());
    roster.members.push_back(joiner->member);
  }
  const std::string text = encode(roster);
  const Frame frame{.kind = Frame::Kind::kRoster};
  for (const int k : present) {
    const FrameBytes bytes = encode(frame);
    if (k != rank() && peer(k).out.send({bytes.data(), bytes.size()}, true)) peer(k).out.send(text);
  }
  if (joiner) port_->send(joiner->connection, frame, text);
  return roster;
}

void ZeroMqWire::become(const Roster& roster) {
  const std::vector<Member> before = std::exchange(port_->roster, roster).members;
  std::vector<std::unique_ptr<Peer>> old = std::exchange(peers_, {});
  std::unordered_map<int, int> renamed;
  const Member& own = before[static_cast<std::size_t>(rank())];
  const auto mine = std::find(roster.members.begin(), roster.members.end(), own);
  if (mine == roster.members.end())
    leave("the others go on without rank {}, which they did not reach in time", rank());
  port_->rank = static_cast<int>(mine - roster.members.begin());
  set_roster_ranks();
  for (std::size_t k = 0; k < before.size(); ++k) {
    const auto place = std::find(roster.members.begin(), roster.members.end(), before[k]);
    if (place == roster.members.end() || before[k] == own) continue;
    const auto now = static_cast<int>(place - roster.members.begin());
    peers_[static_cast<std::size_t>(now)] = std::move(old[k]);
    renamed[static_cast<int>(k)] = now;
  }
  for (auto it = ranks_.begin(); it != ranks_.end();) {
    const auto now = renamed.find(it->second);
    it = now == renamed.end() ? ranks_.erase(it) : (it->second = now->second, std::next(it));
  }
}

ZeroMqWire::~ZeroMqWire() {
  const std::scoped_lock lock(port_->mutex);
  if (phase_ != Phase::kOpen || std::uncaught_exceptions() > exceptions_at_start_) return;
  phase_ = Phase::kLeaving;
  try {
    // A rank says goodbye when it has received all it needs. Until the others have done so, what
    // was sent to them may still be in ZeroMQ's buffers.
    for (const auto& one : peers_) {
      if (!one) continue;
      one->send({.kind = Frame::Kind::kBye});
      one->out.linger(1000);
    }
    const auto begin = Clock::now();
    const auto waits = [](const auto& one) { return one && !one->ended && !one->closed; };
    while (std::any_of(peers_.begin(), peers_.end(), waits) &&
           Clock::seconds_since(begin) < timeout_) {
      poll();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  } catch (const Error&) {  // a peer that was lost: nobody waits for it any more
  }
}

std::unique_ptr<RequestSet> ZeroMqWire::make_requests() {
  return std::make_unique<ZeroMqRequests>(*this);
}

std::shared_ptr<WireCall> ZeroMqWire::make_call(Call kind, std::string what,
                                                std::vector<std::byte> mine,
                                                std::vector<int> counts, int root) {
  const int tag = kMostTag / 2 + calls_++ % (kMostTag / 2);
  return make_message_call(*this, tag, kind, std::move(what), std::move(mine), counts, root);
}

AwaitedRank ZeroMqWire::known_of(int rank) const {
  const Peer& one = peer(rank);
  return {rank, Clock::seconds_since(one.heard),
          one.ended    ? "has ended"
          : one.closed ? "its connection has closed"
          : one.answer ? alive_text(one.answer->a, one.answer->b)
                       : "",
          true, one.host};
}

Flag ZeroMqWire::send(const std::byte* data, std::size_t bytes, int to, MessageTag tag) {
  require(bytes <= kMostMessageBytes, "zeromq", "a message of {} bytes; the most are {}", bytes,
          kMostMessageBytes);
  Peer& one = peer(to);
  const Key key{tag.tag, tag.place};
  Flag done = make_flag(false);
  if (bytes <= kAtOnceBytes || one.ready.erase(key) > 0) {
    put(one, key, data, bytes, done);
  } else {
    one.waiting[key] = {data, bytes, done};
    one.send({Frame::Kind::kOffer, key.tag, static_cast<std::int64_t>(key.place),
              static_cast<std::int64_t>(bytes)});
  }
  return done;
}

void ZeroMqWire::put(Peer& to, Key key, const std::byte* data, std::size_t bytes,
                     const Flag& done) {
  const FrameBytes frame =
      encode(Frame{Frame::Kind::kData, key.tag, static_cast<std::int64_t>(key.place),
                   static_cast<std::int64_t>(bytes)});
  if (!to.out.send({frame.data(), frame.size()}, true)) return;  // it has gone
  if (bytes <= kAtOnceBytes) {
    to.out.send({reinterpret_cast<const char*>(data), bytes});
    done->store(true, std::memory_order_release);
    return;
  }
  // Without a copy: ZeroMQ's thread sets the flag when it needs the memory no more.
  Part part;
  zmq_check(zmq_msg_init_data(
                part.get(), const_cast<std::byte*>(data), bytes,
                [](void*, void* hint) {
                  const std::unique_ptr<Flag> flag(static_cast<Flag*>(hint));
                  (*flag)->store(true, std::memory_order_release);
                },
                new Flag(done)),
            "zmq_msg_init_data");
  to.out.send(part);
}

Flag ZeroMqWire::receive(std::byte* data, std::size_t bytes, int from, MessageTag tag) {
  Peer& one = peer(from);
  const Key key{tag.tag, tag.place};
  const auto early = one.early.find(key);
  if (early != one.early.end()) {
    if (early->second.bytes != bytes) fail_of_length(from);
    std::optional<Part> came = std::move(early->second.data);
    one.early.erase(early);
    if (came) {
      std::memcpy(data, came->text().data(), bytes);
      return make_flag(true);
    }
  }
  Flag done = make_flag(false);
  one.posted[key] = {data, bytes, done};
  if (bytes > kAtOnceBytes)
    one.send({Frame::Kind::kReady, key.tag, static_cast<std::int64_t>(key.place),
              static_cast<std::int64_t>(bytes)});
  return done;
}

bool ZeroMqWire::poll() {
  bool any = false;
  for (int taken = 0; taken < kMostTaken; ++taken) {
    auto parts = port_->in.receive();
    if (!parts) break;
    any = true;
    take(*parts);
  }
  if (Clock::now() - looked_ > kLookAfter || phase_ != Phase::kOpen) {
    looked_ = Clock::now();
    port_->gatekeeper.poll();
    look_at_connections();
  }
  return any;
}

void ZeroMqWire::take(std::vector<Part>& parts) {
  // The connection's name, the frame, and what belongs to it
  const std::string connection(parts.front().text());
  const auto known = ranks_.find(connection);
  try {
    std::vector<std::size_t> sizes;
    for (std::size_t k = 2; k < parts.size(); ++k) sizes.push_back(parts[k].size());
    const Frame frame = parse_frame(parts.size() > 1 ? parts[1].text() : std::string_view(), sizes);
    if (known != ranks_.end()) {
      take(known->second, frame, parts.size() > 2 ? &parts[2] : nullptr);
    } else if (frame.kind == Frame::Kind::kHello) {
      greet(connection, parse_hello(parts[2].text()));
    } else if (frame.kind == Frame::Kind::kAsk) {
      for (Port::Waiting& one : port_->waiting) {
        if (one.connection != connection) continue;
        one.heard = Clock::now();
        port_->send(connection, started_);
      }
    }
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) throw;
    if (known == ranks_.end()) return;  // no rank of this job
    fail(ExitCode::kLost, "zeromq", "rank {} has sent what no rank sends: {}", known->second,
         error.message());
  }
}

void ZeroMqWire::greet(const std::string& connection, const Hello& hello) {
  if (hello.joins) return port_->consider(connection, hello);
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
  peer(other).greeted = true;
  peer(other).heard = Clock::now();
  ranks_[connection] = other;
}

void ZeroMqWire::take(int from, const Frame& frame, Part* content) {
  Peer& one = peer(from);
  one.heard = Clock::now();
  const Key key{frame.tag, static_cast<std::size_t>(frame.a)};
  const auto bytes = static_cast<std::size_t>(frame.b);
  switch (frame.kind) {
    case Frame::Kind::kHello:
    case Frame::Kind::kRefused: break;
    case Frame::Kind::kRoster:
      if (Roster roster = parse_roster(content->text()); phase_ == Phase::kMeeting &&
                                                         roster.job == hello_.job &&
                                                         roster.generation == hello_.generation)
        decided_ = std::move(roster);
      break;
    case Frame::Kind::kAsk: one.send(started_); break;
    case Frame::Kind::kAnswer: one.answer = frame; break;
    case Frame::Kind::kBye:
      one.ended = true;
      if (!one.closed) one.closed = Clock::now();
      break;
    case Frame::Kind::kOffer:
    case Frame::Kind::kData: {
      const auto posted = one.posted.find(key);
      if (posted == one.posted.end()) {
        one.early[key] = {bytes, content ? std::optional(std::move(*content)) : std::nullopt};
        break;
      }
      if (posted->second.bytes != bytes) fail_of_length(from);
      if (!content) break;  // it knows already that there is memory
      std::memcpy(posted->second.data, content->text().data(), bytes);
      posted->second.done->store(true, std::memory_order_release);
      one.posted.erase(posted);
      break;
    }
    case Frame::Kind::kReady: {
      const auto waiting = one.waiting.find(key);
      if (waiting == one.waiting.end()) {
        one.ready[key] = true;
        break;
      }
      const Peer::Waiting message = std::move(waiting->second);
      one.waiting.erase(waiting);
      if (message.bytes != bytes) fail_of_length(from);
      put(one, key, message.data, message.bytes, message.done);
      break;
    }
  }
}

void ZeroMqWire::look_at_connections() {
  for (const int other : partners_of(nullptr, size(), rank())) {
    if (!peers_.at(static_cast<std::size_t>(other))) continue;
    Peer& one = peer(other);
    const Monitor::Event event = one.monitor.poll();
    if (event == Monitor::Event::kRefused) one.refused = true;
    if (event != Monitor::Event::kNone && !one.closed) one.closed = Clock::now();
    const bool needed = !one.ended || !one.posted.empty() || !one.waiting.empty();
    if (phase_ == Phase::kMeeting || !one.closed || !needed ||
        Clock::seconds_since(*one.closed) < kGoneSeconds)
      continue;
    fail(ExitCode::kLost, "zeromq", "rank {}{} is lost: {}", other,
         one.host.empty() ? "" : " on host " + one.host,
         one.ended ? "it has ended, and this rank still waits for it"
                   : "its connection has closed before its end");
  }
}

}  // namespace

std::unique_ptr<Wire> make_zeromq_wire(std::shared_ptr<Port> port,
                                       std::unique_ptr<Transport> messages,
                                       double timeout_seconds) {
  return std::make_unique<ZeroMqWire>(std::move(port), std::move(messages), timeout_seconds);
}

}  // namespace detail
}  // namespace starling
