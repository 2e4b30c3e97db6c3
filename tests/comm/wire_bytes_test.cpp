#include <doctest/doctest.h>

#include <memory>
#include <utility>
#include <vector>

#include "comm/algorithms/coded_mean.h"
#include "comm/transports/forwarding.h"
#include "kernels/open_backend.h"
#include "support.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/kernels/optimizer_reference.h"

// What means by encoded messages put on the wire.
namespace starling::test {
namespace {

class CountingTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  Ticket start_exchange(const Exchange& exchange, const Tensor& send,
                        const std::vector<Tensor>& receive, const ExchangeLabel& label,
                        std::shared_ptr<Flow> flow) override {
    for (std::size_t k = 0; k < exchange.send_to.size(); ++k)
      sent += static_cast<double>(send.bytes());
    return ForwardingTransport::start_exchange(exchange, send, receive, label, std::move(flow));
  }
  double sent = 0.0;
};

/// Of one mean by this code: how many times less than fp32 a message is, and on the wire than what
/// a rank sends of a ring's dense mean.
struct Savings {
  double message = 0.0, wire = 0.0;
};
Savings savings_of(const DifferenceCode& code, int ranks) {
  constexpr std::int64_t kElements = 1 << 17;
  std::vector<Savings> by_rank(static_cast<std::size_t>(ranks));
  FakeWorld(ranks).run([&](Transport& transport) {
    CountingTransport counted(transport);
    const auto backend = open_backend(DeviceType::kCpu, 1);
    TinyModel model({Shape{kElements}});
    const BucketPlan layout = plan_buckets(model.order, {}, DType::kFloat32, 1);
    std::vector<starling::Bucket> buckets =
        make_buckets(layout, *backend, DType::kFloat32, 0, false);
    const auto rule = make_rule("sgd", nlohmann::json::object());
    const auto mixer = counted.make_mixer(*backend);
    const AlgorithmSite site{.backend = *backend,
                             .transport = counted,
                             .mixer = *mixer,
                             .rule = *rule,
                             .buckets = buckets};
    std::unique_ptr<CodedMean> mean;
    if (code.sparse) {
      mean = std::make_unique<SparseMean>(site, code, Residuals{});
    } else {
      mean = std::make_unique<EncodedMean>(site, code.compressor, ranks);
    }
    const Tensor numbers = buckets[0].parameters;
    set_numbers(numbers, [](std::int64_t i) { return static_cast<double>(i % 97); });
    const CodedMean::Wait wait = [&](Ticket ticket, int) { counted.wait(ticket); };
    mean->start(0, numbers, {}, numbers, 0);
    mean->gather(0, 0, wait);
    mean->finish(0, wait);
    const double dense = 4.0 * kElements;
    by_rank[static_cast<std::size_t>(transport.rank())] = {
        dense / static_cast<double>(DifferenceMessages(site, code).bytes(0)),
        2.0 * (ranks - 1) / ranks * dense / counted.sent};
  });
  for (const Savings& of : by_rank) {
    CHECK(of.message == by_rank[0].message);
    CHECK(of.wire == by_rank[0].wire);
  }
  return by_rank[0];
}

TEST_CASE("comm/wire: bytes of messages and of the wire, next to fp32's and a dense ring's") {
  DifferenceCode int4{.compressor = {Code::kInt4, 256}},
      sparse{.sparse = SparseSettings{.share = 1.0 / 64.0}};
  for (const int n : {4, 8}) {
    CAPTURE(n);
    const Savings of_int4 = savings_of(int4, n), of_sparse = savings_of(sparse, n);
    CHECK(of_int4.message == doctest::Approx(32.0 / 4.125));
    CHECK(of_int4.wire == doctest::Approx(32.0 / 4.125));
    CHECK(of_sparse.message == doctest::Approx(141.24).epsilon(1e-4));
    CHECK(of_sparse.wire == doctest::Approx(2.0 * 141.24 / n).epsilon(1e-4));
    CHECK(4.0 * int4.compressor.wire() == doctest::Approx(4.0 / of_int4.message));
    CHECK(4.0 * sparse.sparse->wire() == doctest::Approx(4.0 / of_sparse.message));
  }
}

}  // namespace
}  // namespace starling::test
