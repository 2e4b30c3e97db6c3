// What a process says of a signal that ends it, and of data that is gone.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "core/crash.h"
#include "core/error.h"
#include "core/mapped_files.h"
#include "tests/support/folder.h"
#include "tests/support/sanitized.h"

using namespace starling;
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
    install_crash_reports();
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

TEST_CASE("core/mapped files: an address is found in its file while that is mapped") {
  const std::string first(100, 'a'), second(50, 'b');
  MappedPlace place;
  CHECK_FALSE(find_mapping(first.data(), place));
  note_mapping(first.data(), first.size(), "first");
  note_mapping(second.data(), second.size(), "second");
  REQUIRE(find_mapping(first.data() + 99, place));
  CHECK(place.path == "first");
  CHECK(place.offset == 99);
  CHECK(place.bytes == 100);
  CHECK_FALSE(find_mapping(first.data() + 100, place));
  CHECK_FALSE(find_mapping(first.data() - 1, place));
  REQUIRE(find_mapping(second.data(), place));
  CHECK(place.path == "second");
  forget_mapping(first.data());
  CHECK_FALSE(find_mapping(first.data(), place));
  note_mapping(first.data(), 10, "third");
  REQUIRE(find_mapping(first.data() + 9, place));
  CHECK(place.path == "third");
  CHECK_FALSE(find_mapping(first.data() + 10, place));
  forget_mapping(first.data());
  forget_mapping(second.data());
  forget_mapping(second.data());
  CHECK_FALSE(find_mapping(second.data(), place));
}

TEST_CASE(
    "core/mapped files: reading what a file has no longer is an error of data that names it") {
  if (kSanitized) return;  // there the sanitizer tells it
  const Folder folder;
  const std::string path = folder.write("data", std::string(20'000, 'x')), said = folder / "said";
  for (const bool noted : {true, false}) {
    CAPTURE(noted);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      const int errors = ::open(said.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600),
                file = ::open(path.c_str(), O_RDWR);
      ::dup2(errors, STDERR_FILENO);
      install_data_fault_reports("starling-test");
      const auto* bytes = static_cast<const volatile char*>(
          ::mmap(nullptr, 20'000, PROT_READ, MAP_SHARED, file, 0));
      if (noted) note_mapping(const_cast<const char*>(bytes), 20'000, path);
      if (::ftruncate(file, 123) != 0) ::_exit(9);
      ::_exit(bytes[19'999] == 'x' ? 10 : 11);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    const std::string line = folder.read("said");
    if (noted) {
      CHECK(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == static_cast<int>(ExitCode::kUsage));
      CHECK(line ==
            "starling-test: [data] " + path +
                ": was shortened from 20000 to 123 bytes while it was being read; make it whole, " +
                "change no data that is in use, and start again\n");
    } else {  // none of ours: the signal ends the process, as ever
      CHECK(WIFSIGNALED(status));
      CHECK(WTERMSIG(status) == SIGBUS);
      CHECK(line.empty());
    }
    folder.write("data", std::string(20'000, 'x'));
  }
}
