#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <starling/transport.h>

namespace mine {

/// Simulates a slower link on top of another transport: a rank's buckets are sent one after the
/// other, with a given rate and latency. Results are unchanged; waits take longer. In sums over m
/// ranks each rank sends 2 (m - 1)/m of the buffer, as in a ring.
class Throttled final : public starling::ForwardingTransport {
 public:
  Throttled(std::unique_ptr<starling::Transport> inner, double bits_per_second,
            double latency_seconds)
      : ForwardingTransport(std::move(inner)),
        seconds_per_byte_(8.0 / bits_per_second),
        latency_(latency_seconds) {}

  std::string name() const override { return "throttled " + ForwardingTransport::name(); }

  starling::Ticket start_exchange(const starling::Exchange& exchange, const starling::Tensor& send,
                                  const std::vector<starling::Tensor>& receive,
                                  const starling::ExchangeLabel& label,
                                  std::shared_ptr<starling::Flow> flow) override {
    const double copies = exchange.kind == starling::Exchange::Kind::kNeighbours
                              ? static_cast<double>(exchange.send_to.size())
                              : of_a_sum(exchange.group.size());
    return on_the_way(
        ForwardingTransport::start_exchange(exchange, send, receive, label, std::move(flow)),
        copies * bytes_of(send));
  }
  starling::Ticket start_sum(const starling::Tensor& in, const starling::Tensor& out,
                             const starling::ExchangeLabel& label,
                             std::shared_ptr<starling::Flow> flow) override {
    return on_the_way(ForwardingTransport::start_sum(in, out, label, std::move(flow)),
                      of_a_sum(static_cast<std::size_t>(size())) * bytes_of(in));
  }
  bool done(starling::Ticket ticket) override {
    return ForwardingTransport::done(ticket) && Clock::now() >= arrivals_.at(ticket);
  }
  void wait(starling::Ticket ticket) override {
    ForwardingTransport::wait(ticket);
    const auto arrival = arrivals_.find(ticket);
    starling::require(arrival != arrivals_.end(), "transport", "ticket {} is not under way",
                      ticket);
    std::this_thread::sleep_until(arrival->second);
    arrivals_.erase(arrival);
  }

 private:
  using Clock = std::chrono::steady_clock;

  static double of_a_sum(std::size_t members) {
    return members < 2 ? 0.0
                       : 2.0 * static_cast<double>(members - 1) / static_cast<double>(members);
  }
  static double bytes_of(const starling::Tensor& tensor) {
    return static_cast<double>(tensor.bytes());
  }
  static Clock::duration duration(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  starling::Ticket on_the_way(starling::Ticket ticket, double bytes) {
    link_free_ = std::max(link_free_, Clock::now()) + duration(bytes * seconds_per_byte_);
    arrivals_[ticket] = link_free_ + duration(latency_);
    return ticket;
  }

  double seconds_per_byte_, latency_;
  Clock::time_point link_free_{};  ///< when what was sent so far has left
  std::unordered_map<starling::Ticket, Clock::time_point> arrivals_;
};

inline starling::TransportPlan plan_throttled(starling::ConfigSection& config) {
  using starling::Range;
  const double mbit = config.number("mbit_per_s", 1000.0, Range::positive(),
                                    "of a rank's link, in 10^6 bits a second");
  const double latency = config.number("latency_us", 0.0, Range::closed(0.0, 1e7),
                                       "microseconds that a message takes besides");
  return {
      .between_gpus = false,
      .make = [=](std::unique_ptr<starling::Transport> messages, const starling::TransportSite&) {
        return std::make_unique<Throttled>(std::move(messages), 1e6 * mbit, 1e-6 * latency);
      }};
}

}  // namespace mine
