#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "core/error.h"

namespace starling {
namespace {

class SingleWorld final : public World {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  void barrier() override {}
  void broadcast(void*, std::size_t, int root) override {
    require(root == 0, "transport", "a single rank cannot hear rank {}", root);
  }
  std::vector<std::string> all_gather(const std::string& mine) override { return {mine}; }
  void sum(double*, std::size_t) override {}
  void max(double*, std::size_t) override {}
};

/// The transport of a program that runs alone: sums are copies, exchanges do not occur.
class SingleTransport final : public Transport {
 public:
  SingleTransport() : Transport(world_) {}
  std::string name() const override { return "single"; }

  Ticket start_exchange(const Exchange& exchange, const Tensor& send,
                        const std::vector<Tensor>& receive, const ExchangeLabel&,
                        std::shared_ptr<Flow> flow) override {
    refuse(flow);
    if (exchange.kind == Exchange::Kind::kGroupSum) {
      require(exchange.group == std::vector<int>{0} && receive.size() == 1, "transport",
              "a single rank cannot exchange with others");
      send.backend().copy(send, receive[0]);
    } else {
      require(exchange.send_to.empty() && exchange.receive_from.empty(), "transport",
              "a single rank cannot exchange with others");
    }
    return ++tickets_;
  }
  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel&,
                   std::shared_ptr<Flow> flow) override {
    refuse(flow);
    if (in.raw() != out.raw()) in.backend().copy(in, out);
    return ++tickets_;
  }
  bool done(Ticket ticket) override { return ticket <= tickets_; }
  void wait(Ticket ticket) override {
    require(ticket <= tickets_, "transport", "ticket {} was never given", ticket);
  }

 private:
  static void refuse(const std::shared_ptr<Flow>& flow) {
    require(!flow, "transport", "a single rank copies immediately, and does not support a Flow");
  }
  SingleWorld world_;
  Ticket tickets_ = 0;
};

}  // namespace

std::unique_ptr<Transport> make_single_transport() { return std::make_unique<SingleTransport>(); }

}  // namespace starling
