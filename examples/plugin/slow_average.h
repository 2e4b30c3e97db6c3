#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <starling/algorithm.h>
#include <starling/operation.h>

namespace mine {

/// Ranks train independently. After steps t with period | t+1, with x̄ the mean of all ranks' x
/// (SlowMo, arXiv 1910.00643):
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
    sums_ = like_parameters();
  }

  void begin(const starling::StepInfo& info) override {
    info_ = info;
    if (info.step == 0) copy_parameters_to(kAnchor);
  }
  void bucket_ready(int bucket) override {
    if (updater_.in_backward()) update(bucket);
  }
  void backward_done() override {
    if (!updater_.in_backward()) {
      if (updater_.needs_all_gradients()) updater_.measure_all(info_);
      for (int b = 0; b < buckets(); ++b) update(b);
    }
    for (int b = 0; meets() && b < buckets(); ++b) meet(b);
    updater_.join();
  }
  void finish() override {}
  void resume(std::int64_t) override {}
  starling::Tensor control() const override { return updater_.overflow_control(); }

 private:
  bool meets() const { return (info_.step + 1) % period_ == 0; }

  /// The sum of the parameters starts at once, so that it overlaps with the rest of the pass.
  void update(int b) {
    updater_.update(b, info_);
    if (!meets() || ranks() == 1) return;
    const auto at = static_cast<std::size_t>(b);
    tickets_[at] =
        site_.transport.start_sum(bucket(b).parameters, sums_[at], {info_.step, b, info_.step});
  }

  void meet(int b) {
    const auto at = static_cast<std::size_t>(b);
    settle(tickets_[at], b);
    const starling::Tensor &x = bucket(b).parameters, &a = state(b, kAnchor),
                           &u = state(b, kMomentum);
    const starling::Tensor& sum = ranks() > 1 ? sums_[at] : x;
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
    if (bucket(b).low) backend.cast({x, bucket(b).low});
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
