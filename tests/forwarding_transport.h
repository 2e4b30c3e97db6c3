#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/transport.h"

namespace starling::tests {

/// Hands every call on to another transport. Tests that look at calls on their way, or delay them, derive from it.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(Transport& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  int local_rank() const override { return inner_.local_rank(); }
  int local_size() const override { return inner_.local_size(); }
  std::string name() const override { return inner_.name(); }
  Ticket start_exchange(const Exchange& exchange, const Tensor& send, const std::vector<Tensor>& receive, const ExchangeLabel& label,
                        std::shared_ptr<Flow> flow) override {
    return inner_.start_exchange(exchange, send, receive, label, std::move(flow));
  }
  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label, std::shared_ptr<Flow> flow) override {
    return inner_.start_sum(in, out, label, std::move(flow));
  }
  bool done(Ticket ticket) override { return inner_.done(ticket); }
  void wait(Ticket ticket) override { inner_.wait(ticket); }
  void prepare(const std::vector<std::vector<int>>& groups) override { inner_.prepare(groups); }
  std::string why_not_captured() const override { return inner_.why_not_captured(); }
  void launched(std::int64_t step) override { inner_.launched(step); }
  void barrier() override { inner_.barrier(); }
  void broadcast(void* data, std::size_t bytes, int root) override { inner_.broadcast(data, bytes, root); }
  std::vector<std::string> all_gather(const std::string& mine) override { return inner_.all_gather(mine); }
  void sum(double* values, std::size_t count) override { inner_.sum(values, count); }
  void max(double* values, std::size_t count) override { inner_.max(values, count); }

 private:
  Transport& inner_;
};

}  // namespace starling::tests
