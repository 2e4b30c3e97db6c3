#pragma once

#include <chrono>
#include <string>
#include <utility>

#include "core/backend.h"
#include "core/trace.h"

namespace starling {

/// Times and traces waits for other ranks. On a device only the update stream waits, so that the
/// rest of the backward pass can run.
class ExchangeWait {
 public:
  explicit ExchangeWait(Backend& backend) : backend_(backend) {}
  template <class Wait>
  void operator()(const char* verb, int bucket, const Wait& wait) {
    const TraceSpan span(verb, "bucket " + std::to_string(bucket), TraceLane::kExchange);
    const StreamScope scope(backend_, StreamKind::kUpdate);
    const auto begin = std::chrono::steady_clock::now();
    wait();
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  /// Seconds waited since the last call.
  double take_seconds() { return std::exchange(seconds_, 0.0); }

 private:
  Backend& backend_;
  double seconds_ = 0.0;
};

}  // namespace starling
