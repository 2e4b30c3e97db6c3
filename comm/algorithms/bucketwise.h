#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/algorithm.h"
#include "comm/algorithms/updater.h"

namespace starling {

/// The order of a step that most algorithms share: a bucket's update as soon as its gradient may be
/// used, then what the whole step ends with. An exchange that is used in the step in which it
/// starts ends in complete(): it has the rest of the backward pass to arrive.
class Bucketwise : public Algorithm {
 public:
  explicit Bucketwise(const AlgorithmSite& site, double gradient_share = 1.0)
      : Algorithm(site), updater_(site, gradient_share) {}

  void begin(const StepInfo& info) final {
    info_ = info;
    start_step();
  }
  void bucket_ready(int bucket) final {
    if (updates_at_once()) update(bucket);
    gradient_ready(bucket);
  }
  void backward_done() final {
    if (!updates_at_once()) {
      have_gradients();
      if (updater_.needs_all_gradients()) updater_.measure_all(info_);
      for (int b = 0; b < buckets(); ++b) update(b);
    }
    complete();
    updater_.join();
  }
  void finish() override {}              // nothing is in flight between steps
  void resume(std::int64_t) override {}  // and all that the next needs is in the buckets
  Tensor control() const override { return updater_.overflow_control(); }
  bool is_through_with(int) const final { return updates_at_once(); }
  bool updates_at_once() const override { return updater_.in_backward(); }

 protected:
  virtual void start_step() {}
  /// Called for gradients that others take part in: one is ready. Where updates come after the
  /// pass, have_gradients() says that all are, before they are measured.
  virtual void gradient_ready(int) {}
  virtual void have_gradients() {}
  virtual void update(int bucket) = 0;
  virtual void complete() {}

  Updater updater_;
  StepInfo info_;
};

/// The run's rule on the rank's own gradient, and nothing else.
class Alone final : public Bucketwise {
 public:
  using Bucketwise::Bucketwise;

 protected:
  void update(int bucket) override { updater_.update(bucket, info_); }
};

/// Means over all ranks of one tensor a bucket, summed in rank order.
class Means {
 public:
  explicit Means(const AlgorithmSite& site);
  /// Collective, in the order of the lane. The mean of `numbers`, which may not change until
  /// wait().
  void start(int bucket, const Tensor& numbers, const StepInfo& info, Lane lane = Lane::kSteps);
  /// The ticket to wait for; 0 where there is but one rank.
  Ticket ticket(int bucket) const { return tickets_[static_cast<std::size_t>(bucket)]; }
  /// Takes the sum after the wait; share() makes it the mean. Ends what start() began.
  Tensor take(int bucket);
  double share() const { return share_; }

 private:
  Transport& transport_;
  double share_;
  std::vector<Tensor> sums_, numbers_;
  std::vector<std::int64_t> most_;  ///< elements of a state
  std::vector<Ticket> tickets_;
};

}  // namespace starling
