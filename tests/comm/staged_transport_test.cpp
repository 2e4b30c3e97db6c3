#include "comm/transports/staged.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/open_backend.h"
#include "late_device.h"
#include "played_flow.h"
#include "support.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/exchanges.h"
#include "tests/support/soon.h"

namespace starling::test {
namespace {

std::vector<std::unique_ptr<Backend>> hosts(int ranks) {
  std::vector<std::unique_ptr<Backend>> backends;  // outlive the world, whose messages hold tensors
  for (int r = 0; r < ranks; ++r) backends.push_back(open_backend(DeviceType::kCpu, 1));
  return backends;
}

Tensor filled(Backend& backend, std::int64_t elements, double value) {
  Tensor tensor(backend, Shape{elements}, DType::kFloat32);
  set_numbers(tensor, [&](std::int64_t i) { return value + static_cast<double>(i % 1013); });
  return tensor;
}

bool same(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

}  // namespace

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

}  // namespace starling::test
