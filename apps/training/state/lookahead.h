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
  /// The share of the slow numbers that stays after `step` updates of `total`.
  double share(std::int64_t step, std::int64_t total) const;
};

/// Lookahead (Zhang et al. 2019, arXiv 1907.08610): after every k-th step slow numbers go a part of
/// the way to the model's, and the model goes on from there: slow ← share·slow + (1 - share)·x, x ←
/// slow. The paper's α is 1 - share. With a power the share grows as decay·(step / total)^power
/// (Jordan 2024, arXiv 2404.00498). After the last step the model takes the slow numbers, too.
/// Parameters change right behind their update, before anybody is sent them; buffers at the step's
/// end.
class Lookahead {
 public:
  Lookahead(const LookaheadSettings& settings, Backend& backend, const std::vector<Bucket>& buckets,
            Model& model);

  /// The slow numbers become the model's, as it begins.
  void begin();
  /// Called behind a bucket's update number `step`, of `total` in all, on its stream.
  void after_update(std::size_t bucket, std::int64_t step, std::int64_t total) const;
  /// Called behind all updates of that step.
  void after_step(std::int64_t step, std::int64_t total) const;

  /// This rank's part of a checkpoint: "lookahead.<name>".
  void save(SafetensorsFile& file) const { slow_.save("lookahead", file); }
  void load(const SafetensorsFile& file, const std::string& source) {
    slow_.load("lookahead", file, source);
  }

 private:
  /// Lets slow and own weights meet. Returns whether anything changed.
  bool meet(const Tensor& slow, const Tensor& own, std::int64_t step, std::int64_t total) const;

  LookaheadSettings settings_;
  Backend& backend_;
  const std::vector<Bucket>& bucket_list_;
  Model& model_;
  ModelCopy slow_;
};

}  // namespace starling
