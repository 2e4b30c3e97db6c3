#pragma once

#include <cstdint>
#include <vector>

#include "comm/algorithm.h"
#include "comm/bucket.h"
#include "core/backend.h"

namespace starling {

class Replica;

/// Norms of gradients, summed in fp64 by parameter in traced order, so that the bits of the global
/// norm do not depend on bucket sizes and padding. Never waits for the device: factors are computed
/// on the device, where updates read them.
class GradientNorm {
 public:
  /// `replica`: whose ranks have the other parts of the buckets, and call measure() too; null: none
  GradientNorm(Backend& backend, const std::vector<Bucket>& buckets, Replica* replica = nullptr);

  /// Sums the squares of the gradients in buckets [begin, end), on the current stream.
  void measure(int begin, int end);
  /// Writes {clip factor, skip} (GradientControl) from the last measure() of these buckets.
  /// `scale`: the factor that will be applied to the gradients.
  void control(int begin, int end, double scale, double clip, bool check_finite,
               const Tensor& control);
  const Tensor& totals() const { return totals_; }

 private:
  Backend& backend_;
  const std::vector<Bucket>& buckets_;
  Replica* replica_;
  std::vector<std::int64_t> first_;  ///< per bucket, its first parameter's place in totals_
  Tensor totals_;                    ///< fp64, one per parameter; of a replica one per bucket
};

}  // namespace starling
