#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/algorithms/builtin.h"
#include "comm/algorithms/updater.h"
#include "comm/low_gradients.h"
#include "comm/planner/predict.h"

namespace starling {
namespace {

/// The mean gradient of all ranks. Each bucket's sum starts as soon as its last gradient is ready, in place; buckets whose sum has arrived
/// are updated in order, without ever blocking the backward pass. Where only streams wait, an update is issued behind its sum at once.
class AllReduce final : public Algorithm {
 public:
  explicit AllReduce(const AlgorithmSite& site)
      : Algorithm(site), updater_(site, 1.0 / site.transport.size()), tickets_(site.buckets.size()) {
    if (site.transport.size() > 1) site.transport.prepare({});  // sums over all ranks alone: now the transport knows what goes which way
    streams_wait_ = site.backend.device() == DeviceType::kCuda && site.transport.why_not_captured().empty();
  }

  void begin(const StepInfo& info) override {
    info_ = info;
    started_ = updated_ = 0;
    std::fill(tickets_.begin(), tickets_.end(), Ticket{0});
  }

  void bucket_ready(int bucket) override {
    const auto b = static_cast<std::size_t>(bucket);
    if (site_.transport.size() > 1) {
      widen_gradients(site_.backend, site_.buckets[b]);  // what ranks send each other is fp32
      const Tensor& gradients = site_.buckets[b].gradients;
      tickets_[b] = site_.transport.start_sum(gradients, gradients, {info_.step, bucket, info_.step});
      if (!site_.overlap || streams_wait_) wait_once(b);
    }
    started_ = b + 1;
    if (!updater_.in_backward()) return;
    while (updated_ < started_ && arrived(updated_)) update_next();
  }

  void backward_done() override {
    if (updater_.needs_all_gradients()) {
      for (std::size_t b = 0; b < started_; ++b) wait_once(b);
      updater_.join();              // the update stream has waited for the sums
      updater_.measure_all(info_);  // an overflow on any rank is in the sums of all
    }
    while (updated_ < started_) update_next();
    updater_.join();
  }

  void finish() override {}
  void resume(std::int64_t) override {}
  Tensor control() const override { return updater_.overflow_control(); }

  std::int64_t graph_period(std::string& why) const override {
    if (site_.transport.size() > 1) why = site_.transport.why_not_captured();
    return why.empty() ? repeat_period(nullptr, site_.rule, 1, why) : 0;
  }

 private:
  bool arrived(std::size_t bucket) { return !tickets_[bucket] || site_.transport.done(tickets_[bucket]); }

  void wait_once(std::size_t bucket) {
    if (!tickets_[bucket]) return;
    wait(tickets_[bucket], static_cast<int>(bucket));
    tickets_[bucket] = 0;
  }

  void update_next() {
    wait_once(updated_);
    updater_.update(static_cast<int>(updated_), info_);
    ++updated_;
  }

  Updater updater_;
  std::vector<Ticket> tickets_;  ///< per bucket; 0: nothing in flight
  bool streams_wait_ = false;    ///< Transport::wait() costs the host nothing
  std::size_t started_ = 0, updated_ = 0;
  StepInfo info_;
};

}  // namespace

AlgorithmPlan plan_all_reduce(ConfigSection&) {
  return {.title = "all-reduce",
          .period = 1,
          .predict = [](const std::vector<RoundCost>&, const NetworkModel& network, const StepModel& step,
                        double bucket_bytes) { return predict_all_reduce(network, step, bucket_bytes); },
          .make = [](const AlgorithmSite& site) { return std::make_unique<AllReduce>(site); }};
}

}  // namespace starling
