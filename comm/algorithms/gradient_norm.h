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

  /// Sums the squares of one bucket's gradients, of all buckets' in measure_all. Issued to the
  /// current stream.
  void measure_bucket(int bucket);
  void measure_all();

  /// Writes {clip factor, skip} (GradientControl) from what was measured last: of one bucket, or of
  /// all. `scale` is what the gradients will be multiplied by.
  void control_of_bucket(int bucket, double scale, double clip, const Tensor& control);
  void control_of_all(double scale, double clip, bool check_finite, const Tensor& control);

 private:
  void measure(int begin, int end);  ///< of these buckets
  std::int64_t parameters_of(int bucket) const;

  Backend& backend_;
  const std::vector<Bucket>& buckets_;
  std::vector<std::int64_t> first_;  ///< per bucket, its first parameter's place in totals_
  Tensor totals_;                    ///< fp64, one per parameter
};

}  // namespace starling
