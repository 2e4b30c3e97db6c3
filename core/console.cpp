#include "core/console.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "core/error.h"
#include "core/log.h"

namespace starling {
namespace {

/// 0, or why stdout takes no more.
int print(std::string_view text) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  const int reason = errno;
  std::clearerr(stdout);
  return written ? 0 : reason != 0 ? reason : EIO;
}

}  // namespace

void take_standard_files() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(number, F_GETFD) >= 0 || errno != EBADF) continue;
    const int opened = ::open("/dev/null", number == STDIN_FILENO ? O_RDONLY : O_WRONLY);  // the lowest number that is free: this one
    if (opened > STDERR_FILENO) ::close(opened);
  }
}

void say(std::string_view text) {
  static std::atomic<bool> lost{false};
  if (lost) return;
  const int reason = print(text);
  if (reason == 0 || lost.exchange(true)) return;
  log::warning("stdout takes no more ({}): the program goes on without", std::generic_category().message(reason));
}

void answer(std::string_view text) {
  const int reason = print(text);
  if (reason != 0) {
    fail(ExitCode::kOutput, "output", "stdout could not be written: {}; free space there, or send the output elsewhere",
         std::generic_category().message(reason));
  }
}

}  // namespace starling
