#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "../staged_jobs.h"
#include "core/error.h"
#include "kernels/open_backend.h"
#include "world.h"

using namespace starling;
using test::Job;
using test::kPieceElements;
using test::LateDevice;
using test::PlayedFlow;
using test::session;

namespace {

Tensor filled(Backend& backend, std::int64_t elements, int rank) {
  Tensor tensor(backend, Shape{elements}, DType::kFloat32);
  test::set_numbers(tensor,
                    [&](std::int64_t i) { return 100.0 * rank + static_cast<double>(i % 1013); });
  return tensor;
}

bool same(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

std::unique_ptr<Topology> topology_if_it_fits(const char* text, int ranks) {
  try {
    return test::make_test_topology(nlohmann::json::parse(text), ranks);
  } catch (const Error&) {
    return nullptr;
  }
}

Exchange ring(int rank, int size) {
  Exchange exchange;
  exchange.kind = Exchange::Kind::kNeighbours;
  exchange.send_to = {(rank + 1) % size};
  exchange.receive_from = {(rank + size - 1) % size};
  return exchange;
}

}  // namespace

TEST_CASE(
    "comm/mpi: a late device's tensors through host memory train to the bits of the fake "
    "transport") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const int n = session().size();
  int jobs = 0;
  for (const test::StagedJob& staged : test::staged_jobs()) {
    const bool sums = std::string(staged.algorithm) == "allreduce";
    if (!sums && !topology_if_it_fits(staged.topology, n)) continue;
    CAPTURE(staged.topology);
    const Job job = test::job_of(staged, jobs++ % 2 == 0);
    LateDevice device(*backend);
    const auto t = make_staged_transport(session().make_transport(20.0));
    CHECK(t->name() == "mpi, through host memory");
    CHECK(test::run_job(job, *t, device) ==
          test::run_fake(job, n)[static_cast<std::size_t>(t->rank())]);
  }
  CHECK(jobs >= 5);
}

TEST_CASE("comm/mpi: odd sizes through host memory bring the numbers of the host's") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  LateDevice device(*backend);  // outlives the transport, which keeps host memory of it
  const auto t = make_staged_transport(session().make_transport(20.0));
  for (const char* text :
       {R"({"type": "complete"})", R"({"type": "static-ring"})", R"({"type": "ring"})",
        R"({"type": "hierarchical", "ranks_per_node": 2, "inter": {"type": "complete"}})"}) {
    const auto topology = topology_if_it_fits(text, t->size());
    if (!topology) continue;
    CAPTURE(text);
    CHECK(test::exchange_sizes(*t, device, *topology, 2) ==
          test::exchange_sizes(*t, *backend, *topology, 2));
    t->world().barrier();
  }
}

TEST_CASE("comm/mpi: a late piece holds back what follows it in its exchange, and nothing else") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const auto t = session().make_transport(20.0);
  const int n = t->size(), r = t->rank(), from = (r + n - 1) % n;
  const std::int64_t size = 3 * kPieceElements + 9;
  const Tensor own = filled(*backend, size, r), came(*backend, Shape{size}, DType::kFloat32);
  const auto flow = std::make_shared<PlayedFlow>(own.bytes(), 1);
  const Ticket late = t->start_exchange(ring(r, n), own, {came}, {1, 0, 1}, flow);
  flow->set_ready(kStagedPieceBytes + 100'000);  // messages go in whole pieces
  CHECK(test::soon([&] { return !t->done(late) && flow->come(0) == kStagedPieceBytes; }));

  const Tensor small = filled(*backend, 100, r), small_came(*backend, Shape{100}, DType::kFloat32);
  t->wait(t->start_exchange(ring(r, n), small, {small_came}, {1, 1, 1}));
  CHECK(same(small_came, filled(*backend, 100, from)));

  // A sum over several of its pieces: those that are ready go.
  const std::int64_t many = 2'000'000;
  const Tensor sum = filled(*backend, many, r), plain = filled(*backend, many, r);
  t->wait(t->start_sum(plain, plain, {1, 2, 1}));
  const auto sum_flow = std::make_shared<PlayedFlow>(sum.bytes(), 1);
  const Ticket summing = t->start_sum(sum, sum, {1, 3, 1}, sum_flow);
  sum_flow->set_ready(sum.bytes() - 4);
  CHECK(test::soon([&] { return !t->done(summing) && sum_flow->come(0) > 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(!t->done(summing));
  CHECK(sum_flow->come(0) < sum.bytes());
  CHECK(!t->done(late));
  CHECK(flow->come(0) == kStagedPieceBytes);
  t->world().barrier();  // all have looked
  sum_flow->set_ready(sum.bytes());
  t->wait(summing);
  CHECK(sum_flow->come(0) == sum.bytes());
  CHECK(same(sum, plain));

  flow->set_ready(own.bytes());
  t->wait(late);
  CHECK(flow->come(0) == own.bytes());
  CHECK(same(came, filled(*backend, size, from)));
}

TEST_CASE(
    "comm/mpi: a device that stands still, and a rank that does not come, end a wait through host "
    "memory at its limit") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  for (const bool by_device : {true, false}) {
    CAPTURE(by_device);
    LateDevice device(*backend);
    const auto t =
        make_staged_transport(session().make_transport(session().rank() == 0 ? 1.0 : 20.0));
    const int n = t->size(), r = t->rank();
    const Tensor own = filled(device, 2 * kPieceElements, r),
                 came(device, own.shape(), DType::kFloat32);
    if (by_device && r == 0) device.allow(1);
    if (!by_device && r == n - 1) std::this_thread::sleep_for(std::chrono::milliseconds(4000));
    const Ticket ticket = t->start_exchange(ring(r, n), own, {came}, {8, 4, 7});
    const auto begin = std::chrono::steady_clock::now();
    const std::string text = test::error_text([&] { t->wait(ticket); });
    CAPTURE(text);
    if (r == 0) {
      CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
      for (const char* part : {"rank 0 waited 1 s", "step 8, bucket 4, round 7"})
        CHECK(text.find(part) != std::string::npos);
      CHECK((text.find("(the device has copied 1048576 of 2097152 bytes)") != std::string::npos) ==
            by_device);
      if (!by_device)
        CHECK(text.find("missing: rank " + std::to_string(n - 1)) != std::string::npos);
      device.let_go();
      std::this_thread::sleep_for(std::chrono::milliseconds(by_device ? 1000 : 5000));
    } else {
      CHECK(text.empty());
    }
  }
}
