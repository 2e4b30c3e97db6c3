#include "comm/membership.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "comm/shared/memory_sharing.h"
#include "comm/zeromq/address.h"
#include "comm/zeromq/port.h"
#include "comm/zeromq/transport.h"
#include "core/error.h"
#include "core/host.h"
#include "core/text.h"

namespace starling {
namespace detail {
namespace {

constexpr auto kAskAfter = std::chrono::seconds(1);
constexpr double kLastWordSeconds = 0.2;  // after the connection has closed: what was sent before
constexpr int kPiecesAhead = 8;           // of a state, so that the link is never idle
constexpr double kMostSecondsToAnswer = 60.0;  // to the first question; later ones may take longer

/// Bytes of the first rank, on all.
std::string from_first(World& world, const std::string& mine) {
  return world.all_gather(world.rank() == 0 ? mine : std::string()).front();
}
template <class T>
std::string as_text(const T& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string hexadecimal(const Secret& secret) {
  std::string text;
  for (const unsigned char byte : secret) text += fmt::format("{:02x}", byte);
  return text;
}

/// The port of each of the ranks of a world, in a job that begins. Collective.
std::shared_ptr<Port> open_port(World& world, const ZeroMqSettings& settings) {
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
  std::shared_ptr<Port> port;
  on_all_ranks(world, [&] {
    port = std::make_shared<Port>(secret);
    const bool one_host = world.local_size() == world.size() && settings.interface.empty();
    const int first = settings.port == 0 ? 0 : settings.port + world.local_rank();
    port->listen(one_host ? "127.0.0.1" : address_of(settings.interface), first, 1);
  });
  port->roster.job = from_first(world, hexadecimal(job));
  const std::vector<std::string> endpoints = world.all_gather(port->in.endpoint()),
                                 hosts = world.all_gather(host_name());
  for (std::size_t k = 0; k < hosts.size(); ++k)
    port->roster.members.push_back({endpoints[k], hosts[k]});
  port->rank = world.rank();
  port->identity = settings.identity;
  port->lets_join = settings.lets_join;
  port->heartbeat_seconds = settings.heartbeat_seconds;
  port->roster.replica = settings.replica;
  return port;
}

/// Asks for admission to a job, and waits for it: a port whose process is in the roster.
std::shared_ptr<Port> admitted(const Roster& roster, const ZeroMqSettings& settings,
                               double timeout_seconds, const StatePieces& pieces) {
  using Clock = RunningClock;
  const Member& first = roster.members.front();
  const std::string whom =
      fmt::format("rank 0 of the run, at {} on host {},", first.endpoint, shown(first.host, 100));
  const bool local = first.endpoint.starts_with("tcp://127.0.0.1:");
  if (local && first.host != host_name())
    fail(ExitCode::kUsage, "join", {.key = "sync.transport.interface"},
         "the run's ranks are all on host {} and listen there alone, this is host {}; start the "
         "run with the interface that other hosts reach",
         shown(first.host, 100), host_name());
  auto port = std::make_shared<Port>(read_secret(settings.secret));
  const auto neighbours =
      std::count_if(roster.members.begin(), roster.members.end(),
                    [](const Member& member) { return member.host == host_name(); });
  port->listen(local ? "127.0.0.1" : address_of(settings.interface), settings.port,
               settings.port == 0 ? 1 : static_cast<int>(neighbours) + 1);
  Socket out(port->context, ZMQ_DEALER);
  Monitor monitor(port->context, out, "join");
  port->keys.connect(out);
  out.set(ZMQ_RECONNECT_IVL, -1);
  zmq_check(zmq_connect(out.get(), first.endpoint.c_str()), "zmq_connect");
  const auto send = [&](Frame::Kind kind, const std::string& text = {}) {
    const FrameBytes bytes = encode(Frame{.kind = kind});
    out.send({bytes.data(), bytes.size()}, !text.empty());
    if (!text.empty()) out.send(text);
  };
  auto identity = settings.identity;
  identity[kMemory] = make_process_sharing(timeout_seconds)->host();
  send(Frame::Kind::kHello, encode(Hello{.job = roster.job,
                                         .generation = roster.generation,
                                         .identity = std::move(identity),
                                         .member = {port->in.endpoint(), host_name()},
                                         .joins = true}));
  const auto begin = Clock::now();
  auto heard = begin, asked = begin;
  std::optional<Clock::time_point> closed;
  bool answered = false;
  Frame state;  // that was offered last
  std::int64_t come = 0, fetched = 0;
  const auto fetch = [&] {
    const Frame next{.kind = Frame::Kind::kFetch, .tag = state.tag, .a = fetched};
    const FrameBytes bytes = encode(next);
    out.send({bytes.data(), bytes.size()});
    fetched += static_cast<std::int64_t>(kStateChunkBytes);
  };
  while (true) {
    while (const auto parts = out.receive()) {
      std::vector<std::size_t> sizes;
      for (std::size_t k = 1; k < parts->size(); ++k) sizes.push_back((*parts)[k].size());
      const Frame frame = parse_frame(parts->front().text(), sizes);
      heard = Clock::now();
      answered = true;
      if (frame.kind == Frame::Kind::kRefused) {
        const std::string reason = shown(parts->back().text(), 400);
        fail(ExitCode::kUsage, "join", "the run refuses this process: {}{}", reason,
             reason.starts_with("its ")
                 ? "; join with the run's version, data and config, of which "
                   "--set may change data.path, device and threads"
                 : "");
      }
      if (frame.kind == Frame::Kind::kState && pieces) {
        state = frame;
        come = fetched = 0;
        for (int k = 0; k < kPiecesAhead && fetched < state.a; ++k) fetch();
      }
      if (frame.kind == Frame::Kind::kPiece && frame.tag == state.tag && frame.a == come) {
        const std::string_view piece = parts->back().text();
        pieces(static_cast<std::uint64_t>(state.a), static_cast<std::uint64_t>(come), piece);
        come += static_cast<std::int64_t>(piece.size());
        if (fetched < state.a) fetch();
        if (come != state.a) continue;
        fetched = come;
        fetch();
      }
      if (frame.kind != Frame::Kind::kRoster) continue;
      port->roster = parse_roster(parts->back().text());
      const auto& members = port->roster.members;
      const Member own{port->in.endpoint(), host_name()};
      const auto mine = std::find(members.begin(), members.end(), own);
      if (port->roster.job != roster.job || mine == members.end())
        fail(ExitCode::kLost, "join", "{} has sent a list of ranks that this process is not in",
             whom);
      port->rank = static_cast<int>(mine - members.begin());
      port->joining = port->lets_join = true;
      port->heartbeat_seconds = settings.heartbeat_seconds;
      port->identity = settings.identity;
      return port;
    }
    const Monitor::Event event = monitor.poll();
    if (event == Monitor::Event::kRefused)
      fail(ExitCode::kUsage, "join", {.file = settings.secret},
           "{} does not accept this secret; take the file `secret` of the run's folder, or that of "
           "its sync.transport.secret",
           whom);
    if (event == Monitor::Event::kClosed && !closed) closed = Clock::now();
    if (closed && Clock::seconds_since(*closed) > kLastWordSeconds)
      fail(ExitCode::kLost, "join", "{} {}", whom,
           answered ? "has ended while this process waited"
                    : "is not there: the run has ended, or a firewall is in between");
    const double limit =
        answered ? timeout_seconds : std::min(timeout_seconds, kMostSecondsToAnswer);
    if (Clock::seconds_since(heard) > limit)
      fail(ExitCode::kLost, "join", "{} has been silent for {:g} s; look at the run, and ask again",
           whom, limit);
    if (Clock::now() - asked > kAskAfter) {
      asked = Clock::now();
      send(Frame::Kind::kAsk);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

class ZeroMqMembership final : public Membership {
 public:
  explicit ZeroMqMembership(std::shared_ptr<Port> port) : port_(std::move(port)) {}
  int rank() const override { return port_->rank; }
  int size() const override { return static_cast<int>(port_->roster.members.size()); }
  std::string roster() const override { return encode(port_->roster); }
  std::string secret() const override { return hexadecimal(port_->secret) + "\n"; }
  void set_identity(std::map<std::string, std::string> identity) override {
    const std::scoped_lock lock(port_->mutex);
    port_->identity = std::move(identity);
  }
  bool asked() override {
    const std::scoped_lock lock(port_->mutex);
    return port_->anybody_waits();
  }
  void let_in() override {
    const std::scoped_lock lock(port_->mutex);
    port_->admits = true;
  }
  void refuse(const std::string& reason) override {
    const std::scoped_lock lock(port_->mutex);
    port_->refuse_waiting(reason);
  }
  void offer(OfferedState state) override {
    const std::scoped_lock lock(port_->mutex);
    port_->offered = std::move(state);
    ++port_->offers;
    for (Port::Waiting& one : port_->waiting) port_->tell_offer(one);
  }
  bool fetched() override {
    const std::scoped_lock lock(port_->mutex);
    if (!port_->offered.read || !port_->anybody_waits()) return false;
    return std::ranges::all_of(port_->next_to_join(),
                               [&](const auto* one) { return one->has == port_->offers; });
  }
  std::unique_ptr<Transport> regroup(double timeout_seconds) override {
    {
      const std::scoped_lock lock(port_->mutex);
      port_->offered = {};
    }
    return make_wire_transport(make_zeromq_wire(port_, nullptr, timeout_seconds), timeout_seconds);
  }
  bool over() const override { return port_->over; }

 private:
  std::shared_ptr<Port> port_;
};

}  // namespace
}  // namespace detail

std::unique_ptr<Transport> make_zeromq_transport(std::unique_ptr<Transport> messages,
                                                 const ZeroMqSettings& settings,
                                                 double timeout_seconds,
                                                 std::shared_ptr<Membership>* membership) {
  const std::shared_ptr<detail::Port> port = detail::open_port(*messages, settings);
  auto wire = detail::make_zeromq_wire(port, messages.get(), timeout_seconds);
  if (membership) *membership = std::make_shared<detail::ZeroMqMembership>(port);
  return detail::make_wire_transport(std::move(wire), timeout_seconds);
}

std::shared_ptr<Membership> join_zeromq_job(const std::string& roster,
                                            const ZeroMqSettings& settings, double timeout_seconds,
                                            const StatePieces& pieces) {
  return std::make_shared<detail::ZeroMqMembership>(
      detail::admitted(detail::parse_roster(roster), settings, timeout_seconds, pieces));
}

}  // namespace starling
