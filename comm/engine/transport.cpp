#include <algorithm>
#include <cstring>
#include <numeric>

#include "comm/capture.h"
#include "comm/engine/engine.h"
#include "comm/transports/checks.h"
#include "core/error.h"

namespace starling {
namespace {

using detail::Wire;
using detail::WireEngine;

class ControlPlane final : public World {
 public:
  explicit ControlPlane(WireEngine& engine) : engine_(engine) {}
  int rank() const override { return wire().rank(); }
  int size() const override { return wire().size(); }
  int local_rank() const override { return wire().local_rank(); }
  int local_size() const override { return wire().local_size(); }

  void barrier() override { call(Wire::Call::kBarrier, "a barrier", {}, {}, 0); }
  void broadcast(void* data, std::size_t bytes, int root) override {
    constexpr std::size_t kPiece = 64u << 20;
    auto* at = static_cast<std::byte*>(data);
    for (std::size_t first = 0; first < bytes; first += kPiece) {
      const std::size_t count = std::min(kPiece, bytes - first);
      const auto operation =
          call(Wire::Call::kBroadcast, fmt::format("a broadcast from rank {}", root),
               {at + first, at + first + count}, {}, root);
      std::memcpy(at + first, operation->bytes().data(), count);
    }
  }
  std::vector<std::string> all_gather(const std::string& mine) override {
    const std::int64_t length = static_cast<std::int64_t>(mine.size());
    std::vector<std::int64_t> lengths(ranks());
    gather("an exchange of lengths", &length, lengths.data(),
           std::vector<int>(ranks(), sizeof length));
    const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    require(total < std::int64_t{1} << 31, "transport", "{} bytes are too many for all_gather",
            total);
    std::string all(static_cast<std::size_t>(total), '\0');
    gather("an exchange of texts", mine.data(), all.data(),
           std::vector<int>(lengths.begin(), lengths.end()));
    std::vector<std::string> result;
    std::size_t at = 0;
    for (const std::int64_t count : lengths) {
      result.push_back(all.substr(at, static_cast<std::size_t>(count)));
      at += static_cast<std::size_t>(count);
    }
    return result;
  }
  void sum(double* values, std::size_t count) override {
    reduce("a sum of numbers", values, count, [](double a, double b) { return a + b; });
  }
  void max(double* values, std::size_t count) override {
    reduce("a maximum of numbers", values, count, [](double a, double b) { return a < b ? b : a; });
  }

 private:
  std::shared_ptr<detail::WireCall> call(Wire::Call kind, std::string what,
                                         std::vector<std::byte> mine, std::vector<int> counts,
                                         int root) {
    auto operation =
        wire().make_call(kind, std::move(what), std::move(mine), std::move(counts), root);
    engine_.complete(operation);
    return operation;
  }

  /// Gathers counts[j] bytes of rank j, one after the other, into `all`.
  void gather(const char* what, const void* mine, void* all, std::vector<int> counts) {
    const auto* first = static_cast<const std::byte*>(mine);
    std::vector<std::byte> own(first, first + counts[static_cast<std::size_t>(rank())]);
    const auto operation = call(Wire::Call::kGather, what, std::move(own), std::move(counts), 0);
    if (!operation->bytes().empty())
      std::memcpy(all, operation->bytes().data(), operation->bytes().size());
  }

  /// Gathers and folds in rank order, so that all ranks get the same bits.
  template <class Fold>
  void reduce(const char* what, double* values, std::size_t count, Fold fold) {
    constexpr std::size_t kPiece = 4096;
    std::vector<double> all;
    for (std::size_t first = 0; first < count; first += kPiece) {
      const std::size_t n = std::min(kPiece, count - first);
      all.resize(n * ranks());
      gather(what, values + first, all.data(),
             std::vector<int>(ranks(), static_cast<int>(n * sizeof(double))));
      for (std::size_t i = 0; i < n; ++i) {
        double total = all[i];
        for (std::size_t j = 1; j < ranks(); ++j) total = fold(total, all[j * n + i]);
        values[first + i] = total;
      }
    }
  }

  Wire& wire() const { return engine_.wire(); }
  std::size_t ranks() const { return static_cast<std::size_t>(wire().size()); }

  WireEngine& engine_;
};

class WireTransport final : public Transport {
 public:
  WireTransport(std::unique_ptr<Wire> wire, double timeout_seconds)
      : Transport(plane_),
        engine_(std::move(wire), timeout_seconds),
        plane_(engine_),
        everyone_{.kind = Exchange::Kind::kGroupSum,
                  .group = std::vector<int>(static_cast<std::size_t>(engine_.wire().size()))} {
    std::iota(everyone_.group.begin(), everyone_.group.end(), 0);
  }

  std::string name() const override { return engine_.wire().name(); }

  Ticket start_exchange(const Exchange& exchange, const Tensor& send,
                        const std::vector<Tensor>& receive, const ExchangeLabel& label,
                        std::shared_ptr<Flow> flow) override {
    require(exchange.kind != Exchange::Kind::kNone, "transport",
            "an exchange of kind none has nothing to start");
    check_exchange(rank(), size(), exchange, send, receive);
    if (exchange.kind == Exchange::Kind::kNeighbours) {
      return engine_.start(make_neighbour_operation(engine_.wire(), exchange, send, receive, label,
                                                    std::move(flow)));
    }
    return engine_.start(make_group_operation(engine_.wire(), exchange, send, receive[0],
                                              describe(exchange, label), label, std::move(flow)));
  }
  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label,
                   std::shared_ptr<Flow> flow) override {
    check_sum(in, out);
    return engine_.start(make_group_operation(engine_.wire(), everyone_, in, out,
                                              describe_sum(label), label, std::move(flow)));
  }
  bool done(Ticket ticket) override { return engine_.done(ticket); }
  void wait(Ticket ticket) override { engine_.wait(ticket); }
  // Nothing to do: every pair of ranks is connected
  void prepare(const std::vector<std::vector<int>>&) override {}
  std::string why_not_captured() const override { return through_the_host(*this); }
  std::unique_ptr<CapturePart> join_capture(std::int64_t) override { return nullptr; }

 private:
  WireEngine engine_;
  ControlPlane plane_;
  Exchange everyone_;  ///< the sum over all ranks
};

}  // namespace

std::unique_ptr<Transport> detail::make_wire_transport(std::unique_ptr<Wire> wire,
                                                       double timeout_seconds) {
  return std::make_unique<WireTransport>(std::move(wire), timeout_seconds);
}

}  // namespace starling
