#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

#include "core/log.h"
#include "tests/support/stderr_lines.h"

using namespace starling;
using test::stderr_lines;

namespace {

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE(
    "core/log: information comes from rank 0, warnings and errors from every rank with its "
    "number") {
  const auto say = [] {
    log::write(log::Level::kDebug, "detail");
    log::info("{} ranks", 4);
    log::warning("slow {{}}");
    log::write(log::Level::kError, "[comm] lost");
  };
  CHECK(stderr_lines([&] {
          log::configure(0, 1);
          say();
        }) == Lines{"4 ranks", "warning: slow {}", "[comm] lost"});
  CHECK(stderr_lines([&] {
          log::configure(0, 4);
          say();
        }) == Lines{"4 ranks", "rank 0: warning: slow {}", "rank 0: [comm] lost"});
  CHECK(stderr_lines([&] {
          log::configure(3, 4);
          say();
        }) == Lines{"rank 3: warning: slow {}", "rank 3: [comm] lost"});
  CHECK(stderr_lines([&] {
          log::configure(0, 4, log::Level::kError);
          say();
        }) == Lines{"rank 0: [comm] lost"});
  log::configure(0, 1);
}

TEST_CASE("core/log: lines of several threads do not mix") {
  const std::string line(200, 'x');
  const Lines lines = stderr_lines([&] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) log::info("{}", line);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  CHECK(lines == Lines(400, line));
}
