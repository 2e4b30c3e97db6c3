#include "core/console.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <system_error>

#include "core/error.h"
#include "core/file_io.h"
#include "core/log.h"
#include "core/text.h"

namespace starling {
namespace {

/// 0, or why stdout takes no more.
int print(std::string_view text) {
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

/// Writes to the stream `stderr` of a terminal. The stream is locked meanwhile.
ssize_t write_wrapped(void*, const char* text, std::size_t bytes) {
  static int column = 0;
  winsize size{};
  std::string lines(text, bytes);
  const bool begins = column == 0;
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    lines = wrapped(lines, size.ws_col, column);
  // A progress line may stand there, which its program draws again.
  if (begins && ::isatty(STDOUT_FILENO) != 0) lines.insert(0, "\r\x1b[K");
  for (std::size_t at = 0; at < lines.size();) {
    const ssize_t count = ::write(STDERR_FILENO, lines.data() + at, lines.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return 0;  // an error, as fopencookie() has it
    at += static_cast<std::size_t>(count);
  }
  return static_cast<ssize_t>(bytes);
}

/// Puts write_wrapped() in place of glibc's `stderr`, which is a variable: all that prints to it,
/// libraries too, then goes through write_wrapped().
void wrap_stderr() {
  if (::isatty(STDERR_FILENO) == 0) return;
  std::FILE* stream = ::fopencookie(nullptr, "w", {nullptr, write_wrapped, nullptr, nullptr});
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
  wrap_stderr();
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
