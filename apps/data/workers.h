#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace starling {

/// Threads that share the items of a loop: reading and decoding the samples of a batch.
class Workers {
 public:
  /// `threads`: total number, including the caller's.
  explicit Workers(int threads);
  ~Workers();
  int threads() const { return threads_; }
  /// Calls work(item, worker) once for each item in [0, count), where worker is in [0, threads())
  /// and unique among concurrent calls. Returns when all are done. Rethrows the exception of the
  /// first item, in order, that threw; later items may be skipped.
  void run(std::int64_t count, const std::function<void(std::int64_t item, int worker)>& work);

 private:
  struct State;
  int threads_;
  std::unique_ptr<State> state_;
};

}  // namespace starling
