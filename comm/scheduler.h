#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/algorithm.h"
#include "comm/bucket.h"
#include "core/device_trace.h"
#include "core/parameter.h"

namespace starling {

/// Counts complete gradients, and passes buckets to the algorithm in order, each as early as
/// possible.
class BucketScheduler {
 public:
  BucketScheduler(const BucketPlan& plan, std::vector<Bucket>& buckets, Algorithm& algorithm,
                  bool allow_unused);
  /// Before the compute stream reads a parameter, or all: Algorithm::before_read().
  void before_read(const Parameter& parameter);
  void before_reads();
  void begin_step(const StepInfo& info);
  /// Runs the last micro-batch's backward pass. A device's timeline shows it as one span "backward
  /// bucket B" for each bucket, ending with its last gradient.
  void backward(const std::function<void()>& pass);
  /// For Tape::set_gradient_memory(): this parameter's gradient is about to be written.
  void begun(const Parameter& parameter);
  /// For Tape::set_ready_observer(), in the last micro-batch: this parameter's gradient is
  /// complete.
  void ready(Parameter& parameter);
  /// Ends the backward pass. A traced parameter without gradient is Error(kUsage) with its name;
  /// with allow_unused its gradient is zeroed.
  void end_backward();

 private:
  void hand_over();
  Bucket* bucket_of(const Parameter& parameter);
  /// For errors: the step and, unless `bucket` is negative, the bucket.
  std::string place(int bucket) const;
  void begin_span();
  const BucketPlan& plan_;
  std::vector<Bucket>& buckets_;
  Algorithm& algorithm_;
  bool allow_unused_;
  std::vector<std::int64_t> missing_;  ///< per bucket: gradients not yet ready
  std::vector<char> seen_;             ///< per parameter
  int next_ = 0;                       ///< first bucket not passed to the algorithm yet
  int dropped_ = 0;                    ///< first bucket whose gradients may still be read
  std::int64_t step_ = 0;
  bool in_backward_ = false;
  std::optional<DeviceSpan> span_;  ///< of the next bucket, in backward()
};

}  // namespace starling
