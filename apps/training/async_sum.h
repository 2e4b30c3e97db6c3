#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/transport.h"
#include "layers/norm_statistics.h"

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

/// Sums for `"sync": {"batch_norm": "sync"}`: the host waits, or with NCCL the compute stream.
class NormSums final : public RankSums {
 public:
  explicit NormSums(Transport& transport) : transport_(transport) {}
  int ranks() const override { return transport_.size(); }
  void sum(const Tensor& numbers) override;
  void begin_step(std::int64_t step) { step_ = step; }
  /// Seconds that this rank has waited since the last call.
  double take_wait_seconds() { return std::exchange(seconds_, 0.0); }

 private:
  Transport& transport_;
  std::int64_t step_ = 0;
  double seconds_ = 0.0;
};

}  // namespace starling
