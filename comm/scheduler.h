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

/// Counts gradients as they become ready and hands whole buckets to the algorithm, in bucket order,
/// as early as possible.
class BucketScheduler {
 public:
  BucketScheduler(const BucketPlan& plan, std::vector<Bucket>& buckets, Algorithm& algorithm,
                  bool allow_unused);
  void begin_step(const StepInfo& info);
  /// Runs the last micro-batch's backward pass. On a device's timeline the pass up to a bucket's
  /// last gradient, from the bucket before on, is a span "backward bucket B".
  void backward(const std::function<void()>& pass);
  /// The tape's gradient memory: this parameter's gradient is begun.
  void begun(const Parameter& parameter);
  /// The tape's observer in the last micro-batch: this parameter's gradient is complete.
  void ready(Parameter& parameter);
  /// Ends the backward pass. A traced parameter without gradient is Error(kUsage) with its name;
  /// with allow_unused its gradient is zeroed.
  void end_backward();

 private:
  void hand_over();
  Bucket* bucket_of(const Parameter& parameter);
  /// Place in errors: the step, and the bucket where there is one.
  std::string place(int bucket) const;
  void begin_span();
  const BucketPlan& plan_;
  std::vector<Bucket>& buckets_;
  Algorithm& algorithm_;
  bool allow_unused_;
  std::vector<std::int64_t> missing_;  ///< per bucket: gradients not yet ready
  std::vector<char> seen_;             ///< per parameter
  int next_ = 0;                       ///< first bucket not handed over
  int dropped_ = 0;                    ///< first whose gradients somebody may read yet
  std::int64_t step_ = 0;
  bool in_backward_ = false;
  std::optional<DeviceSpan> span_;  ///< of the bucket whose gradients come, in backward()
};

}  // namespace starling
