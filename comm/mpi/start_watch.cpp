#include "comm/mpi/start_watch.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "comm/mpi/quiet_thread.h"
#include "core/error.h"
#include "core/host.h"
#include "core/last_word.h"

namespace starling::detail {
namespace {

using std::chrono::milliseconds;

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
