#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "comm/transports/plan.h"
#include "examples/plugin/throttled.h"
#include "kernels/open_backend.h"
#include "support.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/exchanges.h"
#include "tests/support/transport_of.h"

// A transport of one's own, as a plug-in makes it.

using namespace starling;
using test::contains;

namespace {

TransportPlan throttled(double mbit_per_s, double latency_us) {
  static const bool done = [] {
    transports().add("throttled", mine::plan_throttled, "");
    return true;
  }();
  static_cast<void>(done);
  return transport_of(
      {{"type", "throttled"}, {"mbit_per_s", mbit_per_s}, {"latency_us", latency_us}});
}

/// Every rank's body with its transport, made over a world of threads.
void with_throttled(int ranks, const TransportPlan& plan,
                    const std::function<void(Transport&, Backend&)>& body) {
  std::vector<std::unique_ptr<Backend>> backends;
  for (int r = 0; r < ranks; ++r) backends.push_back(open_backend(DeviceType::kCpu, 1));
  FakeWorld world(ranks);
  world.run([&](Transport& messages) {
    Backend& backend = *backends[static_cast<std::size_t>(messages.rank())];
    const auto transport =
        plan.make(std::make_unique<ForwardingTransport>(messages), {.backend = backend});
    body(*transport, backend);
  });
}

}  // namespace

TEST_CASE("comm/plugin_transport: what leaves a rank takes its turn on the link") {
  // 1000 floats at 4 Mbit/s are 8 ms, and 5 ms on the way.
  with_throttled(2, throttled(4.0, 5000.0), [](Transport& transport, Backend& backend) {
    using Clock = std::chrono::steady_clock;
    const Tensor mine(backend, Shape{1000}, DType::kFloat32),
        theirs(backend, Shape{1000}, DType::kFloat32);
    backend.fill(mine, 1.0);
    const Exchange exchange = test::pair_with(1 - transport.rank());
    const auto begin = Clock::now();
    const Ticket first = transport.start_exchange(exchange, mine, {theirs}, {0, 0, 0});
    // of two ranks: as many bytes
    const Ticket second = transport.start_sum(mine, theirs, {0, 1, 0});
    if (Clock::now() - begin < std::chrono::milliseconds(12)) CHECK(!transport.done(first));
    transport.wait(first);
    CHECK(Clock::now() - begin >= std::chrono::milliseconds(13));
    transport.wait(second);
    CHECK(Clock::now() - begin >= std::chrono::milliseconds(21));
  });
}

TEST_CASE(
    "comm/transports: a text is a type, a type's keys are read, and what a transport cannot do is "
    "known beforehand") {
  CHECK(throttled(1.0, 0.0).name == "throttled");
  CHECK(!throttled(1.0, 0.0).between_gpus);
  CHECK(transport_of("auto").reads_parameters);
  CHECK(!transport_of("auto").through_host);
  CHECK(transport_of("staged").through_host);
  CHECK(!transport_of("nccl").between_cpus);
  CHECK(transport_of("nccl").counts_communicators);
  CHECK(transports_between_cpus() == "auto, direct, mpi, throttled or zeromq");
  const auto error = [](const nlohmann::json& value) {
    return test::error_text([&] { transport_of(value); });
  };
  CHECK(contains(error({{"type", "throttled"}, {"mbit", 3}}),
                 "sync.transport.mbit: unknown key; did you mean 'mbit_per_s'"));
  CHECK(contains(error({{"type", "throttled"}, {"mbit_per_s", 0}}),
                 "sync.transport.mbit_per_s: expected"));
  CHECK(contains(error("stagd"),
                 "sync.transport.type: unknown transport 'stagd'; did you mean 'staged'"));
  CHECK(contains(error({{"type", "mpi"}, {"latency_us", 3}}),
                 "sync.transport.latency_us: is not a key of mpi, but of throttled"));
}
