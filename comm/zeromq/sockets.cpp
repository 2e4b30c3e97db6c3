#include "comm/zeromq/sockets.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace starling::detail {
namespace {

constexpr const char* kGate = "inproc://zeromq.zap.01";
constexpr std::size_t kZ85 = 41;  // 32 bytes as text, with the final 0

}  // namespace

int zmq_check(int result, const char* call) {
  if (result < 0) fail(ExitCode::kLost, "zeromq", "{} failed: {}", call, zmq_strerror(zmq_errno()));
  return result;
}

Socket::Socket(Context& context, int type) : socket_(zmq_socket(context.get(), type)) {
  if (!socket_) zmq_check(-1, "zmq_socket");
  linger(0);
}

Socket::Socket(Socket&& other) noexcept : socket_(std::exchange(other.socket_, nullptr)) {}

void Socket::close() {
  if (socket_) zmq_close(std::exchange(socket_, nullptr));
}

void Socket::set(int option, int value) {
  zmq_check(zmq_setsockopt(socket_, option, &value, sizeof value), "zmq_setsockopt");
}
void Socket::set(int option, std::string_view value) {
  zmq_check(zmq_setsockopt(socket_, option, value.data(), value.size()), "zmq_setsockopt");
}

std::string Socket::endpoint() const {
  char text[256];
  std::size_t size = sizeof text;
  zmq_check(zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, text, &size), "zmq_getsockopt");
  return text;
}

std::optional<std::vector<Part>> Socket::receive() {
  std::vector<Part> parts;
  do {
    Part part;
    if (zmq_msg_recv(part.get(), socket_, ZMQ_DONTWAIT) < 0) {
      if (zmq_errno() == EAGAIN || zmq_errno() == EINTR) return std::nullopt;
      zmq_check(-1, "zmq_msg_recv");
    }
    parts.push_back(std::move(part));
  } while (zmq_msg_more(parts.back().get()) != 0);
  return parts;
}

bool Socket::send(std::string_view bytes, bool more) {
  int result = 0;
  do {
    result = zmq_send(socket_, bytes.data(), bytes.size(), ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0));
  } while (result < 0 && zmq_errno() == EINTR);
  if (result < 0 && zmq_errno() == EAGAIN) return false;
  zmq_check(result, "zmq_send");
  return true;
}

bool Socket::send(Part& part) {
  int result = 0;
  do {
    result = zmq_msg_send(part.get(), socket_, ZMQ_DONTWAIT);
  } while (result < 0 && zmq_errno() == EINTR);
  if (result < 0 && zmq_errno() == EAGAIN) return false;
  zmq_check(result, "zmq_msg_send");
  return true;
}

Keys::Keys(const Secret& secret) {
  char text[kZ85], open[kZ85];
  if (!zmq_z85_encode(text, secret.data(), secret.size()) || zmq_curve_public(open, text) != 0 ||
      !zmq_z85_decode(public_key.data(), open))
    fail(ExitCode::kUsage, "zeromq",
         "this build of ZeroMQ cannot encrypt: {}; install a libzmq with CurveZMQ",
         zmq_strerror(zmq_errno()));
  secret_text_ = text;
  public_text_ = open;
}

void Keys::serve(Socket& socket) const {
  socket.set(ZMQ_CURVE_SERVER, 1);
  socket.set(ZMQ_CURVE_SECRETKEY, secret_text_);
  socket.set(ZMQ_ZAP_DOMAIN, "starling");
}

void Keys::connect(Socket& socket) const {
  socket.set(ZMQ_CURVE_SERVERKEY, public_text_);
  socket.set(ZMQ_CURVE_PUBLICKEY, public_text_);
  socket.set(ZMQ_CURVE_SECRETKEY, secret_text_);
}

Gatekeeper::Gatekeeper(Context& context, const Keys& keys)
    : socket_(context, ZMQ_REP),
      key_(reinterpret_cast<const char*>(keys.public_key.data()), keys.public_key.size()) {
  zmq_check(zmq_bind(socket_.get(), kGate), "zmq_bind");
}

void Gatekeeper::poll() {
  while (const auto question = socket_.receive()) {
    // version, request, domain, address, identity, mechanism, key
    const auto part = [&](std::size_t k) {
      return k < question->size() ? (*question)[k].text() : std::string_view();
    };
    const bool right =
        question->size() == 7 && part(0) == "1.0" && part(5) == "CURVE" && part(6) == key_;
    socket_.send("1.0", true);
    socket_.send(part(1), true);
    socket_.send(right ? "200" : "400", true);
    socket_.send(right ? "" : "another key", true);
    socket_.send("", true);
    socket_.send("");
  }
}

int Monitor::watch(Socket& watched, const std::string& address) {
  return zmq_check(
      zmq_socket_monitor(watched.get(), address.c_str(),
                         ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                             ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                             ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_CLOSED),
      "zmq_socket_monitor");
}

Monitor::Monitor(Context& context, Socket& watched, const std::string& name)
    : watched_(watched), socket_((watch(watched, "inproc://" + name), Socket(context, ZMQ_PAIR))) {
  zmq_check(zmq_connect(socket_.get(), ("inproc://" + name).c_str()), "zmq_connect");
}

Monitor::~Monitor() {
  // An event that nobody takes would hold up ZeroMQ's thread, and with it other connections.
  zmq_socket_monitor(watched_.get(), nullptr, 0);
}

Monitor::Event Monitor::poll() {
  while (const auto told = socket_.receive()) {
    if (told->empty() || told->front().size() < 6) continue;
    std::uint16_t event = 0;
    std::memcpy(&event, told->front().text().data(), sizeof event);
    switch (event) {
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
      case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH: return Event::kRefused;
      default: return Event::kClosed;
    }
  }
  return Event::kNone;
}

}  // namespace starling::detail
