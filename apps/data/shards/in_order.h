#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace starling {

/// Calls make(item) on `threads` threads, and take(item, thing) in order of items on the caller's
/// thread; take() returns whether to continue. At most a few results per thread wait for earlier
/// ones. Rethrows the exception of the first make() or take(), in order, that threw.
template <class Thing, class Make, class Take>
void in_order(int threads, std::int64_t count, const Make& make, const Take& take) {
  struct Slot {
    Thing thing{};
    std::exception_ptr failure;
    bool ready = false;
  };
  const auto window = std::int64_t{4} * threads;
  std::vector<Slot> slots(static_cast<std::size_t>(window));
  std::mutex mutex;  // guards the slots' `ready`, and:
  std::int64_t next = 0, taken = 0;
  bool stopping = false;
  std::condition_variable made, room;
  const auto slot_of = [&](std::int64_t item) -> Slot& {
    return slots[static_cast<std::size_t>(item % window)];
  };

  const auto work = [&] {
    std::unique_lock lock(mutex);
    while (true) {
      room.wait(lock, [&] { return stopping || next >= count || next < taken + window; });
      if (stopping || next >= count) return;
      const std::int64_t item = next++;
      lock.unlock();
      Slot& slot = slot_of(item);
      try {
        slot.thing = make(item);
      } catch (...) {
        slot.failure = std::current_exception();
      }
      lock.lock();
      slot.ready = true;
      made.notify_one();
    }
  };

  struct Team {
    std::vector<std::thread> threads;
    std::mutex& mutex;
    bool& stopping;
    std::condition_variable& room;
    ~Team() {
      {
        const std::lock_guard lock(mutex);
        stopping = true;
      }
      room.notify_all();
      for (std::thread& thread : threads) thread.join();
    }
  } team{{}, mutex, stopping, room};
  for (int i = 0; i < threads; ++i) team.threads.emplace_back(work);

  for (std::int64_t item = 0; item < count; ++item) {
    Slot& slot = slot_of(item);
    std::unique_lock lock(mutex);
    made.wait(lock, [&] { return slot.ready; });
    slot.ready = false;
    Thing thing = std::move(slot.thing);
    const std::exception_ptr failure = std::exchange(slot.failure, nullptr);
    ++taken;
    room.notify_one();
    lock.unlock();
    if (failure) std::rethrow_exception(failure);
    if (!take(item, std::move(thing))) return;
  }
}

}  // namespace starling
