#include "comm/mpi/session.h"

#include <mpi.h>
#include <sched.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>

#include "comm/mpi/launcher.h"
#include "comm/mpi/pulse.h"
#include "comm/mpi/ulfm.h"
#include "comm/mpi/watch.h"
#include "core/flight_recorder.h"
#include "core/last_word.h"
#include "core/running_clock.h"
#include "core/stop_signals.h"

namespace starling {
namespace {

std::unique_ptr<detail::MpiPulse> pulse;
std::unique_ptr<detail::RankWatch> watch;

// Time after which a process that ends does so without MPI's help.
constexpr auto kLastResort = std::chrono::seconds(4);
// Seconds to wait for the other ranks at the end: the longest limit of a transport.
double longest_wait = 300.0;

constexpr double kRecoverySeconds = 30.0;  // for MPI, in addition to the ranks' patience
// Seconds after which an MPI call that waits for a lost rank is interrupted.
constexpr double kStuckSeconds = 2.0;
std::atomic<int> recoveries{0};  // from lost ranks, this process's end included
std::atomic<bool> recovering{false};

/// Calls `end` if this process has not recovered from a loss within the limit. There is one such
/// limit at a time. An MPI call that waits for a lost rank, e.g. while making a communicator, holds
/// the lock, so it is interrupted without it.
void limit_recovery(double seconds, const std::function<void()>& end) {
  static std::atomic<int> limited{-1};
  const int now = recoveries;
  if (limited.exchange(now) == now) return;
  const auto watch_clock = [=] {
    const auto over = [begin = RunningClock::now()](double limit) {
      return RunningClock::seconds_since(begin) >= limit;
    };
    for (bool called_back = false; !over(seconds);) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (recoveries != now) return;
      if (called_back || recovering || !over(kStuckSeconds)) continue;
      const std::unique_lock lock(detail::mpi_lock(), std::chrono::milliseconds(200));
      if (!lock.owns_lock() && !recovering) detail::revoke(detail::world_communicator());
      called_back = true;
    }
    end();
  };
  try {
    detail::start_quiet_thread(watch_clock).detach();
  } catch (const std::system_error&) {
    // No thread to be had: in nearly every case it goes well without.
  }
}

/// Of `before`: replicas that have lost ranks, each with the first one, and the ranks that are left
/// of them in `after`.
struct BrokenReplicas {
  std::map<int, int> lost_of;
  std::vector<int> leaving;
  bool all = false;  ///< none is whole
};
BrokenReplicas broken_replicas(MPI_Comm before, MPI_Comm after, int replica) {
  BrokenReplicas broken;
  const std::vector<int> lost = detail::lost_between(before, after);
  for (const int rank : lost) broken.lost_of.emplace(rank / replica, rank);
  int ranks = 0;
  MPI_Comm_size(before, &ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    if (broken.lost_of.contains(rank / replica) && std::ranges::count(lost, rank) == 0)
      broken.leaving.push_back(rank);
  }
  broken.all = static_cast<int>(broken.lost_of.size()) == ranks / replica;
  return broken;
}

void set_default(const char* name, const char* value) { setenv(name, value, 0); }

/// Open MPI's shared-memory transport copies directly from the other process, which containers
/// often forbid; then every rank prints long warnings. Such a container does not even allow a
/// process to read itself, which can be tested.
bool single_copy_works() {
  char from = 1, to = 0;
  const iovec local{&to, 1}, remote{&from, 1};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
}

/// Open MPI uses PUT over TCP by default, and a pair exchange then often runs half-duplex: twice as
/// slow. See docs/clusters.md.
constexpr const char* kTcpFlags = "send,inplace,need-ack,need-csum,hetero-rdma";

bool user_asked_for_binding() {
  const char* policy = std::getenv("OMPI_MCA_hwloc_base_binding_policy");
  return policy && std::string_view(policy).substr(0, 4) != "none";
}

/// Cores among these processors, whose hyper-threads count as one.
std::size_t cores_in(const cpu_set_t& set) {
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                       "/topology/thread_siblings_list");
    std::string siblings = std::to_string(cpu);
    std::getline(file, siblings);
    cores.insert(siblings);
  }
  return cores.size();
}

/// Whether all that this process may run on is one core, where the machine has more.
bool on_one_core() {
  cpu_set_t mine, all;
  CPU_ZERO(&mine);
  CPU_ZERO(&all);
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) return false;
  for (long cpu = 0; cpu < std::min<long>(sysconf(_SC_NPROCESSORS_ONLN), CPU_SETSIZE); ++cpu)
    CPU_SET(static_cast<std::size_t>(cpu), &all);
  return cores_in(mine) == 1 && cores_in(all) > 1;
}

}  // namespace

void detail::widen_binding() {
  if (std::getenv("OMPI_MCA_hwloc_base_binding_policy")) return;
  if (!std::getenv("OMPI_MCA_orte_bound_at_launch") &&
      !(std::getenv("PRTE_LAUNCHED") && on_one_core()))
    return;
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof all);  // the kernel keeps those that the container allows
  sched_setaffinity(0, sizeof all, &all);
}

MpiSession::MpiSession() {
  const detail::Launcher launcher = detail::read_launcher();
  // The first one speaks for all; the others leave it time, as their ends may have it ended, too.
  const auto refuse_alone = [&] {
    if (launcher.rank > 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    abort(ExitCode::kUsage,
          launcher.rank > 0 ? "" : detail::apart_text(launcher, mpi_library_version()));
  };
  if (launcher.alone || !launcher.joins) {
    if (detail::apart(launcher, 1)) refuse_alone();
    return;
  }
  if (detail::foreign(launcher, mpi_library_version())) refuse_alone();
  detail::widen_binding();  // before MPI starts threads, which inherit it
  set_default("OMPI_MCA_mpi_yield_when_idle", "1");
  set_default("OMPI_MCA_btl_tcp_flags", kTcpFlags);
  if (!single_copy_works()) {
    set_default("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
    set_default("OMPI_MCA_smsc", "^cma");  // Open MPI 5
  }
  // An error under ULFM that belongs to no communicator any more, such as that of a message to a
  // lost rank, is none to end the job for.
  if (std::getenv("OMPI_MCA_mpi_ft_enable"))
    set_default("OMPI_MCA_mpi_initial_errhandler", "mpi_errors_return");
  const detail::StartWatch start(launcher);  // until all know each other
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) {
    abort(ExitCode::kLost, "[mpi] MPI could not be initialised");
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  if (detail::apart(launcher, size_)) {
    MPI_Finalize();
    refuse_alone();
  }
  active_ = true;
  if (provided < MPI_THREAD_SERIALIZED) {
    abort(ExitCode::kUsage, rank_ == 0 ? "[mpi] this MPI library was built without thread support; "
                                         "it needs MPI_THREAD_SERIALIZED"
                                       : "");
  }
  const std::scoped_lock lock(detail::mpi_lock());
  if (detail::why_no_ulfm().empty()) {
    // A copy that can be revoked after a loss. From now on errors are returned.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    detail::mpi_check(MPI_Comm_dup(MPI_COMM_WORLD, &detail::world_communicator()), "MPI_Comm_dup");
  }
  watch_ranks();
}

void MpiSession::watch_ranks() {
  pulse = std::make_unique<detail::MpiPulse>();
  watch = std::make_unique<detail::RankWatch>(
      *pulse, rank_, size_, [this](const LostRank& lost, const std::string& rest) {
        if (!surviving_)
          abort(ExitCode::kLost, fmt::format("rank {}: [transport] {}{}", rank_, lost.what, rest));
        note_lost_rank(lost);
        limit_recovery(2 * patience_ + kRecoverySeconds, [this, lost, rest] {
          abort(ExitCode::kLost,
                fmt::format("rank {}: [survive] {}, and going on without it took too long{}", rank_,
                            lost.what, rest));
        });
      });
  if (surviving_) pulse->survive_losses();
}

MpiSession::~MpiSession() { finalise(); }

void MpiSession::leave() {
  finalise();
  active_ = false;
  rank_ = 0;
  size_ = 1;
  detail::leave_launcher();
}

void MpiSession::finalise() {
  if (!active_) return;
  const bool survived = recoveries > 0;
  ++recoveries;        // ends the limit of an earlier one
  if (!pulse) return;  // the only remaining rank; see below
  // MPI_Finalize would wait for a lost rank forever, so keep watching until all have arrived here.
  if (!detail::MpiPulse::abandoned() && !pulse->wait_for_all(longest_wait))
    detail::MpiPulse::abandoned() = true;
  watch.reset();
  const std::scoped_lock lock(detail::mpi_lock());
  if (detail::MpiPulse::abandoned()) MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::kLost));
  // MPI_Finalize may wait for the lost ranks too: in one run of seven it did so for 20 s, or for
  // good
  if (survived) return;
  pulse->close();
  pulse.reset();
  MPI_Finalize();
}

void MpiSession::expect_heartbeats(double limit_seconds) {
  if (watch) watch->expect_heartbeats(limit_seconds);
}

std::vector<std::string> MpiSession::warnings() const {
  std::vector<std::string> lines;
  if (!active_) return lines;
  if (on_one_core()) {
    lines.push_back(fmt::format(
        "{} one core, which its communication and its computation share; {}",
        user_asked_for_binding() ? "mpirun bound this rank to"
                                 : "this rank may run on no more than",
        user_asked_for_binding()
            ? "start it by scripts/launch.sh, or with mpirun --bind-to none"
            : "give it more, as by srun --cpus-per-task=2, or a wider taskset or cpuset"));
  }
  const char* links = std::getenv("OMPI_MCA_btl_tcp_links");
  if (links && std::atoi(links) > 1)
    lines.push_back(
        fmt::format("btl_tcp_links is {} (--mca or OMPI_MCA_btl_tcp_links); runs have come to a "
                    "stand with more than one connection a pair, and gained nothing: leave it out",
                    links));
  return lines;
}

std::unique_ptr<Transport> MpiSession::make_transport(double timeout_seconds) const {
  longest_wait = std::max(longest_wait, timeout_seconds);
  return active_ && size_ > 1 ? make_mpi_transport(timeout_seconds) : make_single_transport();
}

std::string MpiSession::why_not_survive() const {
  const std::scoped_lock lock(detail::mpi_lock());
  return active_ ? detail::why_no_ulfm() : std::string();
}

void MpiSession::survive_losses(double patience_seconds, int replica) {
  patience_ = patience_seconds;
  replica_ = replica;
  surviving_ = true;
  const std::scoped_lock lock(detail::mpi_lock());
  if (pulse) pulse->survive_losses();
}

std::vector<LostRank> MpiSession::muster() {
  const auto ended = [](int rank) { return watch->has_ended(rank); };
  for (const int rank : pulse->muster(ended, patience_)) {
    const std::string what =
        fmt::format("rank {} on host {} does not answer", rank, pulse->host(rank));
    if (!watch->end_process(rank)) {
      abort(ExitCode::kLost, fmt::format("rank {}: [survive] after a loss {}, and cannot be ended "
                                         "from here; continue with --resume latest",
                                         rank_, what));
    }
    note_lost_rank({rank, what + " and was ended"});
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && ended(rank)) note_lost_rank({rank, watch->text_of_end(rank)});
  }
  return lost_ranks();
}

std::optional<MpiSession::Loss> MpiSession::go_on_without_lost() {
  if (!pulse) return std::nullopt;
  limit_recovery(2 * patience_ + kRecoverySeconds, [this] {
    abort(ExitCode::kLost, fmt::format("rank {}: [survive] going on without a lost rank took too "
                                       "long; continue with --resume latest",
                                       rank_));
  });
  const MPI_Comm old = detail::world_communicator();
  {
    const std::scoped_lock lock(detail::mpi_lock());
    recovering = true;
    detail::revoke(old);  // ends calls that wait for the lost rank
  }
  const std::vector<LostRank> lost = muster();
  watch.reset();
  const std::scoped_lock lock(detail::mpi_lock());
  const int ranks_before = size_;
  std::vector<std::string> hosts;
  for (int rank = 0; rank < ranks_before; ++rank) hosts.push_back(pulse->host(rank));
  detail::MpiPulse::retire(std::move(pulse));
  forget_lost_ranks();
  detail::MpiPulse::abandoned() = false;
  const auto text_of = [&](int rank) {
    const auto known = std::ranges::find(lost, rank, &LostRank::rank);
    return known != lost.end() ? known->what
                               : fmt::format("rank {} on host {} is lost", rank,
                                             hosts[static_cast<std::size_t>(rank)]);
  };
  const int rank_before = rank_;
  std::vector<int> left;  // with their replicas
  MPI_Comm from = old;
  while (true) {
    MPI_Comm next = MPI_COMM_NULL;
    detail::mpi_check(detail::shrink(from, &next), "MPIX_Comm_shrink");
    MPI_Comm_set_errhandler(next, MPI_ERRORS_RETURN);
    if (const auto broken = broken_replicas(old, next, replica_); !broken.leaving.empty()) {
      if (broken.all)
        abort(ExitCode::kLost,
              fmt::format("rank {}: [survive] {}, and none of the replicas of {} ranks is whole; "
                          "continue with --resume latest",
                          rank_before, text_of(broken.lost_of.begin()->second), replica_));
      const auto mine = broken.lost_of.find(rank_before / replica_);
      const bool stays = mine == broken.lost_of.end();
      MPI_Comm whole = MPI_COMM_NULL;
      const int done = MPI_Comm_split(next, stays ? 0 : MPI_UNDEFINED, 0, &whole);
      if (!detail::agree(next, done == MPI_SUCCESS)) {
        detail::revoke(next);
        from = next;
        continue;
      }
      if (!stays) {
        const std::string text = fmt::format(
            "rank {}: [survive] {}; its replica, ranks {} to {}, leaves with it, and the others go "
            "on",
            rank_before, text_of(mine->second), mine->first * replica_,
            mine->first * replica_ + replica_ - 1);
        FlightRecorder::instance().write(FlightRecorder::Reason::kOther,
                                         static_cast<int>(ExitCode::kLost), text);
        std::fprintf(stderr, "%s\n", text.c_str());
        std::fflush(nullptr);
        std::_Exit(0);  // mpirun's status is to be that of those that continue
      }
      left.insert(left.end(), broken.leaving.begin(), broken.leaving.end());
      next = whole;
      MPI_Comm_set_errhandler(next, MPI_ERRORS_RETURN);
    }
    detail::world_communicator() = next;
    MPI_Comm_rank(next, &rank_);
    MPI_Comm_size(next, &size_);
    if (size_ == 1) break;
    // If another rank is lost here, some ranks may have completed this and others not: all retry.
    bool through = true;
    try {
      watch_ranks();
    } catch (const Error&) {
      through = false;
      if (pulse) pulse->revoke();
      detail::revoke(next);
    }
    if (detail::agree(next, through)) break;
    watch.reset();
    detail::revoke(next);
    if (pulse) detail::MpiPulse::retire(std::move(pulse));
    forget_lost_ranks();
    from = next;
  }
  ++recoveries;
  recovering = false;
  if (size_ == ranks_before) return std::nullopt;
  FlightRecorder::instance().set_rank(rank_);

  Loss loss{.what = {}, .ranks_before = ranks_before};
  const auto add = [&](const std::string& text) {
    loss.what += (loss.what.empty() ? "" : "; ") + text;
  };
  for (const int rank : detail::lost_between(old, detail::world_communicator())) {
    if (std::ranges::count(left, rank) == 0) add(text_of(rank));
  }
  for (const int rank : left) add(fmt::format("rank {} of its replica leaves with it", rank));
  return loss;
}

void MpiSession::abort(ExitCode code, const std::string& message) {
  const auto record = [&] {
    FlightRecorder::instance().write(
        message.empty() ? FlightRecorder::Reason::kOther : FlightRecorder::Reason::kError,
        static_cast<int>(code), message);
  };
  if (!active_) {
    record();
    if (!message.empty()) std::fprintf(stderr, "%s\n", message.c_str());
    std::fflush(nullptr);
    std::_Exit(last_word(static_cast<int>(code), true));
  }
  static std::atomic<bool> ending{false};
  if (ending.exchange(true)) {  // another thread of this rank is at it
    while (true) std::this_thread::sleep_for(std::chrono::hours(1));
  }
  try {
    std::thread([code] {
      std::this_thread::sleep_for(kLastResort);
      std::_Exit(static_cast<int>(code));
    }).detach();
  } catch (const std::system_error&) {
    // Without a thread: what follows nearly always ends anyway.
  }
  record();
  // A mistake in the config fails on all ranks at once: the lowest rank speaks first, and ends the
  // others before their turn comes.
  let_signals_end_this_process();
  for (int i = 0; i < std::min(rank_, 8) * 6; ++i) {
    const std::unique_lock lock(detail::mpi_lock(), std::try_to_lock);
    if (lock.owns_lock() && pulse) pulse->poll();  // ends this process if another rank has spoken
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (!message.empty()) std::fprintf(stderr, "%s\n", message.c_str());
  std::fflush(nullptr);
  const bool locked = detail::mpi_lock().try_lock_for(std::chrono::milliseconds(500));
  if (locked && pulse) pulse->say_goodbye(static_cast<int>(code));
  if (!end_mpirun(static_cast<int>(code))) MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  std::_Exit(static_cast<int>(code));
}

std::string mpi_library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string first(text, static_cast<std::size_t>(length));
  first.resize(std::min(first.size(), first.find_first_of(",\n")));
  // MPICH's text, for example: "MPICH Version:\t4.0.2\nMPICH Release date: ..."
  if (first.starts_with("MPICH Version:"))
    first = "MPICH " + first.substr(first.find_last_of(" \t") + 1);
  return first;
}

}  // namespace starling
