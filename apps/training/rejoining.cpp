#include "apps/training/rejoining.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "apps/training/config/given_config.h"
#include "apps/training/joining.h"
#include "comm/mpi/launcher.h"
#include "core/error.h"
#include "core/log.h"

namespace starling {
namespace {

int to_parent = -1;  ///< a child's end of a pipe; -1: this is no child

/// How often the config lets a rank come back; 0 also where it cannot be read: the child reports
/// that.
std::int64_t rejoins(TrainOptions options) {
  if (!options.join.empty()) options.config = job_file(options.join);
  // What a pipe gives can be read once.
  std::error_code none;
  if (!std::filesystem::is_regular_file(options.config, none)) return 0;
  try {
    const nlohmann::json elastic = given_config(options).value("elastic", nlohmann::json::object());
    return elastic.value("join", false) ? elastic.value("rejoin", ElasticSettings().rejoin) : 0;
  } catch (const std::exception&) {
    return 0;
  }
}

/// The last line that a child has written before it ended.
std::string last_line(int from) {
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t count; (count = ::read(from, part.data(), part.size())) > 0;)
    text.append(part.data(), static_cast<std::size_t>(count));
  if (text.empty()) return text;
  text.pop_back();
  return text.substr(text.find_last_of('\n') + 1);
}

[[noreturn]] void end_as(int status) {
  if (WIFEXITED(status)) ::_exit(WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  std::signal(signal, SIG_DFL);
  sigset_t own;
  ::sigemptyset(&own);
  ::sigaddset(&own, signal);
  ::sigprocmask(SIG_UNBLOCK, &own, nullptr);
  std::raise(signal);
  ::_exit(128 + signal);
}

}  // namespace

void train_in_child(TrainOptions& options) {
  const std::int64_t most = rejoins(options);
  if (most == 0) return;
  detail::widen_binding();  // children that join know nothing of mpirun
  sigset_t signals, before;
  ::sigemptyset(&signals);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT})
    ::sigaddset(&signals, signal);
  ::sigprocmask(SIG_BLOCK, &signals, &before);
  const pid_t parent = ::getpid();
  std::string run;
  bool stops = false;
  for (std::int64_t count = 0;; ++count) {
    int ends[2];
    const pid_t child = ::pipe2(ends, O_CLOEXEC) == 0 ? ::fork() : -1;
    if (child < 0) {
      log::warning("cannot start a process to train in: {}; a rank that dies will not come back",
                   std::strerror(errno));
      ::sigprocmask(SIG_SETMASK, &before, nullptr);
      return;
    }
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(static_cast<int>(ExitCode::kLost));
      ::close(ends[0]);
      to_parent = ends[1];
      ::sigprocmask(SIG_SETMASK, &before, nullptr);
      if (count == 0) return;
      options.join = run;
      options.config.clear();
      options.output.clear();
      options.resume.clear();
      detail::leave_launcher();
      return;
    }
    ::close(ends[1]);
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      int signal = 0;
      if (::sigwait(&signals, &signal) != 0 || signal == SIGCHLD) continue;
      stops = stops || signal != SIGQUIT;
      ::kill(child, signal);
    }
    run = last_line(ends[0]);
    ::close(ends[0]);
    const bool lost =
        WIFSIGNALED(status) ||
        (WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ExitCode::kLost));
    if (!lost || run.empty() || stops || ::access(job_file(run).c_str(), F_OK) != 0) end_as(status);
    const std::string how = WIFSIGNALED(status)
                                ? fmt::format("was ended by signal {}", WTERMSIG(status))
                                : std::string("was left out by the others");
    if (count == most) {
      log::warning(
          "the rank of process {} {}; it has come back {} times, as often as "
          "elastic.rejoin lets it",
          child, how, most);
      end_as(status);
    }
    log::warning("the rank of process {} {}; joins {} again, {} of {} times", child, how, run,
                 count + 1, most);
  }
}

void come_back_to(const std::string& folder) {
  const std::string line = folder + "\n";
  // A parent that is gone takes this process with it.
  if (to_parent >= 0 && ::write(to_parent, line.data(), line.size()) < 0) to_parent = -1;
}

}  // namespace starling
