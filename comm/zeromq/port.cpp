#include "comm/zeromq/port.h"

#include <algorithm>

#include "core/error.h"
#include "core/host.h"

namespace starling::detail {
namespace {

constexpr double kSilentSeconds = 10.0;    // a process that waits asks every second
constexpr std::size_t kMostWaiting = 64;   // processes
constexpr int kPartingMilliseconds = 500;  // for the last words to those who wait

}  // namespace

Port::Port(const Secret& the_secret)
    : secret(the_secret), keys(secret), gatekeeper(context, keys), in(context, ZMQ_ROUTER) {
  keys.serve(in);
  in.set(ZMQ_RCVHWM, 0);
  const auto most = static_cast<std::int64_t>(kMostMessageBytes);
  zmq_check(zmq_setsockopt(in.get(), ZMQ_MAXMSGSIZE, &most, sizeof most), "zmq_setsockopt");
}

Port::~Port() {
  try {
    if (waiting.empty() || over) return;  // the others continue, and job.json will say where
    in.linger(kPartingMilliseconds);
    refuse_waiting("the run ends");
  } catch (const Error&) {  // they see that the connection closes
  }
}

void Port::listen(const std::string& address, int first, int count) {
  for (int port = first; port < first + count && port <= 65535; ++port) {
    const std::string at =
        fmt::format("tcp://{}:{}", address, port == 0 ? "*" : std::to_string(port));
    if (zmq_bind(in.get(), at.c_str()) == 0) return;
  }
  fail(ExitCode::kUsage, "config", {.key = "sync.transport.port"},
       "this process on host {} cannot listen at {}:{}: {}; give another port, or 0 for one of the "
       "system's choice",
       host_name(), address, first,
       first + count - 1 > 65535 ? "there is no such port" : zmq_strerror(zmq_errno()));
}

void Port::handle_join_request(const std::string& connection, const Hello& hello) {
  const auto known = std::find_if(waiting.begin(), waiting.end(),
                                  [&](const Waiting& one) { return one.connection == connection; });
  const Hello mine{.job = roster.job, .identity = identity};
  std::string reason = why_refused(mine, hello);
  if (reason.empty() && !lets_join)
    reason = "this run lets nobody join; it has to be started with elastic.join true";
  if (reason.empty() && rank != 0) reason = "rank 0 is the one to ask";
  if (reason.empty() && known == waiting.end() && waiting.size() >= kMostWaiting)
    reason = "too many wait already; try again later";
  for (const Member& member : roster.members) {
    if (reason.empty() && member.endpoint == hello.member.endpoint)
      reason = "a rank of the run listens at " + member.endpoint;
  }
  if (!reason.empty()) return refuse(connection, reason);
  if (known != waiting.end()) return;
  const auto memory = hello.identity.find(kMemory);
  waiting.push_back({connection, hello.member,
                     memory == hello.identity.end() ? hello.member.host : memory->second,
                     RunningClock::now()});
}

bool Port::anybody_waits() {
  std::erase_if(waiting, [](const Waiting& one) {
    return RunningClock::seconds_since(one.last_heard) > kSilentSeconds;
  });
  return !next_to_join().empty();
}

std::vector<Port::Waiting*> Port::next_to_join() {
  for (const Waiting& first : waiting) {
    std::vector<Waiting*> together;
    for (Waiting& one : waiting) {
      if (one.memory == first.memory) together.push_back(&one);
      if (static_cast<int>(together.size()) == roster.replica) return together;
    }
  }
  return {};
}

void Port::tell_offer(Waiting& to) {
  to.told = offers;
  send(to.connection,
       {.kind = Frame::Kind::kState, .tag = offers, .a = static_cast<std::int64_t>(offered.bytes)});
}

void Port::answer(const std::string& connection, const Frame& asked, const Frame& started) {
  const auto one = std::find_if(waiting.begin(), waiting.end(),
                                [&](const Waiting& w) { return w.connection == connection; });
  if (one == waiting.end()) return;
  one->last_heard = RunningClock::now();
  if (asked.kind == Frame::Kind::kAsk) {
    send(connection, started);
    if (offered.read && one->told != offers) tell_offer(*one);
  } else if (asked.kind == Frame::Kind::kFetch && offered.read && asked.tag == offers) {
    const auto from = static_cast<std::uint64_t>(asked.a);
    if (from >= offered.bytes) {
      one->has = offers;
      return;
    }
    std::string piece(std::min<std::uint64_t>(kStateChunkBytes, offered.bytes - from), '\0');
    offered.read(from, reinterpret_cast<std::byte*>(piece.data()), piece.size());
    send(connection, {.kind = Frame::Kind::kPiece, .tag = offers, .a = asked.a}, piece);
  }
}

void Port::send(const std::string& connection, const Frame& frame, const std::string& text) {
  const FrameBytes bytes = encode(frame);
  if (!in.send(connection, true)) return;
  if (!in.send({bytes.data(), bytes.size()}, !text.empty())) return;
  if (!text.empty()) in.send(text);
}

void Port::refuse(const std::string& connection, const std::string& reason) {
  send(connection, {.kind = Frame::Kind::kRefused}, reason.substr(0, kMostTextBytes));
}

void Port::refuse_waiting(const std::string& reason) {
  for (const Waiting& one : waiting) refuse(one.connection, reason);
  waiting.clear();
}

}  // namespace starling::detail
