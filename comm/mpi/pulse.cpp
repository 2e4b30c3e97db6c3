#include "comm/mpi/pulse.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "comm/engine/wire.h"
#include "comm/mpi/ulfm.h"
#include "comm/other_ranks.h"
#include "core/error.h"
#include "core/flight_recorder.h"
#include "core/host.h"
#include "core/running_clock.h"
#include "core/stop_signals.h"

#if !defined(SYS_pidfd_open)
#define SYS_pidfd_open 434  // the same number on all machines
#endif

namespace starling::detail {
namespace {

MpiPulse* the_pulse = nullptr;
constexpr double kLastWordsSeconds = 0.05;

double now_seconds() {
  return std::chrono::duration<double>(RunningClock::now().time_since_epoch()).count();
}

/// Another rank has failed and said why; it has MPI end the job. Should that not reach this
/// process, it ends itself a moment later.
[[noreturn]] void end_quietly(int code) {
  let_signals_end_this_process();
  FlightRecorder::instance().write(FlightRecorder::Reason::kOther, code,
                                   "another rank ended the job");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::_Exit(code);
}

}  // namespace

int open_process(pid_t process) { return static_cast<int>(::syscall(SYS_pidfd_open, process, 0)); }

std::recursive_timed_mutex& mpi_lock() {
  static std::recursive_timed_mutex mutex;
  return mutex;
}

MPI_Comm& world_communicator() {
  static MPI_Comm world = MPI_COMM_WORLD;
  return world;
}

void mpi_check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  fail(ExitCode::kLost, "mpi", "{} failed: {}", call, text.data());
}

MpiPulse* MpiPulse::instance() { return the_pulse; }

bool& MpiPulse::abandoned() {
  static bool flag = false;
  return flag;
}

MpiPulse::MpiPulse() {
  mpi_check(MPI_Comm_dup(world_communicator(), &comm_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  int size = 0;
  MPI_Comm_size(comm_, &size);
  heard_.resize(static_cast<std::size_t>(size));
  answers_.resize(static_cast<std::size_t>(size));
  mustered_.resize(static_cast<std::size_t>(size));
  gather_places(size);
  post();
  the_pulse = this;
}

MpiPulse::~MpiPulse() { the_pulse = nullptr; }

void MpiPulse::gather_places(int size) {
  struct Told {
    std::array<char, 64> host{};  // longer names are cut
    std::array<char, 112> kernel{};
    std::int64_t process = ::getpid();
  } mine;
  const auto write = [](const std::string& text, auto& to) {
    std::copy_n(text.begin(), std::min(text.size(), to.size() - 1), to.begin());
  };
  write(host_name(), mine.host);
  const std::string boot = boot_id(), numbers = namespace_id("pid");
  const int file = open_process(::getpid());
  if (file >= 0) ::close(file);
  if (file >= 0 && !boot.empty() && !numbers.empty()) write(boot + " " + numbers, mine.kernel);
  std::vector<Told> all(static_cast<std::size_t>(size));
  mpi_check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, comm_),
            "MPI_Allgather");
  for (const Told& told : all)
    places_.push_back({told.host.data(), told.kernel.data(), static_cast<pid_t>(told.process)});
}

bool MpiPulse::wait_for_all(double limit_seconds) {
  const double end = now_seconds() + limit_seconds;
  MPI_Request request = MPI_REQUEST_NULL;
  for (bool first = true; now_seconds() < end; first = false) {
    {
      const std::scoped_lock lock(mpi_lock());
      int flag = 0;
      if (first && MPI_Ibarrier(comm_, &request) != MPI_SUCCESS) return survives_;
      if (MPI_Test(&request, &flag, MPI_STATUS_IGNORE) != MPI_SUCCESS) return survives_;
      if (flag || any_lost_rank()) return true;
      poll();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

void MpiPulse::close() {
  if (receive_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&receive_);
    MPI_Wait(&receive_, MPI_STATUS_IGNORE);
  }
  // The messages are eager: complete without the other side
  for (auto& sent : sent_) MPI_Wait(&sent->request, MPI_STATUS_IGNORE);
  sent_.clear();
}

void MpiPulse::post() {
  incoming_.kind = Message::kNone;
  const auto receive = [this] {
    return MPI_Irecv(&incoming_, sizeof incoming_, MPI_BYTE, MPI_ANY_SOURCE, 0, comm_, &receive_);
  };
  int code = receive();
  if (is_rank_failure(code)) {
    acknowledge_failures(comm_);
    code = receive();
  }
  mpi_check(code, "MPI_Irecv");
}

void MpiPulse::send(int rank, const Message& message) {
  std::erase_if(sent_, [](const auto& sent) {
    int flag = 0;
    return MPI_Test(&sent->request, &flag, MPI_STATUS_IGNORE) != MPI_SUCCESS || flag != 0;
  });
  sent_.push_back(std::make_unique<Sent>(Sent{MPI_REQUEST_NULL, message}));
  const int code = MPI_Isend(&sent_.back()->message, sizeof message, MPI_BYTE, rank, 0, comm_,
                             &sent_.back()->request);
  if (is_rank_failure(code)) {  // reported by RankWatch
    sent_.pop_back();
    return;
  }
  mpi_check(code, "MPI_Isend");
}

void MpiPulse::poll() {
  while (true) {
    int flag = 0;
    MPI_Status status{};
    status.MPI_SOURCE = -1;
    const int code = MPI_Test(&receive_, &flag, &status);
    // RankWatch reports it; continue receiving from the other ranks.
    if (is_rank_failure(code)) {
      acknowledge_failures(comm_);
      // MPI may report the loss again together with a message of another rank, which is valid.
      if (!flag && receive_ != MPI_REQUEST_NULL) return;
      if (receive_ != MPI_REQUEST_NULL) MPI_Request_free(&receive_);
    } else {
      mpi_check(code, "MPI_Test");
      if (!flag) return;
    }
    const Message message = incoming_;
    post();
    if (message.kind == Message::kNone) return;
    if (message.kind == Message::kMuster) note_muster(static_cast<int>(message.code));
    if (message.kind == Message::kGoodbye) end_quietly(static_cast<int>(message.code));
    if (status.MPI_SOURCE < 0) continue;
    heard(status.MPI_SOURCE);
    if (message.kind == Message::kAnswer)
      answers_[static_cast<std::size_t>(status.MPI_SOURCE)] = message;
    if (message.kind == Message::kAsk)
      send(status.MPI_SOURCE, {Message::kAnswer, 0, started_.step, started_.bucket});
  }
}

void MpiPulse::ask(int rank) { send(rank, {Message::kAsk}); }

void MpiPulse::say_goodbye(int code) {
  const Message message{Message::kGoodbye, code};
  int rank = 0;
  MPI_Comm_rank(comm_, &rank);
  std::vector<MPI_Request> requests(heard_.size(), MPI_REQUEST_NULL);
  for (std::size_t j = 0; j < heard_.size(); ++j) {
    if (static_cast<int>(j) == rank) continue;
    MPI_Isend(&message, sizeof message, MPI_BYTE, static_cast<int>(j), 0, comm_, &requests[j]);
  }
  for (int i = 0; i < 50; ++i) {  // a lost rank must not hold this one up
    int flag = 0;
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &flag, MPI_STATUSES_IGNORE);
    if (flag && i >= 5) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void MpiPulse::note_muster(int rank) {
  mustered_[static_cast<std::size_t>(rank)] = true;
  if (survives_) note_lost_rank({-1, fmt::format("rank {} has lost another rank", rank)});
}

void MpiPulse::survive_losses() {
  survives_ = true;
  for (std::size_t j = 0; j < mustered_.size(); ++j) {
    if (mustered_[j]) note_muster(static_cast<int>(j));
  }
}

std::vector<int> MpiPulse::muster(const std::function<bool(int)>& lost, double limit_seconds) {
  const int size = static_cast<int>(heard_.size());
  int own = 0;
  std::vector<int> missing;
  {
    const std::scoped_lock lock(mpi_lock());
    MPI_Comm_rank(comm_, &own);
    for (int j = 0; j < size; ++j) {
      if (j == own) continue;
      missing.push_back(j);
      if (!lost(j)) send(j, {Message::kMuster, own});
    }
  }
  const double end = now_seconds() + limit_seconds;
  double last_words = 0.0;  // of ranks that ended: until then their goodbye may be on its way
  while (true) {
    {
      const std::scoped_lock lock(mpi_lock());
      poll();
      const std::vector<int> failed = failed_ranks(comm_);
      std::erase_if(missing, [&](int j) {
        return mustered_[static_cast<std::size_t>(j)] || lost(j) ||
               std::find(failed.begin(), failed.end(), j) != failed.end();
      });
    }
    const double now = now_seconds();
    if (missing.empty() && last_words == 0.0) last_words = now + kLastWordsSeconds;
    if ((missing.empty() && now >= last_words) || now >= end) return missing;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void MpiPulse::revoke() { detail::revoke(comm_); }

void MpiPulse::retire(std::unique_ptr<MpiPulse> pulse) {
  the_pulse = nullptr;
  static_cast<void>(pulse.release());
}

void MpiPulse::heard(int rank) { heard_[static_cast<std::size_t>(rank)] = now_seconds(); }

double MpiPulse::seconds_since(int rank) const {
  const double when = heard_[static_cast<std::size_t>(rank)];
  return when > 0.0 ? now_seconds() - when : -1.0;
}

std::string MpiPulse::doing(int rank) const {
  const Message& answer = answers_[static_cast<std::size_t>(rank)];
  if (answer.kind != Message::kAnswer) return {};
  return alive_text(answer.step, answer.bucket);
}

std::string MpiPulse::started() const { return last_started(started_.step, started_.bucket); }

}  // namespace starling::detail
