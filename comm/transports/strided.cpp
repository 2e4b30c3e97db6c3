#include "comm/transports/strided.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "comm/capture.h"
#include "comm/transports/forwarding.h"
#include "core/operations/pointwise.h"

namespace starling {
namespace {

class StridedWorld final : public World {
 public:
  StridedWorld(World& all, int stride) : all_(all), stride_(stride) {}
  int rank() const override { return all_.rank() / stride_; }
  int size() const override { return all_.size() / stride_; }
  int local_rank() const override { return all_.local_rank() / stride_; }
  int local_size() const override { return std::max(1, all_.local_size() / stride_); }
  void barrier() override { all_.barrier(); }
  void broadcast(void* data, std::size_t bytes, int root) override {
    const std::string mine(rank() == root ? static_cast<const char*>(data) : nullptr,
                           rank() == root ? bytes : 0);
    std::memcpy(data, all_gather(mine)[static_cast<std::size_t>(root)].data(), bytes);
  }
  std::vector<std::string> all_gather(const std::string& mine) override {
    const std::vector<std::string> of_all = all_.all_gather(mine);
    std::vector<std::string> result;
    for (int i = 0; i < size(); ++i)
      result.push_back(of_all[static_cast<std::size_t>(rank_in_all(i))]);
    return result;
  }
  void sum(double* values, std::size_t count) override {
    combine(values, count, [](double a, double b) { return a + b; });
  }
  void max(double* values, std::size_t count) override {
    combine(values, count, [](double a, double b) { return std::max(a, b); });
  }
  int rank_in_all(int rank) const { return rank * stride_ + all_.rank() % stride_; }
  int stride() const { return stride_; }

 private:
  template <class Combine>
  void combine(double* values, std::size_t count, const Combine& with) {
    const std::size_t bytes = count * sizeof(double);
    const std::vector<std::string> of_ranks =
        all_gather(std::string(reinterpret_cast<const char*>(values), bytes));
    std::memcpy(values, of_ranks[0].data(), bytes);
    for (std::size_t r = 1; r < of_ranks.size(); ++r) {
      std::vector<double> others(count);
      std::memcpy(others.data(), of_ranks[r].data(), bytes);
      std::transform(values, values + count, others.begin(), values, with);
    }
  }
  World& all_;
  int stride_;
};

class StridedTransport final : public ForwardingTransport {
 public:
  StridedTransport(Transport& all, std::unique_ptr<StridedWorld> world)
      : ForwardingTransport(all, *world), ranks_(std::move(world)) {}

  Ticket start_exchange(const Exchange& exchange, const Tensor& send,
                        const std::vector<Tensor>& receive, const ExchangeLabel& label,
                        std::shared_ptr<Flow> flow) override {
    return inner().start_exchange(in_all(exchange), send, receive, label, std::move(flow));
  }
  /// A sum in place has scratch memory for what arrives.
  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label,
                   std::shared_ptr<Flow>) override {
    if (size() == 1) {
      if (in.raw() != out.raw()) in.backend().copy(in, out);
      return kDone;
    }
    const Exchange exchange = size() == 2 ? Exchange{.kind = Exchange::Kind::kNeighbours,
                                                     .send_to = {1 - rank()},
                                                     .receive_from = {1 - rank()},
                                                     .weights = {1.0}}
                                          : Exchange{.kind = Exchange::Kind::kGroupSum,
                                                     .group = everyone(),
                                                     .self_weight = 0.0,
                                                     .weights = {1.0}};
    const Tensor received = size() > 2 && in.raw() != out.raw() ? out : scratch(in);
    const Ticket ticket = start_exchange(exchange, in, {received}, label, {});
    sums_[ticket] = {in, received, out};
    return ticket;
  }
  bool done(Ticket ticket) override { return ticket == kDone || inner().done(ticket); }
  void wait(Ticket ticket) override {
    if (ticket == kDone) return;
    inner().wait(ticket);
    const auto found = sums_.find(ticket);
    if (found == sums_.end()) return;
    const Sum sum = std::move(found->second);
    sums_.erase(found);
    Backend& backend = sum.out.backend();
    if (size() == 2)
      backend.weighted_sum(
          {.in = {sum.in, sum.received}, .weight = {1.0, 1.0}, .terms = 2, .out = sum.out});
    else if (sum.received.raw() != sum.out.raw())
      backend.copy(sum.received, sum.out);
    if (sum.received.raw() != sum.out.raw()) free_.push_back(sum.received);
  }
  void prepare(const std::vector<std::vector<int>>& groups) override {
    std::vector<std::vector<int>> all;
    const auto add = [&](const std::vector<int>& group) {
      for (int place = 0; place < ranks_->stride(); ++place) {
        all.emplace_back();
        for (const int rank : group) all.back().push_back(rank * ranks_->stride() + place);
      }
    };
    for (const std::vector<int>& group : groups) add(group);
    if (size() > 2) add(everyone());  // of start_sum()
    inner().prepare(all);
  }
  /// A capture's exchanges are those of all ranks' transport.
  std::unique_ptr<CapturePart> join_capture(std::int64_t) override { return nullptr; }

 private:
  static constexpr Ticket kDone = ~Ticket{0};
  struct Sum {
    Tensor in, received, out;
  };
  std::vector<int> everyone() const {
    std::vector<int> ranks(static_cast<std::size_t>(size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  /// A tensor like `in`. They serve again, as a transport may keep what it has once exchanged.
  Tensor scratch(const Tensor& in) {
    const auto fits = [&](const Tensor& free) {
      return &free.backend() == &in.backend() && free.elements() == in.elements() &&
             free.dtype() == in.dtype();
    };
    const auto found = std::ranges::find_if(free_, fits);
    if (found == free_.end()) return {in.backend(), in.shape(), in.dtype()};
    const Tensor tensor = *found;
    free_.erase(found);
    return tensor;
  }
  Exchange in_all(Exchange exchange) const {
    for (std::vector<int>* ranks : {&exchange.send_to, &exchange.receive_from, &exchange.group}) {
      for (int& rank : *ranks) rank = ranks_->rank_in_all(rank);
    }
    return exchange;
  }

  std::unique_ptr<StridedWorld> ranks_;
  std::map<Ticket, Sum> sums_;  ///< in flight
  std::vector<Tensor> free_;    ///< scratch memory of sums
};

}  // namespace

std::unique_ptr<Transport> make_strided_transport(Transport& all, int stride) {
  return std::make_unique<StridedTransport>(all,
                                            std::make_unique<StridedWorld>(all.world(), stride));
}

}  // namespace starling
