#include "core/crash.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "tests/support/folder.h"
#include "tests/support/sanitized.h"

using namespace starling::test;

#if defined(__x86_64__)
// A function whose first byte is the one that crashes, as where a stack overflows.
asm(".pushsection .text\n.type crashes_at_once, @function\ncrashes_at_once: ud2\n.size "
    "crashes_at_once, . - crashes_at_once\n.popsection");
extern "C" __attribute__((visibility("hidden"))) void crashes_at_once();

TEST_CASE("core/crash: the line names the function whose first byte crashes") {
  if (kSanitized) return;  // there the sanitizer tells it
  const Folder folder;
  const std::string said = folder / "said";
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::dup2(::open(said.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    starling::install_crash_reports();
    crashes_at_once();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WTERMSIG(status) == SIGILL);
  const std::string line = folder.read("said");
  CAPTURE(line);
  CHECK(line.find("; stack: crashes_at_once") != std::string::npos);
}
#endif
