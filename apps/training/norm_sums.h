#pragma once

#include <cstdint>
#include <utility>

#include "comm/transport.h"
#include "layers/norm_statistics.h"

namespace starling {

/// Sums over ranks for `"sync": {"batch_norm": "sync"}`. The host waits for them, except on a GPU
/// with NCCL, where the compute stream waits.
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
