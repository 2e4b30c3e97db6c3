#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/capture.h"
#include "comm/transport.h"

namespace starling {

/// Forwards every call to another transport. Base class of transports that change or observe some
/// calls.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(Transport& inner) : ForwardingTransport(inner, inner.world()) {}
  explicit ForwardingTransport(std::unique_ptr<Transport> inner) : ForwardingTransport(*inner) {
    owned_ = std::move(inner);
  }

  std::string name() const override { return inner_.name(); }
  Ticket start_exchange(const Exchange& exchange, const Tensor& send,
                        const std::vector<Tensor>& receive, const ExchangeLabel& label,
                        std::shared_ptr<Flow> flow) override {
    return inner_.start_exchange(exchange, send, receive, label, std::move(flow));
  }
  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label,
                   std::shared_ptr<Flow> flow) override {
    return inner_.start_sum(in, out, label, std::move(flow));
  }
  bool done(Ticket ticket) override { return inner_.done(ticket); }
  void wait(Ticket ticket) override { inner_.wait(ticket); }
  void check() override { inner_.check(); }
  void ask(int rank) override { inner_.ask(rank); }
  void prepare(const std::vector<std::vector<int>>& groups) override { inner_.prepare(groups); }
  std::string why_not_captured() const override { return inner_.why_not_captured(); }
  std::unique_ptr<CapturePart> join_capture(std::int64_t step) override {
    return inner_.join_capture(step);
  }

 protected:
  ForwardingTransport(Transport& inner, World& world) : Transport(world), inner_(inner) {}
  ForwardingTransport(std::unique_ptr<Transport> inner, World& world)
      : ForwardingTransport(*inner, world) {
    owned_ = std::move(inner);
  }
  Transport& inner() const { return inner_; }

 private:
  Transport& inner_;
  std::unique_ptr<Transport> owned_;
};

}  // namespace starling
