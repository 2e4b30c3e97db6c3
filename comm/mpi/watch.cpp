#include "comm/mpi/watch.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "comm/flight.h"
#include "core/error.h"
#include "core/host.h"
#include "core/last_word.h"

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

constexpr double kStartLimit = 120.0;
constexpr auto kStartLook = milliseconds(100);
/// Gives a launcher time to end the job itself. Also, a rank that has completed MPI_Init may exit
/// before this one has.
constexpr auto kStartGrace = milliseconds(1500);
/// A rank that says nothing follows the one that speaks so much later, and after kStartPatience in
/// any case.
constexpr auto kStartFollow = milliseconds(200);
constexpr auto kStartPatience = std::chrono::seconds(20);
constexpr int kMostRanks = 4096;  // asked each time

/// A socket of this name, connected or bound; -1 where the other does not exist or this one cannot.
int socket_of(const std::string& job, int rank, int (*attach)(int, const sockaddr*, socklen_t)) {
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = fmt::format("starling-start-{}-{}-{}", ::getuid(), job, rank);
  const std::size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::copy_n(name.begin(), length, address.sun_path + 1);
  if (attach(socket, reinterpret_cast<const sockaddr*>(&address),
             static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)) == 0)
    return socket;
  ::close(socket);
  return -1;
}

/// The address of a bridge for containers or virtual machines: other hosts commonly have the same,
/// and none can be reached by it.
std::string shared_address() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return {};
  std::string found;
  for (const ifaddrs* one = all; one && found.empty(); one = one->ifa_next) {
    const std::string_view name = one->ifa_name;
    const auto begins = [&](std::string_view with) { return name.starts_with(with); };
    if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET) continue;
    if (!begins("docker") && !begins("br-") && !begins("virbr") && !begins("lxcbr") &&
        !begins("lxdbr") && !begins("cni") && !begins("podman"))
      continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    const auto* address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
    if (::inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size()))
      found = fmt::format("{}'s {}", name, text.data());
  }
  ::freeifaddrs(all);
  return found;
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

StartWatch::StartWatch(const Launcher& launcher)
    : job_(launcher.job),
      hosts_(launcher.hosts),
      rank_(launcher.rank),
      size_(launcher.size),
      local_size_(launcher.local_size) {
  const char* limit = std::getenv("STARLING_START_TIMEOUT_S");
  limit_ = limit && *limit ? std::strtod(limit, nullptr) : kStartLimit;
  if (job_.empty() || rank_ < 0 || size_ < 2 || size_ > kMostRanks) return;
  (void)socket_of(job_, rank_, ::bind);  // stays open as long as the process lives
  seen_.assign(static_cast<std::size_t>(size_), false);
  absent_.assign(static_cast<std::size_t>(size_), {});
  thread_ = start_quiet_thread([this] { run(); });
}

StartWatch::~StartWatch() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void StartWatch::run() {
  ::pthread_setname_np(::pthread_self(), "start");
  Clock::time_point next = begin_ + kStartLook;  // most starts are over before the first look
  while (!stop_) {
    std::this_thread::sleep_for(milliseconds(10));
    if (stop_ || Clock::now() < next) continue;
    look();
    next = Clock::now() + kStartLook;
  }
}

void StartWatch::look() {
  const auto now = Clock::now();
  int speaker = rank_;  // for all: the lowest of those that are here, or were a moment ago
  int lost = -1;
  for (int r = 0; r < size_; ++r) {
    const auto i = static_cast<std::size_t>(r);
    const bool here = is_here(r);
    if (here) {
      seen_[i] = true;
      absent_[i] = {};
    } else if (seen_[i] && absent_[i] == Clock::time_point{}) {
      absent_[i] = now;
    }
    const bool gone = !here && seen_[i] && now - absent_[i] > kStartGrace;
    if (gone && lost < 0) lost = r;
    if (seen_[i] && !gone) speaker = std::min(speaker, r);
  }
  if (stop_) return;
  if (lost >= 0) {
    end(speaker,
        fmt::format("rank {}: [start] rank {} of this host has ended before all {} ranks had come "
                    "together; look for its last words, or for the kernel's (dmesg) where memory "
                    "was short, and start again",
                    rank_, lost, size_));
  }
  if (limit_ > 0.0 && Clock::seconds_since(begin_) > limit_) {
    end(speaker,
        fmt::format("rank {}: [start] after {:g} s MPI has not brought the {} ranks together{}; {}",
                    rank_, limit_, size_, missing_text(), remedy_text()));
  }
}

std::string StartWatch::missing_text() const {
  std::vector<int> here, missing;
  for (int r = 0; r < size_; ++r)
    (seen_[static_cast<std::size_t>(r)] ? here : missing).push_back(r);
  if (local_size_ == size_) {
    if (missing.empty()) return ", though all have begun to";
    const bool one = missing.size() == 1;
    return fmt::format(": rank{} {} {} not come", one ? "" : "s", fmt::join(missing, ", "),
                       one ? "has" : "have");
  }
  const std::string of_hosts = hosts_.empty() ? "" : fmt::format(" (hosts {})", hosts_);
  return fmt::format(
      ": on host {} rank{} {} {} here{}, and of ranks elsewhere{} nothing is known", host_name(),
      here.size() == 1 ? "" : "s", fmt::join(here, ", "), here.size() == 1 ? "is" : "are",
      local_size_ < 0 ? "" : fmt::format(" ({} of {})", here.size(), local_size_), of_hosts);
}

std::string StartWatch::remedy_text() const {
  const std::string shared = local_size_ == size_ ? "" : shared_address();
  return fmt::format(
      "look whether each was started and is no --dry-run{}, or allow more in "
      "STARLING_START_TIMEOUT_S",
      local_size_ == size_
          ? ""
          : fmt::format(", and whether the hosts reach each other, also in large packets and "
                        "through firewalls; name their "
                        "network by launch.sh --interface or OMPI_MCA_btl_tcp_if_include{}",
                        shared.empty()
                            ? ""
                            : fmt::format(", as {} may be other hosts' address too", shared)));
}

bool StartWatch::is_here(int rank) const {
  if (rank == rank_) return true;
  const int socket = socket_of(job_, rank, ::connect);
  if (socket >= 0) ::close(socket);
  return socket >= 0;
}

void StartWatch::end(int speaker, const std::string& message) {
  const int status = static_cast<int>(ExitCode::kLost);
  if (speaker == rank_) {
    std::fprintf(stderr, "%s\n", message.c_str());
    std::fflush(nullptr);
    std::_Exit(last_word(status, true));
  }
  // The reporting rank asks the launcher to end the job, including this process. If it does not
  // (mpirun --enable-recovery), MPI_Init fails 2 s after that rank has exited, and would exit with
  // another status.
  for (const auto until = Clock::now() + kStartPatience; is_here(speaker) && Clock::now() < until;)
    std::this_thread::sleep_for(milliseconds(10));
  std::this_thread::sleep_for(kStartFollow);
  std::fflush(nullptr);
  std::_Exit(status);
}

}  // namespace starling::detail
