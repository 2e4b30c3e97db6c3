#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/averaging.h"
#include "comm/bucket.h"
#include "comm/capture.h"
#include "comm/exchange_plan.h"
#include "core/operations/map.h"
#include "core/operations/pointwise.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/comm/transport_contract.h"
#include "tests/cuda/nccl_world.h"
#include "tests/cuda/support.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/support/errors.h"
#include "tests/support/exchanges.h"
#include "topology/topology.h"

// Single exchanges by the NCCL transport: the contract of every transport; which communicators and
// registrations they need; and tickets of a capture.
namespace starling::tests {

using test::contains;
using test::error_of;
using test::pair_with;

TEST_CASE("nccl/exchange: the transport keeps the contract, and leaves nothing behind") {
  test::TransportKind kind;
  kind.ranks = {1, 2, 3, 4, 5, 6, 8};
  kind.sums_in_order = false;  // those of a communicator
  kind.lanes = false;          // one after the other
  kind.run = [](int ranks, double timeout_seconds, const test::TransportKind::Body& body) {
    NcclWorld world(ranks, {.timeout_seconds = timeout_seconds});
    world.run(body);
    for (int rank = 0; rank < ranks; ++rank) {
      CHECK(world.fake.initialised(rank) == world.fake.destroyed(rank));
      CHECK(world.fake.aborted(rank) == 0);
      CHECK(world.fake.registrations(rank) == 0);
    }
  };
  check_transport(kind);
}

TEST_CASE("nccl/exchange: sums of the host's tensors, beside the device's") {
  NcclWorld world(3);
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    CpuBackend host(1);
    const Tensor on_host(host, Shape{300}, DType::kFloat64),
        on_device(backend, Shape{300}, DType::kFloat64);
    host.fill(on_host, transport.rank());
    backend.fill(on_device, 10.0 * transport.rank());
    const Ticket first = transport.start_sum(on_host, on_host, {3, 0, 3}),
                 second = transport.start_sum(on_device, on_device, {3, 1, 3});
    transport.wait(second);
    transport.wait(first);
    CHECK(first != second);
    CHECK(test::numbers(on_host) == std::vector<double>(300, 3.0));
    CHECK(host_copy<double>(on_device) == std::vector<double>(300, 30.0));
  });
}

TEST_CASE("nccl/exchange: the mean model, and nothing of it stays registered") {
  NcclWorld world(3);
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    // more than one piece; the same on all ranks
    std::vector<float> numbers(1'100'000);
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = static_cast<float>(i % 1009) / 700.0f - 0.7f;
    const Tensor in(backend, Shape{static_cast<std::int64_t>(numbers.size())}, DType::kFloat32);
    backend.copy_from_host(numbers.data(), in);
    const std::vector<float> found = host_copy(mean_model(transport, {in})[0]);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i)
      wrong += !(std::abs(found[i] - numbers[i]) < 1e-6f);
    CHECK(wrong == 0);
    CHECK(world.fake.registrations(transport.rank()) == 0);
  });
}

TEST_CASE("nccl/exchange: communicators are made for groups alone, each once") {
  register_builtin_topologies();
  ConfigSection section(nlohmann::json{{"type", "alternating-exp-ring"}}, "topology");
  const auto topology = make_topology(section, {8, 2});
  const std::vector<std::vector<int>> groups = summed_groups(*topology, false);
  std::map<int, int> of_rank;
  for (const auto& group : groups) {
    CHECK(group.size() > 2);  // pairs need none
    for (const int rank : group) ++of_rank[rank];
  }
  CHECK(std::set<std::vector<int>>(groups.begin(), groups.end()).size() == groups.size());
  NcclWorld world(8);
  world.run([&](Transport& transport, cuda::CudaBackend&) {
    transport.prepare(groups);
    transport.prepare(groups);  // again: they are there
    // the world has one, and one rank alone needs none
    transport.prepare({{0, 1, 2, 3, 4, 5, 6, 7}, {4}});
    CHECK(world.fake.initialised(transport.rank()) == 1 + of_rank[transport.rank()]);
  });
  ConfigSection ring(nlohmann::json{{"type", "ring"}}, "topology");
  CHECK(summed_groups(*make_topology(ring, {8, 2}), false).empty());
}

TEST_CASE("nccl/exchange: buffers are registered once, where NCCL can") {
  for (const bool registers : {true, false}) {
    NcclWorld world(2, {.nccl = {.registers = registers}});
    world.run([&](Transport& transport, cuda::CudaBackend& backend) {
      const Exchange exchange = pair_with(1 - transport.rank());
      const Tensor send(backend, Shape{64}, DType::kFloat32),
          receive(backend, send.shape(), send.dtype());
      for (std::int64_t step = 0; step < 3; ++step)
        transport.wait(transport.start_exchange(exchange, send, {receive}, {step, 0, step}));
      CHECK(world.fake.registrations(transport.rank()) == (registers ? 2 : 0));
    });
    CHECK(world.fake.registrations(0) == 0);
  }
}

TEST_CASE(
    "nccl/exchange: an exchange that is captured needs no answer of the device, and registers "
    "nothing") {
  NcclWorld world(2);
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    const Exchange exchange = pair_with(1 - transport.rank());
    const Tensor send(backend, Shape{64}, DType::kFloat32),
        receive(backend, send.shape(), send.dtype());
    backend.fill(send, 1.0 + transport.rank());
    transport.wait(transport.start_exchange(exchange, send, {receive}, {0, 0, 0}));
    const int registered = world.fake.registrations(transport.rank());
    CHECK(registered == 2);
    transport.world().barrier();
    // An exchange is under way all through the capture: the watchdog looks at it every 10 ms.
    if (transport.rank() == 0) cuda::shim::hold_events(true);
    transport.world().barrier();
    const Ticket before = transport.start_exchange(exchange, send, {receive}, {1, 0, 1});
    std::vector<Bucket> none;
    const auto capture = Capture::begin(backend, transport, nullptr, none, {.pass = 2});
    REQUIRE(capture);
    const Tensor sum(backend, send.shape(), send.dtype());  // of the graph's own memory
    const Ticket first = transport.start_exchange(exchange, send, {receive}, {2, 0, 2});
    const Ticket second = transport.start_sum(send, sum, {2, 1, 2});
    CHECK(transport.done(first));  // the host would not wait
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    transport.wait(first);
    transport.wait(second);
    backend.map({MapFunction::kAdd, receive, sum, receive});
    capture->end();
    CHECK(world.fake.registrations(transport.rank()) == registered);
    backend.fill(send, 10.0 + transport.rank());
    capture->launch({.pass = 2});
    transport.wait(before);
    CHECK(contains(error_of(ExitCode::kInternal, [&] { transport.wait(first); }), "not under way"));
    transport.world().barrier();
    if (transport.rank() == 0) cuda::shim::hold_events(false);
    CHECK(host_copy(receive) ==
          std::vector<float>(64, 10.0f + 1.0f - static_cast<float>(transport.rank()) + 21.0f));
    transport.world().barrier();
  });
}

TEST_CASE(
    "nccl/exchange: a capture that is given up takes its tickets with it, and what follows goes "
    "on") {
  NcclWorld world(2);
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    const Tensor numbers(backend, Shape{8}, DType::kFloat32);
    backend.fill(numbers, 1.0);
    std::vector<Bucket> none;
    auto capture = Capture::begin(backend, transport, nullptr, none, {});
    REQUIRE(capture);
    const Ticket ticket = transport.start_sum(numbers, numbers, {0, 0, 0});
    // A host's wait on the way of an exchange, as for the mean model.
    CHECK(contains(error_of(ExitCode::kInternal, [&] { mean_model(transport, {numbers}); }),
                   "while a graph is captured"));
    capture.reset();
    CHECK(
        contains(error_of(ExitCode::kInternal, [&] { transport.wait(ticket); }), "not under way"));
    transport.wait(transport.start_sum(numbers, numbers, {0, 0, 0}));
    CHECK(host_copy(numbers) == std::vector<float>(8, 2.0f));
  });
}

}  // namespace starling::tests
