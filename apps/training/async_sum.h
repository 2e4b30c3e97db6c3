#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/transport.h"

namespace starling {

/// Σ over ranks of a few numbers without waiting for them: started at one step, read at a later
/// one.
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
  /// A device must not be waited for, so the numbers lie in host memory; null where that is the
  /// device's
  std::unique_ptr<Backend> host_;
  Tensor values_;
  Ticket ticket_ = 0;
  bool pending_ = false;
};

}  // namespace starling
