#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/algorithms/builtin.h"
#include "comm/algorithms/exchange_schedule.h"
#include "comm/algorithms/updater.h"
#include "comm/bf16_exchange.h"
#include "core/error.h"

namespace starling {
namespace {

/// Step t mixes what round t - 1 brought (x(t) of the neighbours), updates, and starts round t; per bucket. So an exchange has a whole
/// forward and backward pass to arrive. With start_at_begin step t starts round t - 1 of all buckets at its beginning: the same numbers,
/// and nothing is in flight between steps.
class Gossip final : public Algorithm {
 public:
  explicit Gossip(const AlgorithmSite& site)
      : Algorithm(site), updater_(site), schedule_(nullptr, site.transport.rank(), false), incoming_(site.buckets.size()) {
    require(site.topology || site.transport.size() == 1, "gossip", "gossip over {} ranks needs a topology", site.transport.size());
    require(!site.topology || site.topology->ranks() == site.transport.size(), "gossip", "a topology of {} ranks in a world of {}",
            site.topology ? site.topology->ranks() : 0, site.transport.size());
    const Topology* topology = site.transport.size() > 1 ? site.topology : nullptr;
    if (site.bf16_exchange) {  // what was sent and what was made of it must not depend on where a neighbour is: nothing is shared
      compressed_ = std::make_unique<Bf16Exchange>(site_.backend, site_.transport);
      schedule_ = ExchangeSchedule(topology, site.transport.rank(), false);
      if (topology) site_.transport.prepare(summed_groups(*topology, false, true));  // sums of bf16 numbers go by messages
      return;
    }
    site_.transport.share(site_.backend, site_.buckets);
    schedule_ = ExchangeSchedule(topology, site.transport.rank(), site.transport.shares_with_all());
    if (topology) site_.transport.prepare(summed_groups(*topology, site.transport.shares_with_all()));
    const std::size_t most = schedule_.most_over_period([&](const Exchange& exchange) { return site_.transport.buffers_for(exchange); });
    for (std::size_t b = 0; b < incoming_.size(); ++b) grow(b, most);
  }

  ~Gossip() override = default;  // the transport outlives this and waits for what is in flight

  void begin(const StepInfo& info) override {
    info_ = info;
    updated_ = 0;
    if (!site_.start_at_begin || info.step == 0) return;
    for (std::size_t b = 0; b < incoming_.size(); ++b) start(static_cast<int>(b), info.step, info.step - 1);
  }

  void bucket_ready(int bucket) override {
    if (updater_.in_backward()) mix_and_update(bucket);
  }

  void backward_done() override {
    if (!updater_.in_backward()) {
      if (updater_.needs_all_gradients()) updater_.measure_all(info_);
      for (std::size_t b = 0; b < incoming_.size(); ++b) mix_and_update(static_cast<int>(b));
    }
    updater_.join();
  }

  void finish() override {
    for (std::size_t b = 0; b < incoming_.size(); ++b) settle(static_cast<int>(b));
    updater_.join();  // the update stream has waited, and what follows reads on the compute stream
  }

  void resume(std::int64_t step) override {
    finish();
    for (std::size_t b = 0; b < incoming_.size(); ++b) {
      const int bucket = static_cast<int>(b);
      incoming_[b].round = -1;
      incoming_[b].received.clear();
      site_.transport.release({step, bucket, step - 1});
      if (step >= 1 && !site_.start_at_begin) start(bucket, step - 1, step - 1);
    }
  }

  Tensor control() const override { return updater_.overflow_control(); }

  std::int64_t graph_period(std::string& why) const override {
    const bool mixes = site_.transport.size() > 1;
    if (mixes) why = site_.transport.why_not_captured();
    if (mixes && why.empty() && !site_.start_at_begin) why = "exchanges are under way between steps";
    if (!why.empty()) return 0;
    return repeat_period(mixes ? site_.topology : nullptr, site_.rule, buffers(), why);
  }

  void replayed(const StepInfo& info) override {
    info_ = info;
    for (Bucket& bucket : site_.buckets) bucket.flip();
  }

  void abandoned() override {
    finish();  // lets go of the tickets: there is nothing to wait for
    for (Incoming& in : incoming_) in.received.clear();
    while (updated_ > 0) site_.buckets[--updated_].flip();
  }

 private:
  struct Incoming {
    std::int64_t round = -1;  ///< the round that the buffers hold or will hold; -1: none yet
    bool in_flight = false;
    Ticket ticket = 0;
    std::vector<Tensor> buffers;   ///< allocated once, for what cannot be read where it lies
    std::vector<Tensor> received;  ///< what this round brings: some of the buffers, or other ranks' own parameters
  };

  /// Of a bucket's parameters, used in turn.
  int buffers() const { return !site_.buckets.empty() && site_.buckets.front().spare ? 2 : 1; }

  void grow(std::size_t bucket, std::size_t count) {
    auto& buffers = incoming_[bucket].buffers;
    const Tensor& like = site_.buckets[bucket].parameters;
    while (buffers.size() < count) buffers.emplace_back(site_.backend, like.shape(), like.dtype());
  }

  void start(int bucket, std::int64_t step, std::int64_t round) {
    const auto b = static_cast<std::size_t>(bucket);
    Incoming& in = incoming_[b];
    const Exchange& exchange = schedule_.round(round);
    in.round = round;
    const ExchangeLabel label{step, bucket, round};
    if (compressed_) {
      in.ticket = compressed_->start(exchange, site_.buckets[b], label);
    } else {
      grow(b, site_.transport.buffers_for(exchange));
      in.ticket = site_.transport.start_mix(exchange, site_.buckets[b], in.buffers, in.received, label);
    }
    if (in.ticket == 0) return;
    in.in_flight = true;
    if (!site_.overlap) settle(bucket);
  }

  /// Waits for the bucket's exchange, own send included; what it brought stays until it is mixed.
  void settle(int bucket) {
    Incoming& in = incoming_[static_cast<std::size_t>(bucket)];
    if (!in.in_flight) return;
    wait(in.ticket, bucket);
    in.in_flight = false;
  }

  void mix_and_update(int bucket) {
    Incoming& in = incoming_[static_cast<std::size_t>(bucket)];
    const std::int64_t t = info_.step;
    const ExchangeLabel label{t, bucket, t - 1};
    Mix& mix = mix_;
    mix.self_weight = 1.0;
    mix.received.clear();
    mix.weights.clear();
    mix.sum = false;
    if (t > 0) {
      require(in.round == t - 1, "gossip", "step {} of bucket {} would mix round {}; resume({}) was not called", t, bucket, in.round, t);
      settle(bucket);
      const Exchange& exchange = schedule_.round(t - 1);
      if (compressed_) {
        Bf16Exchange::Terms terms = compressed_->decode(exchange, label);
        mix = {terms.self_weight, std::move(terms.received), std::move(terms.weights), false};
      } else if (exchange.kind != Exchange::Kind::kNone) {
        const bool several = in.received.size() > 1;
        mix.self_weight = exchange.self_weight;
        mix.received.swap(in.received);
        mix.weights = exchange.weights;
        mix.sum = exchange.kind == Exchange::Kind::kGroupSum && several;
      }
    }
    wait_until_writable(label);
    updater_.update(bucket, info_, mix);
    ++updated_;
    {
      const StreamScope scope(site_.backend, StreamKind::kUpdate);
      site_.transport.release(label);
    }
    if (!site_.start_at_begin) start(bucket, t, t);
    mix.received.clear();
  }

  Updater updater_;
  ExchangeSchedule schedule_;
  std::unique_ptr<Bf16Exchange> compressed_;  ///< null: parameters travel as they are
  std::vector<Incoming> incoming_;            ///< per bucket
  Mix mix_;                                   ///< of the bucket being mixed, empty between calls; kept for its vectors' memory
  StepInfo info_;
  std::size_t updated_ = 0;  ///< buckets of this step
};

}  // namespace

std::unique_ptr<Algorithm> make_gossip(const AlgorithmSite& site) { return std::make_unique<Gossip>(site); }

}  // namespace starling
