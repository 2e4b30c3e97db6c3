#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace starling::test {

/// Waits until `what` is so, twenty seconds at most.
template <class What>
bool soon(const What& what) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!what()) {
    if (std::chrono::steady_clock::now() >= limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// How ranks meet that a transport's barrier() would not serve any more: one that never comes makes
/// nobody hang.
inline void wait_for(const std::atomic<int>& count, int wanted) {
  soon([&] { return count >= wanted; });
}

}  // namespace starling::test
