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
#include "comm/zeromq/address.h"
#include "comm/zeromq/frames.h"
#include "comm/zeromq/sockets.h"
#include "comm/zeromq/transport.h"
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
  ZeroMqWire(std::unique_ptr<Transport> messages, const ZeroMqSettings& settings,
             double timeout_seconds);
  ~ZeroMqWire() override;

  std::string name() const override { return "zeromq"; }
  std::recursive_timed_mutex& lock() override { return mutex_; }
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
    say_goodbye_ = false;
    peers_.clear();
    return false;
  }

  Flag send(const std::byte* data, std::size_t bytes, int to, MessageTag tag);
  Flag receive(std::byte* data, std::size_t bytes, int from, MessageTag tag);

 private:
  void listen(const ZeroMqSettings& settings, const Keys& keys, bool one_host);
  void connect(const std::vector<std::string>& endpoints, const Keys& keys, double limit_seconds);
  void take(std::vector<Part>& parts);
  void take(int from, const Frame& frame, Part* content);
  void look_at_connections();
  /// Tells a process that has the secret why it is no rank of this job.
  void refuse(const std::string& connection, const std::string& reason);
  void put(Peer& to, Key key, const std::byte* data, std::size_t bytes, const Flag& done);
  Peer& peer(int rank) { return *peers_.at(static_cast<std::size_t>(rank)); }
  const Peer& peer(int rank) const { return *peers_.at(static_cast<std::size_t>(rank)); }

  std::unique_ptr<Transport> messages_;  ///< of the same ranks
  std::recursive_timed_mutex mutex_;
  double timeout_;
  Context context_;
  std::optional<Gatekeeper> gatekeeper_;
  Socket in_;
  Hello hello_;
  std::vector<std::unique_ptr<Peer>> peers_;    ///< by rank; none for this one
  std::unordered_map<std::string, int> ranks_;  ///< of connections, by ZeroMQ's name for them
  Clock::time_point looked_{};
  Frame started_{.kind = Frame::Kind::kAnswer, .a = -1, .b = -1};
  int calls_ = 0;
  bool say_goodbye_ = false;
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

/// Bytes of the first rank, on all.
std::string from_first(World& world, const std::string& mine) {
  return world.all_gather(world.rank() == 0 ? mine : std::string()).front();
}
template <class T>
std::string as_text(const T& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Why the other side has refused a greeting; empty if it has not.
std::string refusal(Socket& socket) {
  const auto answer = socket.receive();
  if (!answer || answer->size() != 2) return {};
  const Frame frame = parse_frame(answer->front().text(), {answer->back().size()});
  return frame.kind == Frame::Kind::kRefused ? shown(answer->back().text(), 400) : std::string();
}

ZeroMqWire::ZeroMqWire(std::unique_ptr<Transport> messages, const ZeroMqSettings& settings,
                       double timeout_seconds)
    : messages_(std::move(messages)), timeout_(timeout_seconds), in_(context_, ZMQ_ROUTER) {
  World& world = messages_->world();
  set_ranks(world.rank(), world.size(), world.local_rank(), world.local_size());
  Secret secret{}, job{};
  on_all_ranks(world, [&] {
    if (!settings.secret.empty()) secret = read_secret(settings.secret);
    if (world.rank() != 0) return;
    if (settings.secret.empty()) secret = draw_secret();
    job = draw_secret();
  });
  if (settings.secret.empty()) {
    const std::string first = from_first(world, as_text(secret));
    std::copy(first.begin(), first.end(), secret.begin());
  }
  hello_.rank = rank();
  hello_.identity = settings.identity;
  for (const char byte : from_first(world, as_text(job)))
    hello_.job += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  std::optional<Keys> keys;
  on_all_ranks(world, [&] {
    keys.emplace(secret);
    listen(settings, *keys, world.local_size() == world.size());
  });
  const std::vector<std::string> endpoints = world.all_gather(in_.endpoint());
  const std::vector<std::string> hosts = world.all_gather(host_name());
  on_all_ranks(world,
               [&] { connect(endpoints, *keys, std::min(timeout_seconds, kMostConnectSeconds)); });
  for (const int other : partners_of(nullptr, size(), rank())) {
    const std::string& host = hosts[static_cast<std::size_t>(other)];
    if (host != host_name()) peer(other).host = host;
  }
  say_goodbye_ = true;
}

void ZeroMqWire::listen(const ZeroMqSettings& settings, const Keys& keys, bool one_host) {
  gatekeeper_.emplace(context_, keys);
  keys.serve(in_);
  in_.set(ZMQ_RCVHWM, 0);
  const auto most = static_cast<std::int64_t>(kMostMessageBytes);
  zmq_check(zmq_setsockopt(in_.get(), ZMQ_MAXMSGSIZE, &most, sizeof most), "zmq_setsockopt");
  const std::string address =
      one_host && settings.interface.empty() ? "127.0.0.1" : address_of(settings.interface);
  const std::string port = settings.port == 0 ? "*" : std::to_string(settings.port + local_rank());
  if (settings.port + local_rank() > 65535 ||
      zmq_bind(in_.get(), fmt::format("tcp://{}:{}", address, port).c_str()) != 0)
    fail(
        ExitCode::kUsage, "config", {.key = "sync.transport.port"},
        "rank {} on host {} cannot listen at {}:{}: {}; give another port, or 0 for one of the "
        "system's choice",
        rank(), host_name(), address, port,
        settings.port + local_rank() > 65535 ? "there is no such port" : zmq_strerror(zmq_errno()));
}

void ZeroMqWire::connect(const std::vector<std::string>& endpoints, const Keys& keys,
                         double limit_seconds) {
  const std::string text = encode(hello_);
  const FrameBytes frame = encode(Frame{.kind = Frame::Kind::kHello});
  peers_.resize(endpoints.size());
  const std::vector<int> others = partners_of(nullptr, size(), rank());
  for (const int other : others) {
    auto& made = peers_[static_cast<std::size_t>(other)];
    made = std::make_unique<Peer>(context_, keys, endpoints[static_cast<std::size_t>(other)],
                                  fmt::format("rank-{}", other));
    if (made->out.send({frame.data(), frame.size()}, true)) made->out.send(text);
  }
  const auto begin = Clock::now();
  const auto why_not = [&](Peer& one) -> std::string {
    if (one.greeted) return {};
    if (one.refused)
      return "does not accept this rank's secret; the file of sync.transport.secret must be the "
             "same on every host";
    const std::string network =
        "sync.transport.interface names the network between the hosts, sync.transport.port what a "
        "firewall lets through";
    if (one.closed) return "cannot be reached: connection refused; " + network;
    if (Clock::seconds_since(begin) > limit_seconds)
      return fmt::format("has not connected to {} within {:g} s; {}", in_.endpoint(), limit_seconds,
                         network);
    return {};
  };
  std::optional<ErrorParts> failed;
  Clock::time_point failed_at{};
  const auto note = [&](int other, const std::string& reason) {
    if (reason.empty() || failed) return;
    failed_at = Clock::now();
    failed = {.component = "zeromq",
              .what = fmt::format("rank {} on host {}: rank {} at {} {}", rank(), host_name(),
                                  other, peer(other).endpoint, reason)};
  };
  while (true) {
    poll();
    bool complete = true;
    for (const int other : others) {
      const std::string reason = refusal(peer(other).out);
      note(other, reason.empty() ? why_not(peer(other)) : "refuses it: " + reason);
      complete = complete && peer(other).greeted;
    }
    // The others are to find out as well, each for itself.
    if (failed && Clock::seconds_since(failed_at) > kFailedSeconds) {
      abandon();
      throw Error(ExitCode::kUsage, *failed);
    }
    if (complete && !failed) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

ZeroMqWire::~ZeroMqWire() {
  if (!say_goodbye_ || std::uncaught_exceptions() > exceptions_at_start_) return;
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
    auto parts = in_.receive();
    if (!parts) break;
    any = true;
    take(*parts);
  }
  if (Clock::now() - looked_ > kLookAfter || !say_goodbye_) {
    looked_ = Clock::now();
    gatekeeper_->poll();
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
      const Hello hello = parse_hello(parts[2].text());
      std::string reason = why_refused(hello_, hello, size());
      if (reason.empty() && peer(hello.rank).greeted)
        reason = fmt::format("there is a rank {} already", hello.rank);
      if (!reason.empty()) {
        refuse(connection, reason);
        return;
      }
      peer(hello.rank).greeted = true;
      peer(hello.rank).heard = Clock::now();
      ranks_[connection] = hello.rank;
    }
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) throw;
    if (known == ranks_.end()) return;  // no rank of this job
    fail(ExitCode::kLost, "zeromq", "rank {} has sent what no rank sends: {}", known->second,
         error.message());
  }
}

void ZeroMqWire::refuse(const std::string& connection, const std::string& reason) {
  const FrameBytes frame = encode(Frame{.kind = Frame::Kind::kRefused});
  if (in_.send(connection, true) && in_.send({frame.data(), frame.size()}, true))
    in_.send(reason.substr(0, kMostTextBytes));
}

void ZeroMqWire::take(int from, const Frame& frame, Part* content) {
  Peer& one = peer(from);
  one.heard = Clock::now();
  const Key key{frame.tag, static_cast<std::size_t>(frame.a)};
  const auto bytes = static_cast<std::size_t>(frame.b);
  switch (frame.kind) {
    case Frame::Kind::kHello:
    case Frame::Kind::kRefused: break;
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
    if (!say_goodbye_ || !one.closed || !needed || Clock::seconds_since(*one.closed) < kGoneSeconds)
      continue;
    fail(ExitCode::kLost, "zeromq", "rank {}{} is lost: {}", other,
         one.host.empty() ? "" : " on host " + one.host,
         one.ended ? "it has ended, and this rank still waits for it"
                   : "its connection has closed before its end");
  }
}

}  // namespace
}  // namespace detail

std::unique_ptr<Transport> make_zeromq_transport(std::unique_ptr<Transport> messages,
                                                 const ZeroMqSettings& settings,
                                                 double timeout_seconds) {
  return detail::make_wire_transport(
      std::make_unique<detail::ZeroMqWire>(std::move(messages), settings, timeout_seconds),
      timeout_seconds);
}

}  // namespace starling
