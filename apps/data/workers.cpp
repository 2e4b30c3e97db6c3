#include "apps/data/workers.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/trace.h"

namespace starling {

struct Workers::State {
  std::mutex mutex;  ///< guards what follows
  std::condition_variable begun, ended;
  const std::function<void(std::int64_t, int)>* work = nullptr;
  std::int64_t next = 0, count = 0;
  std::uint64_t round = 0;
  int busy = 0;
  std::int64_t failed_item = -1;
  std::exception_ptr failure;
  bool stopping = false;
  std::vector<std::thread> threads;

  /// Takes items until there are none. Called with the lock held; releases it during the work.
  void take_part(std::unique_lock<std::mutex>& lock, int worker) {
    while (next < count) {
      const std::int64_t item = next++;
      lock.unlock();
      std::exception_ptr caught;
      try {
        (*work)(item, worker);
      } catch (...) {
        caught = std::current_exception();
      }
      lock.lock();
      if (!caught) continue;
      if (!failure || item < failed_item) {
        failure = caught;
        failed_item = item;
      }
      // Items are taken in order, so all before this one are done or in progress
      count = std::min(count, next);
    }
  }

  void serve(int worker, Tracer* tracer) {
    Tracer::install(tracer);
    std::unique_lock lock(mutex);
    for (std::uint64_t seen = 0;;) {
      begun.wait(lock, [&] { return stopping || round != seen; });
      if (stopping) return;
      seen = round;
      ++busy;
      take_part(lock, worker);
      if (--busy == 0) ended.notify_all();
    }
  }
};

Workers::Workers(int threads) : threads_(std::max(1, threads)), state_(std::make_unique<State>()) {
  for (int worker = 1; worker < threads_; ++worker) {
    state_->threads.emplace_back([state = state_.get(), worker, tracer = Tracer::current()] {
      state->serve(worker, tracer);
    });
  }
}

Workers::~Workers() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->begun.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

void Workers::run(std::int64_t count, const std::function<void(std::int64_t, int)>& work) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  state.work = &work;
  state.next = 0;
  state.count = count;
  state.failure = nullptr;
  state.failed_item = -1;
  ++state.round;
  state.begun.notify_all();
  state.take_part(lock, 0);
  state.ended.wait(lock, [&] { return state.busy == 0; });
  state.work = nullptr;
  if (state.failure) std::rethrow_exception(state.failure);
}

}  // namespace starling
