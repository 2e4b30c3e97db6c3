#include "comm/zeromq/wire.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "comm/flight.h"
#include "core/error.h"

namespace starling {
namespace detail {
namespace {

using Clock = RunningClock;

/// Larger messages are sent when the receiver has memory for them, so that a rank that is behind
/// does not have to keep what others send.
constexpr std::size_t kAtOnceBytes = 64 << 10;
constexpr auto kConnectionCheckInterval = std::chrono::milliseconds(20);
/// After a connection has closed: its last messages may still arrive, and a wait that is about to
/// time out says more.
constexpr double kGoneSeconds = 1.0;
constexpr int kMostTaken = 64;  // messages, until operations have looked at them

CompletionFlag make_flag(bool value) { return std::make_shared<std::atomic<bool>>(value); }

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
  std::vector<CompletionFlag> flags_;
};

}  // namespace

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

AwaitedRank ZeroMqWire::status_of(int rank) const {
  const Peer& one = peer(rank);
  return {rank, Clock::seconds_since(one.last_heard),
          one.ended    ? "has ended"
          : one.closed ? "its connection has closed"
          : one.answer ? alive_text(one.answer->a, one.answer->b)
                       : "",
          true, one.host};
}

CompletionFlag ZeroMqWire::send(const std::byte* data, std::size_t bytes, int to, MessageTag tag) {
  require(bytes <= kMostMessageBytes, "zeromq", "a message of {} bytes; the most are {}", bytes,
          kMostMessageBytes);
  Peer& one = peer(to);
  const MessageKey key{tag.tag, tag.place};
  CompletionFlag done = make_flag(false);
  if (bytes <= kAtOnceBytes || one.ready.erase(key) > 0) {
    send_data(one, key, data, bytes, done);
  } else {
    one.waiting[key] = {data, bytes, done};
    one.send({Frame::Kind::kOffer, key.tag, static_cast<std::int64_t>(key.place),
              static_cast<std::int64_t>(bytes)});
  }
  return done;
}

void ZeroMqWire::send_data(Peer& to, MessageKey key, const std::byte* data, std::size_t bytes,
                           const CompletionFlag& done) {
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
                  const std::unique_ptr<CompletionFlag> flag(static_cast<CompletionFlag*>(hint));
                  (*flag)->store(true, std::memory_order_release);
                },
                new CompletionFlag(done)),
            "zmq_msg_init_data");
  to.out.send(part);
}

CompletionFlag ZeroMqWire::receive(std::byte* data, std::size_t bytes, int from, MessageTag tag) {
  Peer& one = peer(from);
  const MessageKey key{tag.tag, tag.place};
  const auto unexpected = one.unexpected.find(key);
  if (unexpected != one.unexpected.end()) {
    if (unexpected->second.bytes != bytes) fail_wrong_length(from);
    std::optional<Part> arrived = std::move(unexpected->second.data);
    one.unexpected.erase(unexpected);
    if (arrived) {
      std::memcpy(data, arrived->text().data(), bytes);
      return make_flag(true);
    }
  }
  CompletionFlag done = make_flag(false);
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
    handle_message(*parts);
  }
  if (Clock::now() - looked_ > kConnectionCheckInterval || phase_ != Phase::kOpen) {
    looked_ = Clock::now();
    port_->gatekeeper.poll();
    check_connections();
  }
  return any;
}

void ZeroMqWire::handle_message(std::vector<Part>& parts) {
  // The connection's name, the frame, and what belongs to it
  const std::string connection(parts.front().text());
  const auto known = ranks_.find(connection);
  try {
    std::vector<std::size_t> sizes;
    for (std::size_t k = 2; k < parts.size(); ++k) sizes.push_back(parts[k].size());
    const Frame frame = parse_frame(parts.size() > 1 ? parts[1].text() : std::string_view(), sizes);
    if (known != ranks_.end()) {
      handle_frame(known->second, frame, parts.size() > 2 ? &parts[2] : nullptr);
    } else if (frame.kind == Frame::Kind::kHello) {
      greet(connection, parse_hello(parts[2].text()));
    } else {
      port_->answer(connection, frame, started_);
    }
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) throw;
    if (known == ranks_.end()) return;  // no rank of this job
    fail(ExitCode::kLost, "zeromq", "rank {} has sent what no rank sends: {}", known->second,
         error.message());
  }
}

void ZeroMqWire::handle_frame(int from, const Frame& frame, Part* content) {
  Peer& one = peer(from);
  one.last_heard = Clock::now();
  one.asked.reset();
  const MessageKey key{frame.tag, static_cast<std::size_t>(frame.a)};
  const auto bytes = static_cast<std::size_t>(frame.b);
  switch (frame.kind) {
    case Frame::Kind::kHello:
    case Frame::Kind::kRefused:
    case Frame::Kind::kState:
    case Frame::Kind::kFetch:
    case Frame::Kind::kPiece: break;
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
        one.unexpected[key] = {bytes, content ? std::optional(std::move(*content)) : std::nullopt};
        break;
      }
      if (posted->second.bytes != bytes) fail_wrong_length(from);
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
      if (message.bytes != bytes) fail_wrong_length(from);
      send_data(one, key, message.data, message.bytes, message.done);
      break;
    }
  }
}

void ZeroMqWire::check_connections() {
  for (const int other : partners_of(nullptr, size(), rank())) {
    if (!peers_.at(static_cast<std::size_t>(other))) continue;
    Peer& one = peer(other);
    const Monitor::Event event = one.monitor.poll();
    if (event == Monitor::Event::kRefused) one.refused = true;
    if (event != Monitor::Event::kNone && !one.closed) one.closed = Clock::now();
    const bool may_go_on = port_->lets_join && (size() > 2 || rank() == 0);
    if (phase_ == Phase::kOpen && may_go_on && one.asked &&
        Clock::seconds_since(*one.asked) > port_->heartbeat_seconds) {
      port_->silent.push_back(one.endpoint);
      fail(ExitCode::kLost, "zeromq",
           "rank {}{} is lost: it has given no sign of life for {:.1f} s (sync.heartbeat_s {:g})",
           other, one.host.empty() ? "" : " on host " + one.host,
           Clock::seconds_since(one.last_heard), port_->heartbeat_seconds);
    }
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

std::unique_ptr<Wire> make_zeromq_wire(std::shared_ptr<Port> port, Transport* messages,
                                       double timeout_seconds) {
  return std::make_unique<ZeroMqWire>(std::move(port), messages, timeout_seconds);
}

}  // namespace detail
}  // namespace starling
