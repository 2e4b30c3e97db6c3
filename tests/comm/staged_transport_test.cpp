#include "comm/transports/staged.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "kernels/open_backend.h"
#include "staged_jobs.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/exchanges.h"

namespace starling::test {
namespace {

std::vector<std::unique_ptr<Backend>> hosts(int ranks) {
  std::vector<std::unique_ptr<Backend>> backends;  // outlive the world, whose messages hold tensors
  for (int r = 0; r < ranks; ++r) backends.push_back(open_backend(DeviceType::kCpu, 1));
  return backends;
}

/// What every rank ends with when its bucket memory is a device's.
std::vector<std::vector<double>> run_on_devices(const Job& job, int ranks) {
  std::vector<std::vector<double>> results(static_cast<std::size_t>(ranks));
  const auto backends = hosts(ranks);
  FakeWorld world(ranks, {20.0, 0.0002, 5});
  world.run([&](Transport& transport) {
    const auto r = static_cast<std::size_t>(transport.rank());
    LateDevice device(*backends[r]);
    const auto staged = make_staged_transport(world.transport(transport.rank()));
    CHECK(staged->rank() == transport.rank());
    CHECK(staged->size() == ranks);
    CHECK(staged->name().find("host memory") != std::string::npos);
    results[r] = run_job(job, *staged, device);
    CHECK(device.sent.load() > job.steps);
    CHECK(device.arrived.load() > job.steps);
  });
  return results;
}

std::unique_ptr<Topology> topology_of(const char* text, int ranks) {
  return make_test_topology(nlohmann::json::parse(text), ranks);
}

Tensor filled(Backend& backend, std::int64_t elements, double value) {
  Tensor tensor(backend, Shape{elements}, DType::kFloat32);
  set_numbers(tensor, [&](std::int64_t i) { return value + static_cast<double>(i % 1013); });
  return tensor;
}

bool same(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

/// The text of the Error(kLost) that `body` throws within twenty seconds.
std::string lost_text(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  std::string text = test::error_text(ExitCode::kLost, body);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
  return text;
}

}  // namespace

TEST_CASE(
    "comm/staged: a late device's tensors over a transport of host memory train to the bits of the "
    "host's") {
  for (const StagedJob& staged : staged_jobs()) {
    for (const bool in_backward : {true, false}) {
      CAPTURE(staged.algorithm);
      CAPTURE(staged.topology);
      const Job job = job_of(staged, in_backward);
      CHECK(run_on_devices(job, staged.ranks) == run_fake(job, staged.ranks));
    }
  }
}

TEST_CASE(
    "comm/staged: buckets of one element, of exactly a piece, and of a piece and a bit bring the "
    "numbers of the host's") {
  for (const auto& [text, ranks] :
       {std::pair{R"({"type": "ring"})", 2},
        {R"({"type": "complete"})", 3},
        {R"({"type": "static-ring"})", 4},
        {R"({"type": "hierarchical", "ranks_per_node": 2, "inter": {"type": "complete"}})", 4}}) {
    CAPTURE(text);
    const auto topology = topology_of(text, ranks);
    const auto backends = hosts(ranks);
    FakeWorld world(ranks);
    world.run([&](Transport& transport) {
      Backend& host = *backends[static_cast<std::size_t>(transport.rank())];
      LateDevice device(host);
      const auto staged = make_staged_transport(world.transport(transport.rank()));
      // Ranks are threads, each with its own end of the world: one use after the other.
      const auto found = exchange_sizes(*staged, device, *topology, 2);
      const auto expected = exchange_sizes(*staged, host, *topology, 2);
      REQUIRE(found.size() == expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == expected[i]);
    });
  }
}

TEST_CASE(
    "comm/staged: the start does not wait for the device, and the steady state allocates no pinned "
    "memory") {
  const auto backends = hosts(2);
  FakeWorld world(2);
  world.run([&](Transport& transport) {
    const int r = transport.rank();
    LateDevice device(*backends[static_cast<std::size_t>(r)]);
    const auto staged = make_staged_transport(world.transport(r));
    std::vector<Tensor> sends, targets, expected;
    for (int b = 0; b < 3; ++b) {
      const std::int64_t size = b == 0 ? 7 : kPieceElements + b;
      sends.push_back(filled(device, size, r + b));
      targets.emplace_back(device, Shape{size}, DType::kFloat32);
      expected.push_back(filled(device, size, 1 - r + b));
    }
    int early = 0;
    for (int step = 0; step < 12; ++step) {
      std::vector<Ticket> tickets;
      device.allow(0);
      for (std::size_t b = 0; b < 3; ++b) {
        tickets.push_back(staged->start_exchange(pair_with(1 - r), sends[b], {targets[b]},
                                                 {step, static_cast<int>(b), step}));
        CHECK(!staged->done(tickets.back()));
      }
      device.let_go();
      for (std::size_t b = 0; b < 3; ++b) {
        staged->wait(tickets[b]);
        CHECK(same(targets[b], expected[b]));
        set_numbers(targets[b], [](std::int64_t) { return -1.0; });
      }
      if (step == 3) early = device.pinned;
    }
    CHECK(device.pinned.load() == early);
    CHECK(early <= 3 * 3);
  });
}

TEST_CASE(
    "comm/staged: a transport that ends waits for what the device still copies from its memory") {
  const auto backends = hosts(2);
  FakeWorld world(2);
  world.run([&](Transport& transport) {
    const int r = transport.rank();
    LateDevice device(*backends[static_cast<std::size_t>(r)], std::chrono::milliseconds(50));
    const Tensor own = filled(device, 7, r), target(device, Shape{7}, DType::kFloat32);
    auto staged = make_staged_transport(world.transport(r));
    device.set_stream(StreamKind::kCommunication);  // which nobody waits for
    staged->wait(staged->start_exchange(pair_with(1 - r), own, {target}, {0, 0, 0}));
    const Event last = device.record();
    staged.reset();
    CHECK(device.done(last));
  });
}

TEST_CASE("comm/staged: what has come is copied to the device while the rest is under way") {
  const auto backends = hosts(2);
  FakeWorld world(2);
  const std::int64_t size = 4 * kPieceElements;
  const auto sender = world.transport(0);
  const Tensor numbers = filled(*backends[0], size, 3.0),
               back(*backends[0], Shape{size}, DType::kFloat32);
  const auto flow = std::make_shared<PlayedFlow>(numbers.bytes(), 1);
  const Ticket sent = sender->start_exchange(pair_with(1 - 0), numbers, {back}, {0, 0, 0}, flow);
  flow->set_ready(2 * kStagedPieceBytes + 5);
  std::atomic<bool> through{false};
  LateDevice device(*backends[1]);
  const Tensor own = filled(device, size, 4.0), target(device, Shape{size}, DType::kFloat32);
  std::thread receiver([&] {
    const auto staged = make_staged_transport(world.transport(1));
    staged->wait(staged->start_exchange(pair_with(1 - 1), own, {target}, {0, 0, 0}));
    through = true;
  });
  CHECK(soon([&] { return device.arrived == 2; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(device.arrived.load() == 2);
  CHECK(!through);
  flow->set_ready(numbers.bytes());
  receiver.join();
  CHECK(device.arrived.load() == 4);
  CHECK(same(target, numbers));
  sender->wait(sent);
  CHECK(flow->come(0) == numbers.bytes());
  CHECK(same(back, own));
}

TEST_CASE("comm/fake: a late piece holds back what follows it in its exchange, and nothing else") {
  const auto backends = hosts(2);
  FakeWorld world(2);
  const auto t0 = world.transport(0), t1 = world.transport(1);
  const std::int64_t size = 3 * kPieceElements + 9;
  const Tensor a = filled(*backends[0], size, 1.0), b = filled(*backends[1], size, 2.0);
  const auto empty = [&](Backend& backend) {
    return Tensor(backend, Shape{size}, DType::kFloat32);
  };
  const Tensor from_a = empty(*backends[1]), from_b = empty(*backends[0]);
  const auto flow0 = std::make_shared<PlayedFlow>(a.bytes(), 1),
             flow1 = std::make_shared<PlayedFlow>(b.bytes(), 1);
  flow1->set_ready(b.bytes());
  const Ticket late0 = t0->start_exchange(pair_with(1 - 0), a, {from_b}, {1, 0, 1}, flow0);
  const Ticket late1 = t1->start_exchange(pair_with(1 - 1), b, {from_a}, {1, 0, 1}, flow1);
  flow0->set_ready(kStagedPieceBytes);
  CHECK(soon([&] { return flow1->come(0) == kStagedPieceBytes && flow0->come(0) == b.bytes(); }));
  CHECK(same(from_b, b));

  // Others pass: an exchange, and a sum whose own flow is late after it.
  const Tensor x = filled(*backends[0], 100, 5.0), y = filled(*backends[1], 100, 6.0);
  const Tensor from_x(*backends[1], Shape{100}, DType::kFloat32),
      from_y(*backends[0], Shape{100}, DType::kFloat32);
  const Ticket other0 = t0->start_exchange(pair_with(1 - 0), x, {from_y}, {1, 1, 1});
  const Ticket other1 = t1->start_exchange(pair_with(1 - 1), y, {from_x}, {1, 1, 1});
  t0->wait(other0);
  t1->wait(other1);
  CHECK(same(from_x, x));
  const auto sum_flow = std::make_shared<PlayedFlow>(x.bytes(), 1);
  const Ticket sum0 = t0->start_sum(x, x, {1, 2, 1}, sum_flow),
               sum1 = t1->start_sum(y, y, {1, 2, 1});
  sum_flow->set_ready(x.bytes() - 4);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(!t1->done(sum1));
  CHECK(!t0->done(late0));
  CHECK(!t1->done(late1));
  CHECK(flow1->come(0) == kStagedPieceBytes);
  sum_flow->set_ready(x.bytes());
  t0->wait(sum0);
  t1->wait(sum1);
  CHECK(same(x, y));
  CHECK(sum_flow->come(0) == x.bytes());

  flow0->set_ready(a.bytes());
  t0->wait(late0);
  t1->wait(late1);
  CHECK(same(from_a, a));
  CHECK(flow1->come(0) == a.bytes());
}

TEST_CASE(
    "comm/staged: a device that stands still ends the waits of all ranks at their limit, and the "
    "rank says that it is its device") {
  const auto backends = hosts(2);
  FakeWorld world(2, {1.0, 0.0, 0});
  std::vector<std::string> texts(2);
  std::atomic<int> ended{0};
  world.run([&](Transport& transport) {
    const auto r = static_cast<std::size_t>(transport.rank());
    LateDevice device(*backends[r]);
    const auto staged = make_staged_transport(world.transport(transport.rank()));
    const Tensor own = filled(device, 3 * kPieceElements, 4.0),
                 target(device, own.shape(), DType::kFloat32);
    if (r == 0) device.allow(1);
    const Ticket ticket =
        staged->start_exchange(pair_with(1 - transport.rank()), own, {target}, {12, 3, 11});
    // what it will copy; the events are the copies' numbers
    CHECK(soon([&] { return device.done(Event{r == 0 ? 1u : 3u}); }));
    texts[r] = lost_text([&] { staged->wait(ticket); });
    ++ended;
    soon([&] { return ended == 2; });  // the other's wait is not to end well
    device.let_go();
  });
  for (std::size_t r = 0; r < 2; ++r) {
    CAPTURE(texts[r]);
    const std::string other = std::to_string(1 - r);
    CHECK(contains(texts[r], "rank " + std::to_string(r) + " waited 1 s"));
    CHECK(contains(texts[r], "the exchange of step 12, bucket 3, round 11 with rank " + other));
    CHECK(contains(texts[r], "(the device has copied 1048576 of 3145728 bytes)") == (r == 0));
  }
}

TEST_CASE("comm/staged: a lost rank ends the wait at its limit") {
  const auto backends = hosts(3);
  // the barrier's limit too: no pause of a busy machine's is to reach it
  FakeWorld world(3, {2.0, 0.0, 0});
  std::vector<std::string> texts(3);
  std::atomic<int> ended{0};
  const auto body = [&](Transport& transport) {
    const auto r = static_cast<std::size_t>(transport.rank());
    transport.world().barrier();
    if (r == 2) return world.stop(2);
    LateDevice device(*backends[r]);
    const auto staged = make_staged_transport(world.transport(transport.rank()));
    Exchange exchange;
    exchange.kind = Exchange::Kind::kGroupSum;
    exchange.group = {0, 1, 2};
    const Tensor own = filled(device, 100, 4.0), target(device, own.shape(), DType::kFloat32);
    const Ticket ticket = staged->start_exchange(exchange, own, {target}, {5, 1, 4});
    texts[r] = lost_text([&] { staged->wait(ticket); });
    ++ended;
    soon([&] { return ended == 2; });
    // so that the transports' ends do not wait their time once more
    fail(ExitCode::kInternal, "test", "over");
  };
  CHECK(error_text([&] { world.run(body); }) == "[test] over");
  for (std::size_t r = 0; r < 2; ++r) {
    CAPTURE(texts[r]);
    for (const char* part : {"step 5", "bucket 1", "round 4", "group of ranks 0, 1, 2",
                             "waited 2 s", "missing: rank 2 last heard of"})
      CHECK(contains(texts[r], part));
    CHECK(!contains(texts[r], "the device"));
  }
}

TEST_CASE("comm/staged: the host's tensors pass as they are") {
  FakeWorld world(2);
  world.run([&](Transport& transport) {
    const auto host = open_backend(DeviceType::kCpu, 1);
    {
      const auto staged = make_staged_transport(world.transport(transport.rank()));
      const Tensor values(*host, Shape{3}, DType::kFloat64);
      set_numbers(values,
                  [&](std::int64_t i) { return static_cast<double>(i) + transport.rank(); });
      const Ticket ticket = staged->start_sum(values, values, {0, -1, -1});
      staged->wait(ticket);
      CHECK(numbers(values) == std::vector<double>{1.0, 3.0, 5.0});
      double one = 1.0;
      staged->world().sum(&one, 1);
      CHECK(one == 2.0);
    }
  });
}

}  // namespace starling::test
