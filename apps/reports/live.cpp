#include "apps/reports/page.h"

#include <fmt/format.h>
#include <httplib.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "core/console.h"
#include "core/error.h"
#include "core/stop_signals.h"

namespace starling {
namespace {

/// 128 random bits in hexadecimal.
std::string new_token() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    fail(ExitCode::kInternal, "report", "no random numbers from the system: {}",
         std::strerror(errno));
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

}  // namespace

void serve_report(Runs& runs, int port) {
  constexpr const char* kAddress = "127.0.0.1";
  const std::string token = new_token();
  std::mutex mutex;
  std::string body = report_body(runs), states;
  std::size_t version = 0;
  httplib::Server server;
  const auto answer = [&](bool whole, const httplib::Request& request,
                          httplib::Response& response) {
    const std::lock_guard lock(mutex);
    bool change = false;
    std::string now;
    for (const auto& run : runs) {
      try {
        change |= run->refresh();
      } catch (const Error&) {  // a file in the midst of being written: the next look has it
      }
      now += run->state() + "\n";
    }
    if (change || now != states) {
      body = report_body(runs);
      states = now;
      ++version;
    }
    const std::string tag = fmt::format("\"{}\"", version);
    response.set_header("Cache-Control", "no-store");
    response.set_header("Referrer-Policy", "no-referrer");
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Content-Security-Policy",
                        content_policy(true) + "; frame-ancestors 'none'");
    response.set_header("ETag", tag);
    if (!whole && request.get_header_value("If-None-Match") == tag) {
      response.status = 304;
      return;
    }
    response.set_content(whole ? report_page(body, true) : body, "text/html; charset=utf-8");
  };
  server.Get("/" + token + "/",
             [&](const auto& request, auto& response) { answer(true, request, response); });
  server.Get("/" + token + "/body",
             [&](const auto& request, auto& response) { answer(false, request, response); });
  server.set_payload_max_length(0);
  // Idle connections do not block others: each has a thread, for one second
  server.new_task_queue = [] { return new httplib::ThreadPool(256); };
  server.set_keep_alive_timeout(1);
  server.set_read_timeout(1);
  server.set_write_timeout(5);
  // One that is there already is not taken over.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  const int bound = port == 0 ? server.bind_to_any_port(kAddress)
                              : (server.bind_to_port(kAddress, port) ? port : -1);
  if (bound < 0)
    fail(ExitCode::kUsage, "report",
         "--port {}: is in use, or may not be taken; leave it out for one that is free", port);
  starling::answer("http://{}:{}/{}/\n", kAddress, bound, token);
  std::thread listener([&] { server.listen_after_bind(); });
  while (!stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  server.stop();
  listener.join();
}

}  // namespace starling
