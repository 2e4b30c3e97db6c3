#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
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
#include "comm/transports/sums.h"
#include "core/operations/map.h"
#include "core/operations/pointwise.h"
#include "core/philox.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/cuda/nccl_world.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/support/errors.h"
#include "tests/support/exchanges.h"
#include "topology/topology.h"

// Single exchanges by the NCCL transport: what they bring, for every topology, against the
// transport between threads (tests/fakes/transport/fake_transport.h) on CPUs; which communicators
// and registrations they need; and tickets of a capture.
namespace starling::tests {
namespace {

using test::contains;
using test::error_of;
using test::pair_with;

struct Case {
  std::string name;
  std::unique_ptr<Topology> topology;
  std::int64_t rounds = 0;
};

/// Every topology that takes so many ranks, for each number of ranks a node.
std::vector<Case> cases_of(int ranks) {
  register_builtin_topologies();
  std::vector<Case> cases;
  for (const std::string& type : topologies().names()) {
    for (int per_node = 1; per_node <= ranks; per_node *= 2) {
      if (ranks % per_node != 0) continue;
      std::vector<nlohmann::json> variants;
      if (type == "hierarchical") {
        if (per_node == 1) continue;
        for (const char* inter : {"ring", "complete", "star"})
          variants.push_back({{"type", type}, {"inter", {{"type", inter}}}});
      } else if (type == "custom") {
        if (ranks != 5 || per_node != 1) continue;
        variants.push_back(groups_of_three());
      } else {
        if (type != "alternating-exp-ring" && per_node > 1) continue;
        variants.push_back({{"type", type}});
      }
      for (const nlohmann::json& variant : variants) {
        ConfigSection section(variant, "topology");
        try {
          std::unique_ptr<Topology> topology = make_unchecked_topology(section, {ranks, per_node});
          const std::int64_t rounds =
              topology->period() == 0 ? 3 : std::min<std::int64_t>(topology->period() + 1, 6);
          cases.push_back(
              {variant.dump() + " by " + std::to_string(per_node), std::move(topology), rounds});
        } catch (const Error& error) {
          REQUIRE(error.code() == ExitCode::kUsage);  // it does not take so many
        }
      }
    }
  }
  return cases;
}

struct Buffer {
  std::int64_t elements;
  DType dtype;
};
/// The second has no equal shards.
constexpr Buffer kBuffers[] = {
    {96, DType::kFloat32}, {77, DType::kFloat64}, {50, DType::kFloat32}, {160, DType::kBFloat16}};

bool takes(const Exchange& exchange, DType dtype) {
  return exchange.kind != Exchange::Kind::kNone &&
         (exchange.kind != Exchange::Kind::kNodes || dtype != DType::kBFloat16);
}

Tensor filled(Backend& backend, const Buffer& buffer, std::uint64_t seed) {
  const Shape shape{buffer.elements};
  std::vector<double> numbers(static_cast<std::size_t>(buffer.elements));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = 2.0 * static_cast<double>(uniform_float(philox(seed, i, 9).v[0])) - 1.0;
  Tensor wide(backend, shape, DType::kFloat64);
  backend.copy_from_host(numbers.data(), wide);
  if (buffer.dtype == DType::kFloat64) return wide;
  Tensor narrow(backend, shape, buffer.dtype);
  backend.cast({wide, narrow});
  return narrow;
}

/// Numbers, and the bytes that held them.
struct Got {
  std::vector<double> numbers;
  std::vector<std::byte> bytes;
  bool exact = false;
  std::string what;
};

Got read(const Tensor& tensor) {
  Backend& backend = tensor.backend();
  Got got;
  got.bytes.resize(tensor.bytes());
  backend.copy_to_host(tensor, got.bytes.data());
  Tensor wide(backend, tensor.shape(), DType::kFloat64);
  backend.cast({tensor, wide});
  got.numbers.resize(static_cast<std::size_t>(tensor.elements()));
  backend.copy_to_host(wide, got.numbers.data());
  return got;
}

double largest_difference(const Got& a, const Got& b) {
  REQUIRE(a.numbers.size() == b.numbers.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < a.numbers.size(); ++i)
    largest = std::max(largest, std::abs(a.numbers[i] - b.numbers[i]));
  return largest;
}

std::vector<Got> exchange_all(Transport& transport, Backend& backend,
                              const std::vector<Case>& cases) {
  std::vector<Got> all;
  std::int64_t step = 0;
  for (const Case& one : cases) {
    transport.prepare(summed_groups(*one.topology, false));
    for (std::int64_t round = 0; round < one.rounds; ++round, ++step) {
      const Exchange exchange = plan_exchange(one.topology->round(round), transport.rank());
      std::vector<Tensor> sends;
      std::vector<std::vector<Tensor>> receives;
      std::vector<Ticket> tickets;
      for (std::size_t b = 0; b < std::size(kBuffers); ++b) {
        if (!takes(exchange, kBuffers[b].dtype)) continue;
        const auto seed = static_cast<std::uint64_t>((step * 16 + transport.rank()) * 8) + b;
        sends.push_back(filled(backend, kBuffers[b], seed));
        receives.emplace_back();
        const bool sum = exchange.kind == Exchange::Kind::kGroupSum;
        for (std::size_t k = 0; k < exchange.received(); ++k) {
          receives.back().emplace_back(backend, sends.back().shape(),
                                       sum ? sum_type(kBuffers[b].dtype) : kBuffers[b].dtype);
        }
        tickets.push_back(transport.start_exchange(exchange, sends.back(), receives.back(),
                                                   {step, static_cast<int>(b), round}));
      }
      for (const Ticket ticket : tickets) transport.wait(ticket);
      for (const std::vector<Tensor>& arrived : receives) {
        for (const Tensor& tensor : arrived) {
          all.push_back(read(tensor));
          all.back().exact = exchange.kind == Exchange::Kind::kNeighbours;
          all.back().what = fmt::format("{}, round {}", one.name, round);
        }
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("nccl/exchange: every topology brings what the transport between threads brings") {
  std::size_t compared = 0;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    CAPTURE(ranks);
    const std::vector<Case> cases = cases_of(ranks);
    std::vector<std::vector<Got>> wanted(static_cast<std::size_t>(ranks)),
        found(static_cast<std::size_t>(ranks));
    FakeWorld(ranks).run([&](Transport& transport) {
      CpuBackend cpu(1);
      wanted[static_cast<std::size_t>(transport.rank())] = exchange_all(transport, cpu, cases);
    });
    NcclWorld world(ranks);
    world.run([&](Transport& transport, cuda::CudaBackend& backend) {
      found[static_cast<std::size_t>(transport.rank())] = exchange_all(transport, backend, cases);
    });
    for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
      REQUIRE(found[rank].size() == wanted[rank].size());
      for (std::size_t i = 0; i < wanted[rank].size(); ++i) {
        const Got &want = wanted[rank][i], &got = found[rank][i];
        CAPTURE(want.what);
        if (want.exact) CHECK(got.bytes == want.bytes);
        CHECK(largest_difference(got, want) <= 2e-6);
        ++compared;
      }
      const int r = static_cast<int>(rank);
      CHECK(world.fake.initialised(r) == world.fake.destroyed(r));
      CHECK(world.fake.aborted(r) == 0);
      CHECK(world.fake.registrations(r) == 0);
    }
  }
  CHECK(compared > 1000);
}

TEST_CASE("nccl/exchange: a group that nobody prepared is summed all the same") {
  NcclWorld world(4);
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    Exchange exchange;
    exchange.kind = Exchange::Kind::kGroupSum;
    exchange.group = {0, 2, 3};
    if (transport.rank() == 1) return;
    const Buffer buffer{1000, DType::kFloat32};
    const Tensor in = filled(backend, buffer, static_cast<std::uint64_t>(transport.rank())),
                 out(backend, in.shape(), in.dtype());
    transport.wait(transport.start_exchange(exchange, in, {out}, {0, 0, 0}));
    const Got got = read(out);
    std::vector<float> sum(1000, 0.0F);
    for (const std::uint64_t rank : {0, 2, 3}) {
      const Got term = read(filled(backend, buffer, rank));
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(term.numbers[i]);
    }
    // by shards: in rank order
    CHECK(std::memcmp(got.bytes.data(), sum.data(), got.bytes.size()) == 0);
  });
}

TEST_CASE("nccl/exchange: sums over all ranks, in place and not, of the device and of the host") {
  for (const int ranks : {1, 2, 5}) {
    CAPTURE(ranks);
    NcclWorld world(ranks);
    world.run([&](Transport& transport, cuda::CudaBackend& backend) {
      CpuBackend host(1);
      std::vector<Tensor> ins, outs;
      for (Backend* where : {static_cast<Backend*>(&backend), static_cast<Backend*>(&host)}) {
        for (const bool in_place : {false, true}) {
          const Tensor in =
              filled(*where, {300, DType::kFloat64}, static_cast<std::uint64_t>(transport.rank()));
          ins.push_back(in);
          outs.push_back(in_place ? in : Tensor(*where, in.shape(), in.dtype()));
        }
      }
      std::vector<Ticket> tickets;
      for (std::size_t i = 0; i < ins.size(); ++i)
        tickets.push_back(transport.start_sum(ins[i], outs[i], {3, static_cast<int>(i), 3}));
      CHECK(std::set<Ticket>(tickets.begin(), tickets.end()).size() == tickets.size());
      std::vector<double> sum(300, 0.0);
      for (int rank = 0; rank < ranks; ++rank) {
        const Got term =
            read(filled(host, {300, DType::kFloat64}, static_cast<std::uint64_t>(rank)));
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += term.numbers[i];
      }
      for (std::size_t i = 0; i < outs.size(); ++i) {
        transport.wait(tickets[i]);
        const Got got = read(outs[i]);
        for (std::size_t k = 0; k < sum.size(); ++k)
          REQUIRE(got.numbers[k] == doctest::Approx(sum[k]).epsilon(1e-12));
      }
      // The control plane works beside it.
      double numbers[] = {1.0, static_cast<double>(transport.rank())};
      transport.world().sum(numbers, 2);
      CHECK(numbers[0] == ranks);
      CHECK(transport.world().all_gather("x").size() == static_cast<std::size_t>(ranks));
    });
  }
}

TEST_CASE("nccl/exchange: the mean model, and nothing of it stays registered") {
  NcclWorld world(3);
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    // more than one piece; the same on all ranks
    const Tensor in = filled(backend, {1'100'000, DType::kFloat32}, 7);
    const std::vector<Tensor> mean = mean_model(transport, {in});
    CHECK(largest_difference(read(mean[0]), read(in)) < 1e-6);
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
      const Tensor send = filled(backend, {64, DType::kFloat32}, 1),
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
    std::vector<float> host(64);
    backend.copy_to_host(receive, host.data());
    CHECK(host ==
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
    std::vector<float> host(8);
    backend.copy_to_host(numbers, host.data());
    CHECK(host == std::vector<float>(8, 2.0f));
  });
}

}  // namespace starling::tests
