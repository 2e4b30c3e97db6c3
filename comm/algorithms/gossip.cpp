#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/algorithms/builtin.h"
#include "comm/algorithms/updater.h"
#include "comm/mixer.h"
#include "comm/planner/predict.h"

namespace starling {
namespace {

/// Step t mixes what round t - 1 brought (x(t) of the neighbours), updates, and starts round t; per bucket. So an exchange has a whole
/// forward and backward pass to arrive. With start_at_begin step t starts round t - 1 of all buckets at its beginning: the same numbers,
/// and nothing is in flight between steps.
class Gossip final : public Algorithm {
 public:
  explicit Gossip(const AlgorithmSite& site) : Algorithm(site), updater_(site) {
    site_.mixer.open({site_.buckets, site_.topology, site_.overlap, site_.start_at_begin});
  }

  void begin(const StepInfo& info) override {
    info_ = info;
    site_.mixer.begin(info.step);
  }

  void bucket_ready(int bucket) override {
    if (updater_.in_backward()) mix_and_update(bucket);
  }

  void backward_done() override {
    if (!updater_.in_backward()) {
      if (updater_.needs_all_gradients()) updater_.measure_all(info_);
      for (std::size_t b = 0; b < site_.buckets.size(); ++b) mix_and_update(static_cast<int>(b));
    }
    updater_.join();
  }

  void finish() override {
    site_.mixer.settle();
    updater_.join();  // the update stream has waited, and what follows reads on the compute stream
  }

  void resume(std::int64_t step) override {
    finish();
    site_.mixer.resume(step);
  }

  Tensor control() const override { return updater_.overflow_control(); }

  std::int64_t graph_period(std::string& why) const override {
    const bool mixes = site_.transport.size() > 1;
    if (mixes) why = site_.mixer.why_not_captured();
    if (mixes && why.empty() && !site_.start_at_begin) why = "exchanges are under way between steps";
    if (!why.empty()) return 0;
    const bool in_turn = !site_.buckets.empty() && site_.buckets.front().spare;  // two buffers of the parameters
    return repeat_period(mixes ? site_.topology : nullptr, site_.rule, in_turn ? 2 : 1, why);
  }

 private:
  void mix_and_update(int bucket) {
    const Mix& mix = site_.mixer.receive(bucket, info_.step);
    updater_.update(bucket, info_, mix);
    site_.mixer.publish(bucket, info_.step);
  }

  Updater updater_;
  StepInfo info_;
};

}  // namespace

AlgorithmPlan plan_gossip(ConfigSection&) {
  return {.topology = TopologyKind::kDoublyStochastic,
          .encoded_exchange = true,
          .period = 1,
          .predict = [](const std::vector<RoundCost>& rounds, const NetworkModel& network, const StepModel& step,
                        double bucket_bytes) { return predict_gossip(rounds, network, step, bucket_bytes); },
          .make = [](const AlgorithmSite& site) { return std::make_unique<Gossip>(site); }};
}

}  // namespace starling
