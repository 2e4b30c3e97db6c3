#include <doctest/doctest.h>

#include <memory>
#include <utility>
#include <vector>

#include "comm/transports/forwarding.h"
#include "comm/transports/staged.h"
#include "comm/transports/strided.h"
#include "examples/plugin/throttled.h"
#include "kernels/open_backend.h"
#include "late_device.h"
#include "tests/fakes/transport/fake_transport.h"
#include "transport_contract.h"

// What every transport must do, of those whose ranks can be threads of one process.
namespace starling::test {
namespace {

/// `body` for each rank with its end of a world of threads and a backend of its own.
using Make = std::function<void(std::unique_ptr<Transport> end, Backend& backend,
                                const TransportKind::Body& body)>;
TransportKind threads(const Make& make, const FakeWorldOptions& options = {}) {
  TransportKind kind;
  kind.run = [=](int ranks, double timeout_seconds, const TransportKind::Body& body) {
    std::vector<std::unique_ptr<Backend>>
        backends;  // outlive the world, whose messages hold tensors
    for (int r = 0; r < ranks; ++r) backends.push_back(open_backend(DeviceType::kCpu, 1));
    FakeWorldOptions all = options;
    all.timeout_seconds = timeout_seconds;
    FakeWorld world(ranks, all);
    world.run([&](Transport& t) {
      make(world.transport(t.rank()), *backends[static_cast<std::size_t>(t.rank())], body);
    });
  };
  return kind;
}
void as_it_is(std::unique_ptr<Transport> end, Backend& backend, const TransportKind::Body& body) {
  body(*end, backend);
}
void staged(std::unique_ptr<Transport> end, Backend& host, const TransportKind::Body& body) {
  LateDevice device(host);  // outlives the transport, which keeps host memory of it
  const auto transport = make_staged_transport(std::move(end));
  CHECK(transport->name() == "fake, through host memory");
  body(*transport, device);
}
void throttled(std::unique_ptr<Transport> end, Backend& backend, const TransportKind::Body& body) {
  const nlohmann::json keys{{"mbit_per_s", 1e5}, {"latency_us", 50}};
  ConfigSection section(keys, "test");
  body(*mine::plan_throttled(section).make(std::move(end), {.backend = backend}), backend);
}

}  // namespace

TEST_CASE("comm/transports: ranks that are threads, with delays, keep the contract") {
  const TransportKind kind = threads(as_it_is, {.most_delay_seconds = 0.0005, .seed = 5});
  check_transport(kind);
  check_flows(kind, false);
  check_late_rank(kind);
}

TEST_CASE("comm/transports: every second rank, beside the others, keeps the contract") {
  const TransportKind all = threads(
      [](std::unique_ptr<Transport> end, Backend& backend, const TransportKind::Body& body) {
        body(*make_strided_transport(*end, 2), backend);
      },
      {.most_delay_seconds = 0.0002, .seed = 5});
  TransportKind half = all;
  half.run = [&](int ranks, double timeout_seconds, const TransportKind::Body& body) {
    all.run(2 * ranks, timeout_seconds, body);
  };
  half.ranks = {1, 2, 3, 4};
  check_transport(half);
}

TEST_CASE("comm/transports: a late device's tensors through host memory keep the contract") {
  TransportKind kind = threads(staged, {.most_delay_seconds = 0.0002, .seed = 5});
  check_transport(kind);
  check_late_rank(kind);
  kind.ranks = {3, 2, 4};
  check_jobs(kind);
}

TEST_CASE("comm/transports: an author's own transport keeps the contract") {
  TransportKind kind = threads(throttled);
  kind.ranks = {1, 2, 4, 5};
  check_transport(kind);
  check_late_rank(kind);
  kind.ranks = {4};
  check_jobs(kind);
}

}  // namespace starling::test
