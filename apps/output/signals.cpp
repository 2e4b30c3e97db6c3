#include "apps/output/signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <initializer_list>

namespace starling {
namespace {

// Lock-free, so that a handler may use them.
std::atomic<bool> stop{false};
std::atomic<bool> end_at_next{false};  ///< SIGTERM or SIGINT came once
static_assert(std::atomic<bool>::is_always_lock_free);

/// Only async-signal-safe calls here: atomics and _exit.
void on_signal(int signal) {
  stop.store(true);
  if (signal != SIGUSR1 && end_at_next.exchange(true)) ::_exit(128 + signal);
}

}  // namespace

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) ::sigaction(signal, &action, nullptr);
}

bool stop_requested() { return stop.load(); }

void request_stop(bool wanted) {
  stop.store(wanted);
  end_at_next.store(false);
}

}  // namespace starling
