#pragma once

#include <zmq.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/zeromq/secret.h"

namespace starling::detail {

/// Throws Error(kLost) with ZeroMQ's own text if `result` is negative.
int zmq_check(int result, const char* call);

/// A part of a message.
class Part {
 public:
  Part() { zmq_msg_init(&message_); }
  ~Part() { zmq_msg_close(&message_); }
  Part(Part&& other) noexcept : Part() { zmq_msg_move(&message_, &other.message_); }
  Part& operator=(Part&& other) noexcept {
    zmq_msg_move(&message_, &other.message_);
    return *this;
  }
  zmq_msg_t* get() { return &message_; }
  std::size_t size() const { return zmq_msg_size(&message_); }
  std::string_view text() const {
    return {static_cast<const char*>(zmq_msg_data(const_cast<zmq_msg_t*>(&message_))), size()};
  }

 private:
  zmq_msg_t message_{};
};

/// ZeroMQ's context. Its sockets are destroyed before.
class Context {
 public:
  Context() : context_(zmq_ctx_new()) {
    zmq_ctx_set(context_, ZMQ_IO_THREADS, 2);  // both directions are encrypted at once
  }
  ~Context() { zmq_ctx_term(context_); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  void* get() const { return context_; }

 private:
  void* context_;
};

class Socket {
 public:
  Socket(Context& context, int type);
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&&) = delete;
  void close();
  void* get() const { return socket_; }

  void set(int option, int value);
  void set(int option, std::string_view value);
  /// Waits at most so long when it is destroyed until what was sent is on its way.
  void linger(int milliseconds) { set(ZMQ_LINGER, milliseconds); }
  /// Its last bound address.
  std::string endpoint() const;
  /// A whole message; none if none has arrived.
  std::optional<std::vector<Part>> receive();
  /// Copies. False if it cannot be sent now, such as where the other side has gone.
  bool send(std::string_view bytes, bool more = false);
  bool send(Part& part);

 private:
  void* socket_;
};

/// The keys that follow from a job's secret. Every rank has the same: who has the secret may take
/// part.
struct Keys {
  explicit Keys(const Secret& secret);
  void serve(Socket& socket) const;    ///< of the listening side
  void connect(Socket& socket) const;  ///< of the connecting side
  std::array<unsigned char, 32> public_key{};

 private:
  std::string secret_text_, public_text_;  ///< Z85
};

/// Answers ZeroMQ's question whether a connection's key is accepted (ZeroMQ RFC 27).
class Gatekeeper {
 public:
  Gatekeeper(Context& context, const Keys& keys);
  /// Answers what has been asked.
  void poll();

 private:
  Socket socket_;
  std::string key_;
};

/// Tells what happens to a socket's connection.
class Monitor {
 public:
  Monitor(Context& context, Socket& watched, const std::string& name);
  /// The socket may live on, as long as what it has sent is on its way.
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;
  enum class Event { kNone, kRefused, kClosed };
  Event poll();

 private:
  static int watch(Socket& watched, const std::string& address);
  Socket& watched_;
  Socket socket_;
};

}  // namespace starling::detail
