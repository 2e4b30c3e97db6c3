#include "comm/mpi/watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "comm/flight.h"
#include "comm/mpi/quiet_thread.h"
#include "core/error.h"

#if !defined(SYS_pidfd_send_signal)
#define SYS_pidfd_send_signal 424  // the same number on all machines
#endif

namespace starling::detail {
namespace {

using std::chrono::milliseconds;

/// A rank that fails says goodbye before it ends: until then its end may be an answer that is still
/// on its way.
constexpr auto kGrace = milliseconds(250);
constexpr auto kEnd = milliseconds(2000);  // for a process that was killed
constexpr auto kLook = milliseconds(200);  // between hosts: at answers, and at others' questions
constexpr double kQuestions = 5.0;         // within the limit, and one a second at least

constexpr ExchangeLabel kNoExchange{-1, -1, -1};

/// The ranks of each host, in the order of their lowest.
std::vector<std::vector<int>> hosts_of(const MpiPulse& pulse, int size) {
  std::vector<std::vector<int>> hosts;
  for (int r = 0; r < size; ++r) {
    const std::string& kernel = pulse.place(r).kernel;
    const auto found = std::find_if(hosts.begin(), hosts.end(), [&](const std::vector<int>& host) {
      return !kernel.empty() && pulse.place(host.front()).kernel == kernel;
    });
    (found == hosts.end() ? hosts.emplace_back() : *found).push_back(r);
  }
  return hosts;
}

}  // namespace

double question_interval(double limit) { return std::min(1.0, limit / kQuestions); }

RankWatch::RankWatch(MpiPulse& pulse, int rank, int size, Lost lost)
    : pulse_(pulse), lost_(std::move(lost)) {
  const std::vector<std::vector<int>> hosts = hosts_of(pulse, size);
  several_hosts_ = hosts.size() > 1;
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    if (std::find(hosts[h].begin(), hosts[h].end(), rank) == hosts[h].end()) continue;
    if (several_hosts_ && hosts[h].front() == rank)
      watched_ = hosts[(h + 1) % hosts.size()].front();
    for (const int other : hosts[h]) {
      if (other == rank) continue;
      const pid_t process = pulse.place(other).process;
      const int file = open_process(process);
      // No descriptors are left: what waits still has its limit
      if (file < 0 && errno != ESRCH) continue;
      processes_.push_back({other, process, file});
    }
  }
  std::map<int, int> known;
  for (const Process& process : processes_) known[process.rank] = process.id;
  set_rank_processes(std::move(known));
  wake_ = ::eventfd(0, EFD_CLOEXEC);
  thread_ = start_quiet_thread([this] { run(); });
}

RankWatch::~RankWatch() {
  stop_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
  thread_.join();
  for (const Process& process : processes_) {
    if (process.file >= 0) ::close(process.file);
  }
  if (wake_ >= 0) ::close(wake_);
}

void RankWatch::expect_heartbeats(double limit_seconds) {
  if (several_hosts_) limit_ = limit_seconds;
}

void RankWatch::run() {
  ::pthread_setname_np(::pthread_self(), "watch");
  std::vector<pollfd> files{{wake_, POLLIN, 0}};
  for (const Process& process : processes_) {
    if (process.file < 0) report(process);
    files.push_back({process.file, POLLIN, 0});  // one below 0 is passed over
  }
  Heartbeat heartbeat{{}, Clock::now()};
  while (!stop_) {
    const int ready = ::poll(files.data(), files.size(),
                             several_hosts_ || wake_ < 0 ? static_cast<int>(kLook.count()) : -1);
    for (std::size_t i = 1; ready > 0 && !stop_ && i < files.size(); ++i) {
      if (files[i].revents == 0) continue;
      report(processes_[i - 1]);
      files[i].fd = -1;
    }
    if (several_hosts_ && !stop_) look_for_heartbeat(heartbeat);
  }
}

void RankWatch::report(const Process& process) {
  const auto until = Clock::now() + kGrace;
  do {
    if (stop_) return;
    // poll() ends this process on a goodbye
    if (const std::unique_lock lock(mpi_lock(), milliseconds(20)); lock.owns_lock()) pulse_.poll();
    std::this_thread::sleep_for(milliseconds(10));
  } while (Clock::now() < until);
  note_flight(FlightEvent::kLost, kNoExchange, std::span(&process.rank, 1));
  lost_({process.rank, text_of_end(process.rank)},
        doing() +
            "; look for its last words, or for the kernel's (dmesg) where memory was short, and "
            "continue with --resume latest");
}

const RankWatch::Process* RankWatch::process_of(int rank) const {
  const auto found = std::find_if(processes_.begin(), processes_.end(),
                                  [&](const Process& process) { return process.rank == rank; });
  return found == processes_.end() ? nullptr : &*found;
}

bool RankWatch::has_ended(int rank) const {
  const Process* process = process_of(rank);
  if (!process) return false;
  pollfd file{process->file, POLLIN, 0};
  return process->file < 0 || (::poll(&file, 1, 0) == 1 && file.revents != 0);
}

std::string RankWatch::text_of_end(int rank) const {
  const Process* process = process_of(rank);
  return fmt::format(
      "rank {} on host {} has ended{}", rank, pulse_.host(rank),
      process ? fmt::format(": process {} is gone and said nothing", process->id) : "");
}

bool RankWatch::end_process(int rank) {
  const Process* process = process_of(rank);
  if (!process || process->file < 0) return false;
  if (::syscall(SYS_pidfd_send_signal, process->file, SIGKILL, nullptr, 0) != 0 && errno != ESRCH)
    return false;
  pollfd file{process->file, POLLIN, 0};
  return ::poll(&file, 1, static_cast<int>(kEnd.count())) == 1;
}

void RankWatch::look_for_heartbeat(Heartbeat& state) {
  const auto now = Clock::now();
  const std::unique_lock lock(mpi_lock(), milliseconds(100));
  if (lock.owns_lock()) pulse_.poll();
  const double limit = limit_;
  if (watched_ < 0 || limit <= 0.0) return;
  if (!lock.owns_lock()) {  // inside of a call of MPI nothing is heard
    state.silent_since = now;
    return;
  }
  if (std::chrono::duration<double>(now - state.last_question).count() >=
      question_interval(limit)) {
    pulse_.ask(watched_);
    state.last_question = now;
  }
  const double heard = pulse_.seconds_since(watched_);
  const double silent = Clock::seconds_since(state.silent_since);
  const double silence = heard < 0 ? silent : std::min(heard, silent);
  if (silence <= limit) return;
  note_flight(FlightEvent::kLost, kNoExchange, std::span(&watched_, 1));
  const LostRank lost{
      watched_,
      fmt::format(
          "rank {} on host {} has given no sign of life for {:.1f} s (sync.heartbeat_s {:g})",
          watched_, pulse_.host(watched_), silence, limit)};
  watched_ = -1;
  lost_(lost,
        doing() +
            "; look whether the host and its network are up, and continue with --resume latest");
}

std::string RankWatch::doing() const {
  // What this rank is at is worth a wait: on a busy machine another thread may hold the lock for
  // long, or for good.
  const std::unique_lock lock(mpi_lock(), milliseconds(500));
  const std::string text = lock.owns_lock() ? pulse_.started() : std::string();
  return text.empty() ? "" : "; this rank " + text;
}

}  // namespace starling::detail
