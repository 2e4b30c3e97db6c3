#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/algorithms/builtin.h"
#include "comm/algorithms/exchange_schedule.h"
#include "comm/algorithms/updater.h"
#include "core/error.h"

namespace starling {
namespace {

/// Step t mixes what round t - 1 brought (x(t) of the neighbours), updates, and starts round t; per bucket. So an exchange has a whole
/// forward and backward pass to arrive.
class Gossip final : public Algorithm {
 public:
  explicit Gossip(const AlgorithmSite& site)
      : Algorithm(site),
        updater_(site),
        schedule_(site.transport.size() > 1 ? site.topology : nullptr, site.transport.rank()),
        incoming_(site.buckets.size()) {
    require(site.topology || site.transport.size() == 1, "gossip", "gossip over {} ranks needs a topology", site.transport.size());
    require(!site.topology || site.topology->ranks() == site.transport.size(), "gossip", "a topology of {} ranks in a world of {}",
            site.topology ? site.topology->ranks() : 0, site.transport.size());
    for (std::size_t b = 0; b < incoming_.size(); ++b) grow(b, schedule_.most_received());
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
      incoming_[b].round = -1;
      if (step >= 1) start(static_cast<int>(b), step - 1);
    }
  }

  Tensor control() const override { return updater_.overflow_control(); }

 private:
  struct Incoming {
    std::int64_t round = -1;  ///< the round that the buffers hold or will hold; -1: none yet
    bool in_flight = false;
    Ticket ticket = 0;
    std::vector<Tensor> buffers;   ///< allocated once
    std::vector<Tensor> received;  ///< those that this round uses
  };

  void grow(std::size_t bucket, std::size_t count) {
    auto& buffers = incoming_[bucket].buffers;
    const Tensor& like = site_.buckets[bucket].parameters;
    while (buffers.size() < count) buffers.emplace_back(site_.backend, like.shape(), like.dtype());
  }

  void start(int bucket, std::int64_t round) {
    const auto b = static_cast<std::size_t>(bucket);
    Incoming& in = incoming_[b];
    const Exchange& exchange = schedule_.round(round);
    in.round = round;
    in.received.clear();
    if (exchange.kind == Exchange::Kind::kNone) return;
    grow(b, exchange.received());
    in.received.assign(in.buffers.begin(), in.buffers.begin() + static_cast<std::ptrdiff_t>(exchange.received()));
    in.ticket = site_.transport.start_exchange(exchange, site_.buckets[b].parameters, in.received, {info_.step, bucket, round});
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
    if (t == 0) {
      updater_.update(bucket, info_, 1.0, {}, {});
    } else {
      require(in.round == t - 1, "gossip", "step {} of bucket {} would mix round {}; resume({}) was not called", t, bucket, in.round, t);
      settle(bucket);
      const Exchange& exchange = schedule_.round(t - 1);
      if (exchange.kind == Exchange::Kind::kNone) {
        updater_.update(bucket, info_, 1.0, {}, {});
      } else {
        updater_.update(bucket, info_, exchange.self_weight, in.received, exchange.weights);
      }
    }
    start(bucket, t);
  }

  Updater updater_;
  ExchangeSchedule schedule_;
  std::vector<Incoming> incoming_;  ///< per bucket
  StepInfo info_;
};

}  // namespace

std::unique_ptr<Algorithm> make_gossip(const AlgorithmSite& site) { return std::make_unique<Gossip>(site); }

}  // namespace starling
