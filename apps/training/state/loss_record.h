#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/backend.h"
#include "core/operations/pointwise.h"

namespace starling {

/// The losses since the last line of metrics, on the device until somebody asks: no step waits.
class LossRecord {
 public:
  LossRecord(Backend& backend, DType dtype, std::int64_t capacity)
      : ring_(backend, Shape{capacity}, dtype), host_(static_cast<std::size_t>(capacity)) {}

  /// Adds a micro-batch's share (a scalar on the device) to the loss of the `step`th step.
  void add(const Tensor& loss, std::int64_t step, bool first_micro_batch) {
    if (first_micro_batch && used_ == ring_.elements()) drain();
    if (first_micro_batch) {
      if (used_ == 0) first_step_ = step;
      ++used_;
    }
    WeightedSum sum;
    sum.in[0] = loss;
    sum.weight[0] = 1.0;
    sum.terms = 1;
    sum.out = ring_.slice(used_ - 1, Shape{1});
    sum.accumulate = !first_micro_batch;
    ring_.backend().weighted_sum(sum);
  }

  /// Brings what the device holds to the host.
  void drain() {
    if (used_ == 0) return;
    const Tensor used = ring_.slice(0, Shape{used_});
    std::vector<float> narrow(ring_.dtype() == DType::kFloat32 ? static_cast<std::size_t>(used_)
                                                               : 0);
    ring_.backend().copy_to_host(used,
                                 narrow.empty() ? static_cast<void*>(host_.data()) : narrow.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(used_); ++i) {
      const double loss = narrow.empty() ? host_[i] : static_cast<double>(narrow[i]);
      if (!std::isfinite(loss) && diverged_step_ < 0)
        diverged_step_ = first_step_ + static_cast<std::int64_t>(i) + 1;
      sum_ += loss;
      ++count_;
    }
    used_ = 0;
  }

  double sum() const { return sum_; }
  std::int64_t count() const { return count_; }
  /// The first step (from 1) whose loss was not finite; -1 if none was.
  std::int64_t diverged_step() const { return diverged_step_; }
  void reset(double sum = 0.0, std::int64_t count = 0) {
    sum_ = sum;
    count_ = count;
  }

 private:
  Tensor ring_;
  std::vector<double> host_;
  std::int64_t used_ = 0, first_step_ = 0, count_ = 0, diverged_step_ = -1;
  double sum_ = 0.0;
};

}  // namespace starling
