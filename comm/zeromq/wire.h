#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/engine/operation.h"
#include "comm/zeromq/frames.h"
#include "comm/zeromq/port.h"
#include "comm/zeromq/sockets.h"
#include "core/running_clock.h"

namespace starling::detail {

/// Whether a request has completed. Set by ZeroMQ's thread for a send without a copy.
using Flag = std::shared_ptr<std::atomic<bool>>;

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
  void send(const Frame& frame, std::string_view text = {}) {
    const FrameBytes bytes = encode(frame);
    if (out.send({bytes.data(), bytes.size()}, !text.empty()) && !text.empty()) out.send(text);
  }

  std::string endpoint, host;  ///< host: empty where it is this rank's
  std::string refusal;         ///< why it has refused this rank's greeting
  Socket out;
  Monitor monitor;
  bool greeted = false, ended = false, refused = false;
  std::optional<RunningClock::time_point> closed;  ///< or it has ended
  RunningClock::time_point heard{};
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

/// In two files: meeting.cpp, how ranks come to know each other; wire.cpp, messages between them.
class ZeroMqWire final : public Wire {
 public:
  ZeroMqWire(std::shared_ptr<Port> port, Transport* messages, double timeout_seconds);
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
  /// Fails for good, as the job goes on with others.
  [[noreturn]] void leave_to(const Roster& others);
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

  double timeout_;
  std::shared_ptr<Port> port_;
  Hello hello_;
  std::vector<std::unique_ptr<Peer>> peers_;    ///< by rank; none for this one
  std::unordered_map<std::string, int> ranks_;  ///< of connections, by ZeroMQ's name for them
  RunningClock::time_point looked_{};
  Frame started_{.kind = Frame::Kind::kAnswer, .a = -1, .b = -1};
  int calls_ = 0;
  enum class Phase : std::uint8_t { kMeeting, kOpen, kLeaving } phase_ = Phase::kMeeting;
  std::optional<Roster> decided_;  ///< by the lowest rank that is left
  bool decides_ = false;           ///< this rank is that
  int exceptions_at_start_ = std::uncaught_exceptions();
};

}  // namespace starling::detail
