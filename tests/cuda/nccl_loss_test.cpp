#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "comm/capture.h"
#include "comm/nccl/watchdog.h"
#include "tests/cuda/nccl_world.h"
#include "tests/cuda/training_job.h"
#include "tests/support/errors.h"
#include "tests/support/exchanges.h"
#include "tests/support/soon.h"

// A rank that is lost, errors that NCCL reports of itself, calls that it refuses: every rank ends,
// in time, with a text that says where.
namespace starling::tests {
namespace {

using test::contains;
using test::pair_with;
using test::soon;
using test::wait_for;

using Clock = std::chrono::steady_clock;

/// The error that `work` ends with; empty where there is none.
struct Ended {
  std::string text;
  ExitCode code = ExitCode::kOk;
  Clock::time_point begin = Clock::now(), end;
};
template <class Work>
Ended end_of(const Work& work) {
  Ended ended;
  try {
    work();
  } catch (const Error& error) {
    ended.text = error.what();
    ended.code = error.code();
  }
  ended.end = Clock::now();
  return ended;
}

/// That it is lost, long before a test would be stopped, and that its text has all parts.
void check_lost(const Ended& end, const std::vector<std::string>& parts) {
  CAPTURE(end.text);
  CHECK(end.code == ExitCode::kLost);
  CHECK(end.end - end.begin < std::chrono::seconds(30));
  for (const std::string& part : parts) CHECK(contains(end.text, part));
}

/// How each rank's `body` ended. None leaves before all have, so that what the others see is not
/// its leaving.
using Body = std::function<void(Transport&, cuda::CudaBackend&)>;
std::vector<Ended> ends_of(NcclWorld& world, int ranks, const Body& body,
                           const Body& afterwards = {}) {
  std::vector<Ended> ends(static_cast<std::size_t>(ranks));
  std::atomic<int> ended{0};
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    ends[static_cast<std::size_t>(transport.rank())] = end_of([&] { body(transport, backend); });
    ++ended;
    wait_for(ended, ranks);
    if (afterwards) afterwards(transport, backend);
  });
  return ends;
}

Ticket exchange_with(int partner, Transport& transport, cuda::CudaBackend& backend,
                     const ExchangeLabel& label) {
  const Tensor send(backend, Shape{32}, DType::kFloat32),
      receive(backend, Shape{32}, DType::kFloat32);
  backend.fill(send, 1.0);
  return transport.start_exchange(pair_with(partner), send, {receive}, label);
}

}  // namespace

TEST_CASE(
    "nccl/loss: the exchanges of a graph are called by the launch's step, their buckets and peers, "
    "or by all ranks where they are sums") {
  NcclGraph graph{.step = 3,
                  .works = {{.exchange = pair_with(1), .label = {3, 0, 2}},
                            {.exchange = pair_with(4), .label = {3, 1, 2}}}};
  CHECK(graph.text(7) ==
        "the exchanges of step 7 (replayed as a graph), buckets 0 to 1, round 6 with ranks 1, 4");
  graph.works = {{.label = {3, 2, 2}, .sum = true}};
  CHECK(graph.text(3) == "the exchanges of step 3 (replayed as a graph), bucket 2, over all ranks");
}

TEST_CASE(
    "nccl/loss: a rank that stops ends the others in time, with step, buckets, round and ranks; "
    "nothing hangs") {
  struct Variant {
    bool graphs;
    const char* algorithm;
    const char* topology;
    int ranks;
    const char* what;  ///< the others wait for
  };
  for (const Variant& variant :
       {Variant{false, "gossip", "ring", 2,
                "the exchange of step 2, bucket 0, round 2 with rank 1"},
        Variant{false, "gossip", "complete", 4,
                "the exchange of step 2, bucket 0, round 2 in the group of ranks 0, 1, 2, 3"},
        Variant{true, "gossip", "ring", 2, "round 6 with rank 1"},
        Variant{true, "gossip", "complete", 4, "round 6 among ranks 0, 1, 2, 3"},
        Variant{true, "allreduce", "ring", 2, "over all ranks"}}) {
    CAPTURE(variant.graphs);
    CAPTURE(std::string(variant.algorithm));
    CAPTURE(std::string(variant.topology));
    // The limit is of the steps before the loss too: no pause of a busy machine's is to reach it.
    NcclWorld world(variant.ranks, {.timeout_seconds = 2.0});
    const int lost = variant.ranks - 1;
    std::atomic<bool> stopped{false};
    Clock::time_point stopped_at;
    const auto train = [&](Transport& transport, cuda::CudaBackend& backend) {
      TrainingJob job(backend, transport,
                      {.algorithm = variant.algorithm,
                       .topology = {{"type", variant.topology}},
                       .start_at_begin = variant.graphs,
                       .graphs = variant.graphs});
      while (job.steps() < (variant.graphs ? 7 : 2)) job.step();
      transport.world().barrier();
      if (transport.rank() == lost) {
        world.fake.stop(lost);
        stopped_at = Clock::now();
        stopped = true;
        return;
      }
      soon([&] { return stopped.load(); });
      for (int step = 0; step < 1000; ++step) job.step();
    };
    const std::vector<Ended> ends =
        ends_of(world, variant.ranks, train, [&](Transport& transport, cuda::CudaBackend& backend) {
          if (transport.rank() == lost) return;
          // It stays lost, for every call.
          const Tensor numbers(backend, Shape{4}, DType::kFloat32);
          check_lost(end_of([&] { transport.start_sum(numbers, numbers, {9, 0, 9}); }), {});
          check_lost(end_of([&] { transport.world().barrier(); }), {});
          check_lost(end_of([&] { transport.prepare({{0, 1}}); }), {});
          // With graphs, a rank that ends leaves the aborts behind where these take long, to a
          // thread of their own.
          CHECK(soon([&] {
            return world.fake.aborted(transport.rank()) == world.fake.initialised(transport.rank());
          }));
        });
    for (int rank = 0; rank < lost; ++rank) {
      CAPTURE(rank);
      std::vector<std::string> parts = {
          "[transport] rank " + std::to_string(rank) + " waited 2 s (sync.timeout_s) on host ",
          variant.what};
      if (variant.graphs)
        parts.emplace_back("for the exchanges of step 7 (replayed as a graph), buckets 0 to ");
      const Ended& end = ends[static_cast<std::size_t>(rank)];
      check_lost(end, parts);
      CHECK(end.end - stopped_at >= std::chrono::seconds(2));
    }
  }
}

TEST_CASE("nccl/loss: a rank that never comes is noticed where NCCL connects") {
  NcclWorld world(2, {.timeout_seconds = 0.3});
  const auto ends = ends_of(world, 2, [&](Transport& transport, cuda::CudaBackend& backend) {
    if (transport.rank() == 0) exchange_with(1, transport, backend, {7, 3, 6});
  });
  check_lost(ends[0],
             {"rank 0 waited 0.3 s",
              "for NCCL to connect the exchange of step 7, bucket 3, round 6 with rank 1"});
  CHECK(world.fake.aborted(0) == 1);
}

TEST_CASE(
    "nccl/loss: an asynchronous error of NCCL's is told in its words, with the exchange that is "
    "under way, and ends the rank") {
  NcclWorld world(2);
  const auto ends = ends_of(world, 2, [&](Transport& transport, cuda::CudaBackend& backend) {
    TrainingJob job(backend, transport, {});
    job.step();
    transport.world().barrier();
    if (transport.rank() == 1) return;
    world.fake.stop(1);
    const Ticket ticket = exchange_with(1, transport, backend, {4, 2, 3});
    world.fake.break_down(0, "remote process has terminated");
    for (int look = 0; look < 20'000 && !transport.done(ticket); ++look)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  check_lost(
      ends[0],
      {"rank 0 on host ", "remote process has terminated",
       "NCCL reported an error in or after the exchange of step 4, bucket 2, round 3 with rank 1"});
  // the loss is not that of its time running out
  CHECK(ends[0].text.find(" waited ") == std::string::npos);
  CHECK(world.fake.aborted(0) == 1);
}

TEST_CASE(
    "nccl/loss: an asynchronous error between replayed steps is told in NCCL's words, and ends all "
    "ranks") {
  // rank 1 waits so long; less might end the eager steps on a busy machine
  NcclWorld world(2, {.timeout_seconds = 5.0});
  const auto ends = ends_of(world, 2, [&](Transport& transport, cuda::CudaBackend& backend) {
    TrainingJob job(backend, transport, {.start_at_begin = true, .graphs = true});
    while (job.steps() < 2 * job.period() + 1) job.step();
    transport.world().barrier();
    if (transport.rank() == 0) world.fake.break_down(0, "remote process has terminated");
    for (int step = 0; step < 100'000; ++step) job.step();
  });
  check_lost(ends[0], {"rank 0 on host ", "remote process has terminated"});
  check_lost(ends[1], {"(replayed as a graph)"});  // the other one waits its time
  for (int rank = 0; rank < 2; ++rank)
    CHECK(soon([&] { return world.fake.aborted(rank) == world.fake.initialised(rank); }));
}

TEST_CASE(
    "nccl/loss: an error of NCCL's in a capture says what was captured, and how to run without "
    "graphs") {
  NcclWorld world(2, {.watch_seconds = 1e3});  // the rank sees it itself
  const auto ends = ends_of(world, 2, [&](Transport& transport, cuda::CudaBackend& backend) {
    const Tensor numbers(backend, Shape{32}, DType::kFloat32);
    backend.fill(numbers, 1.0);
    transport.wait(transport.start_sum(numbers, numbers, {3, 2, 3}));
    transport.world().barrier();
    if (transport.rank() == 1) return;
    std::vector<Bucket> none;
    const auto capture = Capture::begin(backend, transport, nullptr, none, {.pass = 4});
    world.fake.break_down(0, "unhandled cuda error");
    transport.start_sum(numbers, numbers, {4, 2, 4});
  });
  check_lost(ends[0], {" the sum over all ranks of step 4, bucket 2, captured into a graph",
                       "unhandled cuda error", "; \"cuda_graphs\": false issues every step"});
  CHECK(ends[1].text.empty());
}

TEST_CASE(
    "nccl/loss: an error of NCCL's in a call is told with the call's exchange, whoever sees it "
    "first") {
  for (int attempt = 0; attempt < 40; ++attempt) {
    // mostly the rank itself, mostly its watchdog
    NcclWorld world(2, {.watch_seconds = attempt % 2 == 0 ? 0.01 : 1e-6});
    // Ranks whose sums differ in size: NCCL fails on both.
    const auto ends = ends_of(world, 2, [&](Transport& transport, cuda::CudaBackend& backend) {
      const Tensor numbers(backend, Shape{transport.rank() == 0 ? 32 : 64}, DType::kFloat32);
      backend.fill(numbers, 1.0);
      transport.wait(transport.start_sum(numbers, numbers, {1, 2, 1}));
      for (int i = 0; i < 1000; ++i) {
        transport.world().barrier();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    for (const Ended& end : ends)
      check_lost(end, {"the sum over all ranks of step 1, bucket 2", "all_reduce of 32 fp32"});
  }
}

TEST_CASE("nccl/loss: a refused init is heard by all ranks, and leaves the control plane to them") {
  NcclWorld world(3, {.nccl = {.refuse_init = 2}});
  std::vector<Ended> ends(3);
  world.run_ranks([&](int rank) {
    cuda::CudaBackend backend(0, false, false, true);
    auto control = world.control(rank);
    ends[static_cast<std::size_t>(rank)] = end_of([&] { world.open(std::move(control), backend); });
    REQUIRE(control);
    control->world().barrier();
  });
  for (const Ended& end : ends)
    check_lost(end, {"rank 2 ", "ncclCommInitRankConfig: invalid usage"});
  CHECK(world.fake.aborted(0) == 1);
}

TEST_CASE("nccl/loss: a refused split is heard by all ranks, and nothing goes on") {
  NcclWorld world(4, {.nccl = {.refuse_split = 1}});
  const auto ends = ends_of(
      world, 4,
      [&](Transport& transport, cuda::CudaBackend&) {
        transport.prepare({{0, 1, 2}});
      },
      [&](Transport& transport, cuda::CudaBackend& backend) {
        const Tensor numbers(backend, Shape{4}, DType::kFloat32);
        check_lost(end_of([&] { transport.start_sum(numbers, numbers, {0, 0, 0}); }), {});
      });
  for (const Ended& end : ends) check_lost(end, {"rank 1 ", "ncclCommSplit: system error"});
  for (int rank = 0; rank < 4; ++rank) CHECK(world.fake.aborted(rank) == 1);
}

TEST_CASE("nccl/loss: an error on its way aborts; a quiet end waits for what is in flight") {
  NcclWorld world(2);
  const auto exchange_and_leave = [&](Transport& transport, cuda::CudaBackend& backend) {
    exchange_with(1 - transport.rank(), transport, backend, {0, 0, 0});
  };
  world.run(exchange_and_leave);
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(world.fake.destroyed(rank) == 1);
    CHECK(world.fake.aborted(rank) == 0);
  }
  world.run_ranks([&](int rank) {
    const Ended end = end_of([&] {
      cuda::CudaBackend backend(0, false, false, true);
      const auto transport = world.open(rank, backend);
      exchange_and_leave(*transport, backend);
      fail(ExitCode::kUsage, "test", "something else");
    });
    CHECK(end.code == ExitCode::kUsage);
    CHECK(world.fake.aborted(rank) == 1);
    CHECK(world.fake.destroyed(rank) == 1);
  });
}

}  // namespace starling::tests
