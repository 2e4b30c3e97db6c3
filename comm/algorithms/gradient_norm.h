#pragma once

#include <vector>

#include "comm/algorithm.h"
#include "comm/bucket.h"
#include "core/backend.h"

namespace starling {

/// Norms of the gradients in the buckets, summed in fp64 parameter by parameter in traced order: so the global norm has the same bits
/// whatever the bucket size, and padding does not matter.
class GradientNorm {
 public:
  GradientNorm(Backend& backend, const std::vector<Bucket>& buckets);
  /// ‖g‖ of one bucket. The host waits for the current stream.
  double of_bucket(int bucket);
  /// ‖g‖ of all buckets.
  double of_all();

 private:
  void add_bucket(int bucket);
  double read(std::size_t first, std::size_t count);
  Backend& backend_;
  const std::vector<Bucket>& buckets_;
  std::vector<std::size_t> first_;  ///< per bucket, its first parameter's place in totals_
  Tensor totals_;                   ///< fp64, one per parameter
  std::vector<double> host_;
};

/// The factor of semantics.md section 2: min(1, c / (norm + 1e-6)); 1 where clipping is off.
double clip_factor(const ClipSettings& clip, double norm);

}  // namespace starling
