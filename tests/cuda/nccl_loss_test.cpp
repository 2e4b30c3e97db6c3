#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "comm/exchange_schedule.h"
#include "tests/cuda/nccl_world.h"
#include "tests/cuda/soon.h"
#include "tests/cuda/training_job.h"
#include "tests/fakes/cuda/recorder.h"

// A rank that is lost, errors that NCCL reports of itself, calls that it refuses: every rank ends, in time, with a text that says where.
namespace starling::tests {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// The error that `work` ends with; empty where there is none.
struct Ended {
  std::string text;
  ExitCode code = ExitCode::kOk;
  double seconds = 0.0;
};
template <class Work>
Ended end_of(const Work& work) {
  Ended ended;
  const auto begin = Clock::now();
  try {
    work();
  } catch (const Error& error) {
    ended.text = error.what();
    ended.code = error.code();
  }
  ended.seconds = seconds_since(begin);
  return ended;
}

}  // namespace

TEST_CASE("nccl/loss: a rank that stops ends the others in time, with step, bucket, round and ranks; nothing hangs") {
  struct Variant {
    const char* topology;
    int ranks;
    const char* partners;  ///< of rank 0
  };
  for (const Variant& variant : {Variant{"ring", 2, "with rank 1"}, Variant{"complete", 4, "in the group of ranks 0, 1, 2, 3"}}) {
    CAPTURE(std::string(variant.topology));
    NcclWorld::Options options;
    options.timeout_seconds = 2.0;  // of the steps before the loss too: no pause of a busy machine's is to reach it
    NcclWorld world(variant.ranks, options);
    std::atomic<int> ended{0};
    std::vector<Ended> ends(static_cast<std::size_t>(variant.ranks));
    world.run([&](Transport& transport, cuda::CudaBackend& backend) {
      TrainingSettings settings;
      settings.topology = {{"type", variant.topology}};
      TrainingJob job(backend, transport, settings);
      job.step();
      job.step();
      transport.world().barrier();
      const int lost = variant.ranks - 1;
      if (transport.rank() == lost) {
        world.fake.stop(lost);
        ++ended;
        wait_for(ended, variant.ranks);
        return;
      }
      wait_for(ended, 1);
      ends[static_cast<std::size_t>(transport.rank())] = end_of([&] {
        for (int step = 0; step < 1000; ++step) job.step();
      });
      ++ended;
      wait_for(ended, variant.ranks);
      // It stays lost, for every call.
      const Tensor numbers(backend, Shape{4}, DType::kFloat32);
      CHECK(end_of([&] { transport.start_sum(numbers, numbers, {9, 0, 9}); }).code == ExitCode::kLost);
      CHECK(end_of([&] { transport.world().barrier(); }).code == ExitCode::kLost);
      CHECK(end_of([&] { transport.prepare({{0, 1}}); }).code == ExitCode::kLost);
      CHECK(world.fake.aborted(transport.rank()) == world.fake.initialised(transport.rank()));
    });
    for (int rank = 0; rank + 1 < variant.ranks; ++rank) {
      const Ended& end = ends[static_cast<std::size_t>(rank)];
      CAPTURE(rank);
      CAPTURE(end.text);
      CHECK(end.code == ExitCode::kLost);
      CHECK(end.seconds >= 2.0);
      CHECK(end.seconds < 30.0);
      CHECK(has(end.text, "[transport] rank " + std::to_string(rank) + " waited 2 s (sync.timeout_s) on host "));
      CHECK(has(end.text, "for the exchange of step 2, bucket 0, round 2 "));
      CHECK(has(end.text, variant.partners));
    }
  }
}

TEST_CASE("nccl/loss: a rank that never comes is noticed where NCCL connects") {
  NcclWorld::Options options;
  options.timeout_seconds = 0.3;
  NcclWorld world(2, options);
  std::atomic<int> ended{0};
  Ended end;
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    if (transport.rank() == 0) {
      const Tensor send(backend, Shape{32}, DType::kFloat32), receive(backend, Shape{32}, DType::kFloat32);
      Exchange exchange;
      exchange.kind = Exchange::Kind::kNeighbours;
      exchange.send_to = exchange.receive_from = {1};
      end = end_of([&] { transport.start_exchange(exchange, send, {receive}, {7, 3, 6}); });
    }
    ++ended;
    wait_for(ended, 2);
  });
  CAPTURE(end.text);
  CHECK(end.code == ExitCode::kLost);
  CHECK(end.seconds < 30.0);
  CHECK(has(end.text, "rank 0 waited 0.3 s"));
  CHECK(has(end.text, "for NCCL to connect the exchange of step 7, bucket 3, round 6 with rank 1"));
  CHECK(world.fake.aborted(0) == 1);
}

TEST_CASE("nccl/loss: an asynchronous error of NCCL's is told in its words, with the exchange that is under way, and ends the rank") {
  NcclWorld world(2);
  std::atomic<int> ended{0};
  Ended end;
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    TrainingJob job(backend, transport, {});
    job.step();
    transport.world().barrier();
    if (transport.rank() == 0) {
      world.fake.stop(1);
      Exchange exchange;
      exchange.kind = Exchange::Kind::kNeighbours;
      exchange.send_to = exchange.receive_from = {1};
      const Tensor send(backend, Shape{32}, DType::kFloat32), receive(backend, Shape{32}, DType::kFloat32);
      const Ticket ticket = transport.start_exchange(exchange, send, {receive}, {4, 2, 3});
      world.fake.break_down(0, "remote process has terminated");
      end = end_of([&] {
        for (int look = 0; look < 20'000 && !transport.done(ticket); ++look) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
    }
    ++ended;
    wait_for(ended, 2);
  });
  CAPTURE(end.text);
  CHECK(end.code == ExitCode::kLost);
  CHECK(end.seconds < 30.0);
  CHECK(has(end.text, "remote process has terminated"));
  CHECK(has(end.text, "the exchange of step 4, bucket 2, round 3 with rank 1"));
  CHECK(!has(end.text, " waited "));  // the loss is not that of its time running out
  CHECK(has(end.text, "rank 0 on host "));
  CHECK(world.fake.aborted(0) == 1);
}

TEST_CASE("nccl/loss: ranks that call different collectives hear of it, whoever sees it first") {
  NcclWorld::Options options;
  for (int attempt = 0; attempt < 40; ++attempt) {
    options.watch_seconds = attempt % 2 == 0 ? 0.01 : 1e-6;  // mostly the rank itself, mostly its watchdog
    NcclWorld world(2, options);
    std::atomic<int> ended{0};
    std::vector<Ended> ends(2);
    world.run([&](Transport& transport, cuda::CudaBackend& backend) {
      const Tensor numbers(backend, Shape{transport.rank() == 0 ? 32 : 64}, DType::kFloat32);
      backend.fill(numbers, 1.0);
      ends[static_cast<std::size_t>(transport.rank())] = end_of([&] {
        transport.wait(transport.start_sum(numbers, numbers, {1, 2, 1}));
        for (int i = 0; i < 1000; ++i) {
          transport.world().barrier();
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      });
      ++ended;
      wait_for(ended, 2);
    });
    for (const Ended& end : ends) {
      CAPTURE(end.text);
      CHECK(end.code == ExitCode::kLost);
      CHECK(has(end.text, "the sum over all ranks of step 1, bucket 2"));
      CHECK(has(end.text, "all_reduce of 32 fp32"));
    }
  }
}

TEST_CASE("nccl/loss: a refused init is heard by all ranks, and leaves the control plane to them") {
  NcclWorld::Options options;
  options.nccl.refuse_init = 2;
  NcclWorld world(3, options);
  std::vector<Ended> ends(3);
  world.run_ranks([&](int rank) {
    cuda::CudaBackend backend(0, false, false, true);
    auto control = world.control(rank);
    ends[static_cast<std::size_t>(rank)] = end_of([&] {
      make_nccl_transport(std::move(control), backend, world.fake.open(rank), {20.0, 0, 0.01});
    });
    REQUIRE(control);
    control->world().barrier();
  });
  for (const Ended& end : ends) {
    CAPTURE(end.text);
    CHECK(end.code == ExitCode::kLost);
    CHECK(end.seconds < 30.0);
    CHECK(has(end.text, "rank 2 "));
    CHECK(has(end.text, "ncclCommInitRankConfig: invalid usage"));
  }
  CHECK(world.fake.aborted(0) == 1);
}

TEST_CASE("nccl/loss: a refused split is heard by all ranks, and nothing goes on") {
  NcclWorld::Options options;
  options.nccl.refuse_split = 1;
  NcclWorld world(4, options);
  std::vector<Ended> ends(4);
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    ends[static_cast<std::size_t>(transport.rank())] = end_of([&] { transport.prepare({{0, 1, 2}}); });
    const Tensor numbers(backend, Shape{4}, DType::kFloat32);
    CHECK(end_of([&] { transport.start_sum(numbers, numbers, {0, 0, 0}); }).code == ExitCode::kLost);
  });
  for (const Ended& end : ends) {
    CAPTURE(end.text);
    CHECK(end.code == ExitCode::kLost);
    CHECK(end.seconds < 30.0);
    CHECK(has(end.text, "rank 1 "));
    CHECK(has(end.text, "ncclCommSplit: system error"));
  }
  for (int rank = 0; rank < 4; ++rank) CHECK(world.fake.aborted(rank) == 1);
}

TEST_CASE("nccl/loss: an error on its way aborts; a quiet end waits for what is in flight") {
  NcclWorld world(2);
  const auto exchange_and_leave = [&](Transport& transport, cuda::CudaBackend& backend) {
    Exchange exchange;
    exchange.kind = Exchange::Kind::kNeighbours;
    exchange.send_to = exchange.receive_from = {1 - transport.rank()};
    const Tensor send(backend, Shape{32}, DType::kFloat32), receive(backend, Shape{32}, DType::kFloat32);
    backend.fill(send, 1.0);
    transport.start_exchange(exchange, send, {receive}, {0, 0, 0});
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
