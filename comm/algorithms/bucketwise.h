#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/algorithm.h"
#include "comm/algorithms/updater.h"
#include "comm/mixer.h"

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
    if (in_backward()) update(bucket);
    gradient_ready(bucket);
  }
  void backward_done() final {
    if (!in_backward()) {
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
  /// Whether a bucket is updated when bucket_ready() returns.
  virtual bool in_backward() const { return updater_.in_backward(); }

 protected:
  virtual void start_step() {}
  /// Called for gradients that others take part in: one is ready. Where updates come after the
  /// pass, have_gradients() says that all are, before they are measured.
  virtual void gradient_ready(int) {}
  virtual void have_gradients() {}
  virtual void update(int bucket) = 0;
  virtual void complete() {}

  int buckets() const { return static_cast<int>(site_.buckets.size()); }
  int ranks() const { return site_.transport.size(); }
  Bucket& bucket(int b) { return site_.buckets[static_cast<std::size_t>(b)]; }
  /// The plan's k-th state of a bucket.
  Tensor& state(int b, std::size_t k) { return bucket(b).sync[k].numbers; }
  /// Copies the parameters, which a run starts from, to state k before its first use.
  void copy_parameters_to(std::size_t k) {
    for (int b = 0; b < buckets(); ++b) site_.backend.copy(bucket(b).parameters, state(b, k));
  }

  Updater updater_;
  StepInfo info_;
};

/// The run's rule on the rank's own gradient, and nothing else.
class Alone final : public Bucketwise {
 public:
  using Bucketwise::Bucketwise;
  std::int64_t graph_period(std::string& why) const override {
    return repeat_period(nullptr, site_.rule, 1, why);
  }

 protected:
  void update(int bucket) override { updater_.update(bucket, info_); }
};

/// Tensors beside the parameters, one a bucket, that are mixed by the same rounds: as messages.
class SideMixer {
 public:
  SideMixer(const AlgorithmSite& site, const Topology* topology, std::vector<Tensor> numbers,
            bool overlap);
  Mixer& mixer() { return *mixer_; }

 private:
  std::vector<Bucket> buckets_;
  std::unique_ptr<Mixer> mixer_;
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
