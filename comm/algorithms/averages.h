#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/algorithms/bucketwise.h"

namespace starling {

/// What becomes of the optimizer's states where models are averaged.
enum class StatesAt { kLocal, kAverage, kReset };
/// The key `states`.
StatesAt read_states(ConfigSection& config);
/// AlgorithmNeeds::fp16_fault.
std::string fp16_fault(StatesAt states);

/// Ranks that train by an inner algorithm and meet after some steps. What they do then is the
/// derived class's.
class Averages : public Algorithm {
 public:
  Averages(const AlgorithmSite& site, std::unique_ptr<Algorithm> inner, StatesAt states);

  void begin(const StepInfo& info) override;
  void bucket_ready(int bucket) override;
  void backward_done() override;
  bool is_through_with(int bucket) const override { return inner_->is_through_with(bucket); }
  void finish() override { inner_->finish(); }
  void resume(std::int64_t step) override;
  Tensor control() const override { return inner_->control(); }
  double take_wait_seconds() override {
    return Algorithm::take_wait_seconds() + inner_->take_wait_seconds();
  }

 protected:
  /// Whether the bucket's ranks meet after step t.
  virtual bool meets(int bucket, std::int64_t t) const = 0;
  /// Starts what meet() needs of a bucket whose ranks meet, once it is updated.
  virtual void start(int bucket) {
    means_.start(bucket, Algorithm::bucket(bucket).parameters, info_);
  }
  virtual void meet(int bucket) = 0;
  /// A bucket's optimizer state becomes its mean.
  virtual void average_state(int bucket, std::size_t k);
  /// Called when a new run begins, before the first update.
  virtual void first_step() {}

  Algorithm& inner() { return *inner_; }
  /// Waits for the mean; the result is a sum, of which means_.share() is the mean.
  Tensor wait_mean(int b);
  /// Makes the rule's p' of `numbers`, in place: the parameters, or a state beside them.
  void apply(int b, const OptimizerRule& rule, std::vector<Tensor> states, const Tensor& gradient,
             const Tensor& numbers);
  /// The mean of `numbers` in their place.
  void take_mean(int b, const Tensor& numbers);

  Means means_;
  Updater outer_;
  StepInfo info_;

 private:
  std::unique_ptr<Algorithm> inner_;
  StatesAt states_;
  std::int64_t reset_at_ = 0;            ///< steps done when the states were last zeroed; 0: never
  std::unique_ptr<OptimizerRule> mean_;  ///< p' = g / n
};

/// All-reduce in steps that warm up, then `after`. begin() asks once a step.
std::unique_ptr<Algorithm> after_warmup(const AlgorithmSite& site,
                                        std::function<bool(const StepInfo&)> warms_up,
                                        std::unique_ptr<Algorithm> after);
/// All-reduce before step `start`.
std::unique_ptr<Algorithm> after_warmup(const AlgorithmSite& site, std::int64_t start,
                                        std::unique_ptr<Algorithm> after);

}  // namespace starling
