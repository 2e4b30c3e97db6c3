#include "core/running_clock.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

using namespace starling;
using namespace std::chrono_literals;

TEST_CASE("core/running clock: a suspension does not count, what is short of one does") {
  const auto begin = RunningClock::now();
  for (const auto length : {5s, 3600s, 86400s}) RunningClock::pretend_suspension(length);
  CHECK(RunningClock::seconds_since(begin) < 5.0);
  for (int i = 0; i < 4; ++i) RunningClock::pretend_suspension(RunningClock::kMostApart / 2);
  CHECK(RunningClock::seconds_since(begin) >= 1.9);
  std::this_thread::sleep_for(30ms);
  CHECK(RunningClock::seconds_since(begin) >= 1.93);
}

TEST_CASE("core/running clock: no thread sees it jump, whoever looks first after a suspension") {
  std::atomic<bool> stop{false};
  std::atomic<int> back{0}, jumps{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      auto last = RunningClock::now();
      while (!stop) {
        const auto now = RunningClock::now();
        back += now < last ? 1 : 0;
        jumps += now - last > 1000s ? 1 : 0;
        last = now;
      }
    });
  }
  for (int i = 0; i < 300; ++i) {
    RunningClock::pretend_suspension(2000s);
    std::this_thread::sleep_for(200us);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(back == 0);
  CHECK(jumps == 0);
}
