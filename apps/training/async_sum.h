#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/transport.h"

namespace starling {

/// An asynchronous sum of a few numbers over ranks: started in one step, read in a later one.
class AsyncSum {
 public:
  AsyncSum(Transport& transport, Backend& backend, std::size_t count);
  void start(std::span<const double> values, std::int64_t step);
  bool pending() const { return pending_; }
  bool ready() { return pending_ && transport_.done(ticket_); }
  /// Waits for the result.
  std::vector<double> take();

 private:
  Transport& transport_;
  /// For host memory, so as not to wait for the device; null if the device is a CPU
  std::unique_ptr<Backend> host_;
  Tensor values_;
  Ticket ticket_ = 0;
  bool pending_ = false;
};

}  // namespace starling
