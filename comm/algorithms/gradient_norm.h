#pragma once

#include <cstdint>
#include <vector>

#include "comm/algorithm.h"
#include "comm/bucket.h"
#include "core/backend.h"

namespace starling {

/// Norms of the gradients in the buckets, summed in fp64 parameter by parameter in traced order: so
/// the global norm has the same bits whatever the bucket size, and padding does not matter. Nothing
/// here waits for the device: what an update needs of a norm is computed where the update reads it.
class GradientNorm {
 public:
  GradientNorm(Backend& backend, const std::vector<Bucket>& buckets);

  /// Sums the squares of the gradients in buckets `begin` to `end` - 1. Issued to the current
  /// stream.
  void measure(int begin, int end);
  /// Writes {clip factor, skip} (GradientControl) of these buckets' gradients as they were measured
  /// last. `scale` is what they will be multiplied by.
  void control(int begin, int end, double scale, double clip, bool check_finite,
               const Tensor& control);
  const Tensor& totals() const { return totals_; }

 private:
  Backend& backend_;
  const std::vector<Bucket>& buckets_;
  std::vector<std::int64_t> first_;  ///< per bucket, its first parameter's place in totals_
  Tensor totals_;                    ///< fp64, one per parameter
};

}  // namespace starling
