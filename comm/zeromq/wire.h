#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/engine/operation.h"
#include "comm/zeromq/frames.h"
#include "comm/zeromq/port.h"
#include "comm/zeromq/sockets.h"
#include "core/running_clock.h"

namespace starling::detail {

/// Completion of a request. Set by ZeroMQ's thread for a send without a copy.
using CompletionFlag = std::shared_ptr<std::atomic<bool>>;

/// Identifies a message from or to a peer.
struct MessageKey {
  int tag;
  std::size_t place;
  bool operator==(const MessageKey&) const = default;
};
struct KeyHash {
  std::size_t operator()(const MessageKey& key) const {
    return std::hash<std::size_t>()(key.place * static_cast<std::size_t>(kMostTag) +
                                    static_cast<std::size_t>(key.tag));
  }
};
template <class T>
using ByKey = std::unordered_map<MessageKey, T, KeyHash>;

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
  std::optional<RunningClock::time_point>
      closed;  ///< when the connection closed, or it said goodbye
  RunningClock::time_point last_heard{};
  std::optional<RunningClock::time_point> asked;  ///< the first question since then
  std::optional<Frame> answer;

  struct Posted {
    std::byte* data;
    std::size_t bytes;
    CompletionFlag done;
  };
  struct Waiting {
    const std::byte* data;
    std::size_t bytes;
    CompletionFlag done;
  };
  struct Unexpected {
    std::size_t bytes;
    std::optional<Part> data;  ///< none: announced by kOffer, not yet sent
  };
  ByKey<Posted> posted;          ///< receives whose message has not arrived
  ByKey<Unexpected> unexpected;  ///< messages that arrived before their receive was posted
  ByKey<Waiting> waiting;        ///< sends that wait for the receiver's kReady
  ByKey<bool> ready;             ///< kReady that arrived before its send was posted
};

/// In two files: meeting.cpp, connection set-up and changes of membership; wire.cpp, messages.
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
  void ask(int rank) override {
    Peer& one = peer(rank);
    one.send({.kind = Frame::Kind::kAsk});
    if (!one.asked) one.asked = RunningClock::now();
  }
  void note_started(const ExchangeLabel& label) override {
    started_.a = label.step;
    started_.b = label.bucket;
  }
  AwaitedRank status_of(int rank) const override;
  void revoke() override {}  // nothing to do: closed connections tell the others
  bool abandon() override {
    phase_ = Phase::kMeeting;
    peers_.clear();
    return false;
  }

  CompletionFlag send(const std::byte* data, std::size_t bytes, int to, MessageTag tag);
  CompletionFlag receive(std::byte* data, std::size_t bytes, int from, MessageTag tag);

 private:
  /// Connects to these ranks of the roster, and sends a Hello to each.
  void connect_to(const std::vector<int>& others);
  /// Waits for their Hello. Error(code) that names a rank that has sent none.
  void await_hellos(const std::vector<int>& others, double limit_seconds, ExitCode code);
  /// Why a rank will send no Hello; empty if it still may.
  std::string why_no_hello(int other, double waited, double limit_seconds);
  Roster meet_again();
  /// On the rank that decides: the new roster, of survivors and of the joiners that are let in.
  Roster make_roster(const std::vector<int>& present);
  /// Throws: the job continues without this rank.
  [[noreturn]] void fail_excluded(const Roster& others);
  /// Makes this the roster of the job.
  void install_roster(const Roster& roster);
  /// Throws, after which this process cannot meet the others again: Membership::over().
  template <class... Args>
  [[noreturn]] void leave(fmt::format_string<Args...> format, Args&&... args);
  void set_roster_ranks();
  void handle_message(std::vector<Part>& parts);
  void greet(const std::string& connection, const Hello& hello);
  void handle_frame(int from, const Frame& frame, Part* content);
  void check_connections();
  void send_data(Peer& to, MessageKey key, const std::byte* data, std::size_t bytes,
                 const CompletionFlag& done);
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
  std::set<std::string> silent_;   ///< endpoints of ranks that somebody has found silent
  std::optional<Roster> decided_;  ///< the new roster, made by the lowest surviving rank
  bool decides_ = false;           ///< this rank is the lowest survivor
  int exceptions_at_start_ = std::uncaught_exceptions();
};

}  // namespace starling::detail
