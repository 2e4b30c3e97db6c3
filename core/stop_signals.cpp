#include "core/stop_signals.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <initializer_list>
#include <string_view>
#include <thread>

#include "core/console.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/flight_recorder.h"
#include "core/last_word.h"
#include "core/log.h"

namespace starling {
namespace {

std::atomic<int> stop{0};  ///< the signal that came first
using Clock = std::chrono::steady_clock;
std::atomic<Clock::rep> asked{0};  ///< when SIGTERM, SIGINT or SIGHUP came first; 0: not yet
/// These end nothing where they come again: batch systems send them often.
constexpr int kRepeating[] = {SIGUSR1, SIGUSR2, SIGXCPU};
constexpr auto kSameWish = std::chrono::milliseconds(500);
std::atomic<AtStopSignal> at_first{AtStopSignal::kNote};
std::atomic<const char*> word_at_stop{nullptr};

[[noreturn]] void end_now(int status) {
  remove_unfinished_files();
  ::_exit(status);
}

void end_where_nothing_is_saved() {
  const int signal = stop.load();
  if (signal == 0 || at_first == AtStopSignal::kNote) return;
  if (at_first == AtStopSignal::kEnd) end_now(128 + signal);
  const char* word = word_at_stop;
  if (word != nullptr) say(std::string_view(word));
  end_now(last_word(static_cast<int>(ExitCode::kStopped), word != nullptr));
}

void receive(int signal) {
  if (signal == SIGQUIT) {
    FlightRecorder& recorder = FlightRecorder::instance();
    if (recorder.write(FlightRecorder::Reason::kAsked, 0, "SIGQUIT")) {
      log::warning("the last events are in {}; training goes on", recorder.file());
    } else if (recorder.file().empty()) {  // not training: it ends the process as ever
      std::signal(SIGQUIT, SIG_DFL);
      sigset_t quit;
      ::sigemptyset(&quit);
      ::sigaddset(&quit, SIGQUIT);
      ::pthread_sigmask(SIG_UNBLOCK, &quit, nullptr);
      std::raise(SIGQUIT);
      end_now(128 + signal);  // the first process of a container is not ended by a signal's default
    }
    return;
  }
  int none = 0;
  stop.compare_exchange_strong(none, signal);
  end_where_nothing_is_saved();
  if (std::ranges::count(kRepeating, signal) > 0) return;
  // A batch system and a launcher may both pass one and the same on: it ends the process only where
  // it comes again later.
  Clock::rep first = 0;
  const Clock::time_point now = Clock::now();
  if (!asked.compare_exchange_strong(first, now.time_since_epoch().count()) &&
      now - Clock::time_point(Clock::duration(first)) > kSameWish)
    end_now(128 + signal);
}

}  // namespace

// No handlers: generated kernels (those of oneDNN's sgemm for AVX2 and AVX-512) use the stack
// pointer as one more register, and a handler that the system starts meanwhile gets its frame
// written over whatever that register points at. One thread waits for the signals instead. Nor do
// libraries get them that set handlers of their own, as NCCL 2.12.7 to 2.13.4 do for SIGUSR1.
void install_stop_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGQUIT}) ::sigaddset(&signals, signal);
  for (const int signal : kRepeating) ::sigaddset(&signals, signal);
  struct sigaction hangup {};
  // A process under nohup ignores the signal already.
  const bool ignored = ::sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
  if (!ignored) ::sigaddset(&signals, SIGHUP);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals] {
    ::pthread_setname_np(::pthread_self(), "signals");
    while (true) {
      int signal = 0;
      if (::sigwait(&signals, &signal) == 0) receive(signal);
    }
  }).detach();
}

void at_stop_signal(AtStopSignal what, const char* word) {
  word_at_stop.store(word);
  at_first.store(what);
  end_where_nothing_is_saved();
}

void let_signals_end_this_process() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU}) {
    std::signal(signal, SIG_DFL);
    ::sigaddset(&signals, signal);
  }
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

bool stop_requested() { return stop.load() != 0; }
int stop_status() { return 128 + stop.load(); }

void request_stop(bool wanted) {
  stop.store(wanted ? SIGTERM : 0);
  asked.store(0);
}

}  // namespace starling
