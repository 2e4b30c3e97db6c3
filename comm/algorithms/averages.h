#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/algorithms/bucketwise.h"

namespace starling {

/// What happens to the optimizer's states when models are averaged.
enum class StatesAt { kLocal, kAverage, kReset };
/// The key `states`.
StatesAt read_states(ConfigSection& config);
/// AlgorithmNeeds::fp16_fault.
std::string fp16_fault(StatesAt states);

/// Base class of algorithms in which ranks train with an inner algorithm and synchronise after some
/// steps. With a delay the exchange starts that number of steps before; a checkpoint waits for it
/// and saves it, and conclude() uses it.
class Averages : public Algorithm {
 public:
  Averages(const AlgorithmSite& site, std::unique_ptr<Algorithm> inner, StatesAt states,
           std::int64_t delay = 0);

  void begin(const StepInfo& info) override;
  void bucket_ready(int bucket) override;
  void backward_done() override;
  bool gradients_consumed(int bucket) const override { return inner_->gradients_consumed(bucket); }
  bool updates_at_once() const override { return inner_->updates_at_once(); }
  bool parameters_final(int bucket) const override {
    return inner_->parameters_final(bucket) && !meets(bucket, info_.step);
  }
  void finish() override;
  void conclude() override;
  void resume(std::int64_t step) override;
  void resume_after_loss(std::int64_t step) override;
  std::int64_t met() const override { return met_; }
  Tensor control() const override { return inner_->control(); }
  double take_wait_seconds() override {
    return Algorithm::take_wait_seconds() + inner_->take_wait_seconds();
  }

 protected:
  /// Whether ranks synchronise the bucket after step t.
  virtual bool meets(int bucket, std::int64_t t) const = 0;
  /// Whether the bucket's exchange starts after step t.
  bool starts(int bucket, std::int64_t t) const { return meets(bucket, t + delay_); }
  /// Starts exchanges, after the bucket's update in the step that is `delay` before meet().
  virtual void start(int bucket) {
    means_.start(bucket, Algorithm::bucket(bucket).parameters, info_);
  }
  /// Waits for what start() started, if anything, and changes nothing that is equal on all ranks.
  /// Other waits are meet()'s where nothing is.
  virtual void settle(int /*bucket*/) {}
  virtual void meet(int bucket) = 0;
  /// Replaces a bucket's optimizer state by its mean over ranks.
  virtual void average_state(int bucket, std::size_t k);
  /// Synchronises the buckets that meet after the step of info_.
  void meet_buckets();
  /// Called when a new run begins, before the first update.
  virtual void first_step() {}

  Algorithm& inner() { return *inner_; }
  /// Waits for the sum over ranks; the mean is means_.share() times that.
  Tensor wait_mean(int b);
  /// Applies the rule to `numbers` in place: the parameters or a state.
  void apply(int b, const OptimizerRule& rule, std::vector<Tensor> states, const Tensor& gradient,
             const Tensor& numbers);
  /// Replaces `numbers` by their mean over ranks.
  void take_mean(int b, const Tensor& numbers);
  /// The same, with the sum over ranks.
  void take_mean_of(int b, const Tensor& sum, const Tensor& numbers);

  Means means_;
  Updater outer_;
  StepInfo info_;

 private:
  void start_if_due(int b);
  void settle_all();

  std::unique_ptr<Algorithm> inner_;
  StatesAt states_;
  std::int64_t delay_;
  std::vector<char> under_way_;          ///< by bucket: start() was called, and meet() not yet
  std::int64_t met_ = 0;                 ///< steps done when buckets were last synchronised
  std::int64_t reset_at_ = 0;            ///< steps done when the states were last zeroed; 0: never
  std::unique_ptr<OptimizerRule> mean_;  ///< p' = g / n
};

/// All-reduce during a warm-up, then `after`. begin() checks once a step.
std::unique_ptr<Algorithm> after_warmup(const AlgorithmSite& site,
                                        std::function<bool(const StepInfo&)> warms_up,
                                        std::unique_ptr<Algorithm> after);
/// All-reduce before step `start`.
std::unique_ptr<Algorithm> after_warmup(const AlgorithmSite& site, std::int64_t start,
                                        std::unique_ptr<Algorithm> after);

}  // namespace starling
