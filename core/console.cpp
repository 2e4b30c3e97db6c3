#include "core/console.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <system_error>

#include "core/error.h"
#include "core/file_io.h"
#include "core/log.h"

namespace starling {
namespace {

/// The terminal that what this process writes to a standard file ends up on: the file itself, or
/// mpirun's where that started this rank, whose own files are mpirun's pipes. Opened where it is
/// not the file itself. Nothing where it is no terminal.
class Terminal {
 public:
  explicit Terminal(int file) : file_(file) {
    if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) {
      const std::string theirs = fmt::format("/proc/{}/fd/{}", ::getppid(), file);
      std::array<char, 64> target{};
      const ssize_t bytes = ::readlink(theirs.c_str(), target.data(), target.size() - 1);
      const std::string_view name(target.data(), bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
      const bool terminal = name.starts_with("/dev/pts/") || name.starts_with("/dev/tty");
      file_ = opened_ = terminal ? ::open(theirs.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC) : -1;
    } else if (::isatty(file) == 0) {
      file_ = -1;
    }
  }
  ~Terminal() {
    if (opened_ >= 0) ::close(opened_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  bool there() const { return file_ >= 0; }
  /// 0 where it does not say.
  int columns() const {
    winsize size{};
    return file_ >= 0 && ::ioctl(file_, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
  }

 private:
  int file_, opened_ = -1;
};

/// Whether a terminal can go back in a line and erase it, as Emacs' shell, for one, cannot.
bool rewrites() {
  const char* kind = std::getenv("TERM");
  return kind == nullptr || std::string_view(kind) != "dumb";
}

/// 0, or why stdout takes no more.
int print(std::string_view text) {
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  errno = 0;
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  const int reason = errno;
  std::clearerr(stdout);
  return written ? 0 : reason != 0 ? reason : EIO;
}

/// Whoever read has seen enough. Also the signal's handler: it runs within the write that nobody
/// takes.
[[noreturn]] void end_with_reader(int signal) {
  remove_unfinished_files();
  ::_exit(128 + signal);
}

/// Writes to the stream `stderr` of a terminal, which is locked by the caller.
ssize_t write_to_terminal(void*, const char* text, std::size_t bytes) {
  static bool line_begins = true;
  std::string lines(text, bytes);
  // A progress line may stand there, which its program draws again.
  if (line_begins && stdout_is_terminal()) lines.insert(0, "\r\x1b[K");
  if (bytes > 0) line_begins = lines.back() == '\n' || lines.back() == '\r';
  for (std::size_t at = 0; at < lines.size();) {
    const ssize_t count = ::write(STDERR_FILENO, lines.data() + at, lines.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return 0;  // an error, as fopencookie() has it
    at += static_cast<std::size_t>(count);
  }
  return static_cast<ssize_t>(bytes);
}

/// Puts write_to_terminal() in place of glibc's `stderr`, which is a variable: all that prints to
/// it, libraries too, then goes through write_to_terminal().
void replace_stderr() {
  if (!Terminal(STDERR_FILENO).there()) return;
  std::FILE* stream = ::fopencookie(nullptr, "w", {nullptr, write_to_terminal, nullptr, nullptr});
  if (stream == nullptr) return;
  std::setvbuf(stream, nullptr, _IONBF, 0);
  stderr = stream;
}

}  // namespace

void take_standard_files(bool with_reader) {
  std::signal(SIGPIPE, with_reader ? end_with_reader : SIG_IGN);
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(number, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() takes the lowest number that is free: this one.
    const int opened = ::open("/dev/null", number == STDIN_FILENO ? O_RDONLY : O_WRONLY);
    if (opened > STDERR_FILENO) ::close(opened);
  }
  replace_stderr();
}

bool stdout_is_terminal() { return Terminal(STDOUT_FILENO).there() && rewrites(); }

std::size_t terminal_width() {
  const int columns = Terminal(STDOUT_FILENO).columns();
  return columns < 20 ? 80 : static_cast<std::size_t>(columns);
}

void say(std::string_view text) {
  static std::atomic<bool> lost{false};
  if (lost) return;
  const int reason = print(text);
  if (reason == 0 || lost.exchange(true)) return;
  log::warning("stdout takes no more ({}): the program goes on without",
               std::generic_category().message(reason));
}

void answer(std::string_view text) {
  const int reason = print(text);
  if (reason == EPIPE) end_with_reader(SIGPIPE);
  if (reason != 0) {
    fail(ExitCode::kOutput, "output",
         "stdout could not be written: {}; free space there, or send the output elsewhere",
         std::generic_category().message(reason));
  }
}

void complain(std::string_view line) {
  // One write: lines of several ranks do not mix
  const std::string text = std::string(line) + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace starling
