#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/training/state/model_copy.h"

namespace starling {

/// `lookahead`
struct LookaheadSettings {
  std::int64_t every = 5;  ///< steps
  double decay = 0.5, power = 0.0;
  /// The weight of the slow weights after `step` of `total` updates.
  double share(std::int64_t step, std::int64_t total) const;
};

/// Lookahead (Zhang et al. 2019, arXiv 1907.08610): after every k-th step, and the last one, the
/// slow weights move towards the model's, which are then replaced by them: slow ← share·slow + (1 -
/// share)·x, x ← slow. The paper's α is 1 - share. With a power, share = decay·(step / total)^power
/// (Jordan 2024, arXiv 2404.00498). Parameters change right after their update, before they are
/// sent; buffers at the end of the step.
class Lookahead : public ModelCopy {
 public:
  Lookahead(const LookaheadSettings& settings, Backend& backend, const std::vector<Bucket>& buckets,
            Model& model, Replica* replica = nullptr)
      : ModelCopy("lookahead", backend, buckets, model, replica), settings_(settings) {}

  /// Initialises the slow weights with the model's.
  void begin();
  /// Called after update `step` of `total` of this rank's part of a bucket, on its stream.
  void after_update(std::size_t bucket, std::int64_t step, std::int64_t total) const;
  /// Called after all updates of that step.
  void after_step(std::int64_t step, std::int64_t total) const;

 private:
  /// Performs the formulas above on one tensor. Returns whether anything changed.
  bool meet(const Tensor& slow, const Tensor& own, std::int64_t step, std::int64_t total) const;

  LookaheadSettings settings_;
};

}  // namespace starling
