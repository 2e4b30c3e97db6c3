#include "core/core_wait.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace starling {

TEST_CASE("core_wait: threads that share a core wait for it as long as the others run") {
  if (!std::filesystem::exists("/proc/self/schedstat")) return;  // a kernel that does not say
  constexpr int kThreads = 3;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  const CoreWait core_wait;
  std::atomic<bool> seen = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      sched_setaffinity(0, sizeof one, &one);  // of this thread
      while (!seen) {
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double share = core_wait.share();
  seen = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(share > 0.5);  // 2/3, more on a busy machine
  CHECK(share <= 1.0);
}

TEST_CASE("core_wait: a tenth is told, less is not") {
  CHECK(busy_text("while ", 0.099).empty());
  CHECK(busy_text("while ", 0.43).starts_with("while threads waited for a core 43 % of the time"));
}

}  // namespace starling
