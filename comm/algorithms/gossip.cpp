#include <cstddef>
#include <cstdint>
#include <memory>
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
/// forward and backward pass to arrive.
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
      return;
    }
    site_.transport.share(site_.backend, site_.buckets);
    schedule_ = ExchangeSchedule(topology, site.transport.rank(), site.transport.shares_with_all());
    const std::size_t most = schedule_.most_over_period([&](const Exchange& exchange) { return site_.transport.buffers_for(exchange); });
    for (std::size_t b = 0; b < incoming_.size(); ++b) grow(b, most);
  }

  ~Gossip() override = default;  // the transport outlives this and waits for what is in flight

  void begin(const StepInfo& info) override { info_ = info; }

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
  }

  void resume(std::int64_t step) override {
    finish();
    for (std::size_t b = 0; b < incoming_.size(); ++b) {
      const int bucket = static_cast<int>(b);
      incoming_[b].round = -1;
      incoming_[b].received.clear();
      site_.transport.release({step, bucket, step - 1});
      if (step >= 1) start(bucket, step - 1, step - 1);
    }
  }

  Tensor control() const override { return updater_.overflow_control(); }

 private:
  struct Incoming {
    std::int64_t round = -1;  ///< the round that the buffers hold or will hold; -1: none yet
    bool in_flight = false;
    Ticket ticket = 0;
    std::vector<Tensor> buffers;   ///< allocated once, for what cannot be read where it lies
    std::vector<Tensor> received;  ///< what this round brings: some of the buffers, or other ranks' own parameters
  };

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
    Mix mix;
    if (t > 0) {
      require(in.round == t - 1, "gossip", "step {} of bucket {} would mix round {}; resume({}) was not called", t, bucket, in.round, t);
      settle(bucket);
      const Exchange& exchange = schedule_.round(t - 1);
      if (compressed_) {
        Bf16Exchange::Terms terms = compressed_->decode(exchange, label);
        mix = {terms.self_weight, std::move(terms.received), std::move(terms.weights), false};
      } else if (exchange.kind != Exchange::Kind::kNone) {
        const bool several = in.received.size() > 1;
        mix = {exchange.self_weight, std::move(in.received), exchange.weights, exchange.kind == Exchange::Kind::kGroupSum && several};
      }
    }
    wait_until_writable(label);
    updater_.update(bucket, info_, mix);
    site_.transport.release(label);
    start(bucket, t, t);
  }

  Updater updater_;
  ExchangeSchedule schedule_;
  std::unique_ptr<Bf16Exchange> compressed_;  ///< null: parameters travel as they are
  std::vector<Incoming> incoming_;            ///< per bucket
  StepInfo info_;
};

}  // namespace

std::unique_ptr<Algorithm> make_gossip(const AlgorithmSite& site) { return std::make_unique<Gossip>(site); }

}  // namespace starling
