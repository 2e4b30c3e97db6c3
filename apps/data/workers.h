#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace starling {

/// Threads that share the items of a loop: reading and decoding the samples of a batch.
class Workers {
 public:
  /// `threads` in all, the caller's among them.
  explicit Workers(int threads);
  ~Workers();
  int threads() const { return threads_; }
  /// Calls work(item, worker) for items 0 to count - 1, each once, worker being 0 to threads() - 1
  /// and one call at a time. Returns when all are done. Throws what the first item, in order,
  /// threw; items after one that threw may be left out.
  void run(std::int64_t count, const std::function<void(std::int64_t item, int worker)>& work);

 private:
  struct State;
  int threads_;
  std::unique_ptr<State> state_;
};

}  // namespace starling
