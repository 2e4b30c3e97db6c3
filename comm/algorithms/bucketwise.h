#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/algorithm.h"
#include "comm/algorithms/updater.h"

namespace starling {

/// Base class with the order of a step that most algorithms share: each bucket is updated as soon
/// as its gradient can be used, then the step is completed. An exchange used in the step in which
/// it starts is waited for in complete(), so that it overlaps with the rest of the backward pass.
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
  void resume(std::int64_t) override {}  // the buckets have all that the next step needs
  Tensor control() const override { return updater_.overflow_control(); }
  bool gradients_consumed(int) const final { return updates_at_once(); }
  bool updates_at_once() const override { return updater_.in_backward(); }

 protected:
  virtual void start_step() {}
  /// A bucket's gradient is ready: for algorithms that exchange gradients. If updates come after
  /// the pass, have_gradients() is called when all are, before they are measured.
  virtual void gradient_ready(int) {}
  virtual void have_gradients() {}
  virtual void update(int bucket) = 0;
  virtual void complete() {}

  Updater updater_;
  StepInfo info_;
};

/// Updates with the rank's own gradient, without communication.
class Alone final : public Bucketwise {
 public:
  using Bucketwise::Bucketwise;
  bool parameters_final(int) const override { return updates_at_once(); }

 protected:
  void update(int bucket) override { updater_.update(bucket, info_); }
};

/// Computes the mean over all ranks of one tensor per bucket, summed in rank order.
class Means {
 public:
  explicit Means(const AlgorithmSite& site);
  /// Collective, in the order of the lane. `numbers` must not change until the wait.
  void start(int bucket, const Tensor& numbers, const StepInfo& info, Lane lane = Lane::kSteps);
  /// The ticket to wait for; 0 with a single rank.
  Ticket ticket(int bucket) const { return tickets_[static_cast<std::size_t>(bucket)]; }
  /// After the wait: the sum, which share() scales to the mean.
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
