#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <starling/algorithm.h>
#include <starling/operation.h>

namespace mine {

/// Every rank trains by itself. After steps t with period | t+1, x̄ being the mean of all ranks' x,
/// they meet (SlowMo, arXiv 1910.00643):
///     u' = momentum · u + (a - x̄)/lr        a' = a - lr · u'        x' = a'
/// with a(0) = x(0) and u(0) = 0; where lr = 0, a' = x' = x̄. Nothing is in flight between steps.
class SlowAverage final : public starling::Algorithm {
 public:
  static constexpr std::size_t kAnchor = 0, kMomentum = 1;  ///< a and u in Bucket::sync

  SlowAverage(const starling::AlgorithmSite& site, std::int64_t period, double momentum)
      : Algorithm(site),
        updater_(site),
        period_(period),
        momentum_(momentum),
        tickets_(site.buckets.size()) {
    if (ranks() == 1) return;
    site.transport.prepare({});
    for (const starling::Bucket& bucket : site.buckets) {
      sums_.emplace_back(site.backend, bucket.parameters.shape(), bucket.parameters.dtype());
    }
  }

  void begin(const starling::StepInfo& info) override {
    info_ = info;
    if (info.step > 0) return;
    for (const starling::Bucket& bucket : site_.buckets)
      site_.backend.copy(bucket.parameters, bucket.sync[kAnchor].numbers);
  }
  void bucket_ready(int bucket) override {
    if (updater_.in_backward()) update(bucket);
  }
  void backward_done() override {
    const int buckets = static_cast<int>(site_.buckets.size());
    if (!updater_.in_backward()) {
      if (updater_.needs_all_gradients()) updater_.measure_all(info_);
      for (int b = 0; b < buckets; ++b) update(b);
    }
    for (int b = 0; meets() && b < buckets; ++b) meet(b);
    updater_.join();
  }
  void finish() override {}
  void resume(std::int64_t) override {}
  starling::Tensor control() const override { return updater_.overflow_control(); }

 private:
  int ranks() const { return site_.transport.size(); }
  bool meets() const { return (info_.step + 1) % period_ == 0; }

  /// The sum of the parameters starts at once, so that it runs beside the rest of the pass.
  void update(int bucket) {
    const auto b = static_cast<std::size_t>(bucket);
    updater_.update(bucket, info_);
    if (meets() && ranks() > 1) {
      tickets_[b] = site_.transport.start_sum(site_.buckets[b].parameters, sums_[b],
                                              {info_.step, bucket, info_.step});
    }
  }

  void meet(int bucket) {
    const auto b = static_cast<std::size_t>(bucket);
    starling::Bucket& of = site_.buckets[b];
    if (ranks() > 1) wait(tickets_[b], bucket);
    const starling::Tensor &x = of.parameters, &a = of.sync[kAnchor].numbers,
                           &u = of.sync[kMomentum].numbers;
    const starling::Tensor& sum = ranks() > 1 ? sums_[b] : x;
    const double share = 1.0 / ranks(), lr = info_.lr;
    starling::Backend& backend = site_.backend;
    const starling::StreamScope scope(backend, starling::StreamKind::kUpdate);
    if (lr > 0.0) {
      backend.weighted_sum(
          {.in = {u, a, sum}, .weight = {momentum_, 1.0 / lr, -share / lr}, .terms = 3, .out = u});
      backend.weighted_sum({.in = {a, u}, .weight = {1.0, -lr}, .terms = 2, .out = a});
    } else {
      backend.weighted_sum({.in = {sum}, .weight = {share}, .terms = 1, .out = a});
    }
    backend.copy(a, x);
    if (of.low) backend.cast({x, of.low});
  }

  starling::Updater updater_;
  std::int64_t period_;
  double momentum_;
  std::vector<starling::Ticket> tickets_;
  std::vector<starling::Tensor> sums_;  ///< per bucket; empty on a single rank
  starling::StepInfo info_;
};

inline starling::AlgorithmPlan plan_slow_average(starling::ConfigSection& config) {
  using starling::Range;
  const std::int64_t period =
      config.integer("period", 8, Range::closed(1, 1e6), "steps from one average to the next");
  const double momentum = config.number("momentum", 0.5, Range::half_open(0.0, 1.0),
                                        "of the averages' steps; 0: plain averages");
  return {.states = {{"anchor"}, {"slow_momentum"}},
          .steps = {.keys = {{"period", period}}},
          .make = [=](const starling::AlgorithmSite& site) {
            return std::make_unique<SlowAverage>(site, period, momentum);
          }};
}

}  // namespace mine
