#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "comm/averaging.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/cuda/nccl_world.h"
#include "tests/cuda/soon.h"
#include "tests/cuda/training_job.h"
#include "tests/fakes/cuda/recorder.h"

// Exchanges by NCCL within captured graphs: what steps learn that are replayed, and how a loss in one shows.
namespace starling::tests {
namespace {

using Clock = std::chrono::steady_clock;
using Numbers = std::vector<std::vector<double>>;  ///< parameters and buffers of every rank

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string error_of(const std::function<void()>& body, ExitCode code) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return {};
}

TrainingSettings with_graphs(TrainingSettings settings, bool graphs) {
  settings.start_at_begin = true;
  settings.graphs = graphs;
  return settings;
}

Numbers train(int ranks, const TrainingSettings& settings, int steps) {
  Numbers numbers(static_cast<std::size_t>(ranks));
  NcclWorld world(ranks);
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    TrainingJob job(backend, transport, settings);
    for (int step = 0; step < steps; ++step) job.step();
    job.finish();
    if (settings.graphs) CHECK(static_cast<std::int64_t>(job.graphs()) == job.period());
    numbers[static_cast<std::size_t>(transport.rank())] = job.numbers();
  });
  return numbers;
}

/// With graphs, a rank that ends leaves the aborts behind where these take long, to a thread of their own.
bool all_aborted(const NcclWorld& world, int rank) {
  return soon([&] { return world.fake.aborted(rank) == world.fake.initialised(rank); });
}

/// Steps until all graphs are there, and `more`.
void warm_up(TrainingJob& job, std::int64_t more = 0) {
  const std::int64_t steps = 2 * job.period() + 1 + more;
  for (std::int64_t step = 0; step < steps; ++step) job.step();
}

}  // namespace

TEST_CASE("nccl/graph: replayed steps have the bits of steps that are issued") {
  struct Variant {
    const char* name;
    int ranks;
    void (*set)(TrainingSettings&);
  };
  const Variant variants[] = {
      {"pairs", 2, [](TrainingSettings&) {}},
      {"pairs of four, another partner each round", 4,
       [](TrainingSettings& s) {
         s.topology = {{"type", "one-peer-exp"}};
       }},
      {"several neighbours", 4,
       [](TrainingSettings& s) {
         s.topology = {{"type", "static-exp"}};
       }},
      {"groups of three", 5, [](TrainingSettings& s) { s.topology = groups_of_three(); }},
      {"nodes", 4,
       [](TrainingSettings& s) {
         s.topology = nlohmann::json::parse(R"({"type": "hierarchical", "ranks_per_node": 2, "inter": {"type": "complete"}})");
       }},
      {"all-reduce", 3, [](TrainingSettings& s) { s.algorithm = "allreduce"; }},
      {"all-reduce, fp16 with an overflow check", 2,
       [](TrainingSettings& s) {
         s.algorithm = "allreduce";
         s.in_backward = false;
         s.compute = DType::kFloat16;
         s.check_overflow = true;
       }},
      {"bf16 pairs", 2, [](TrainingSettings& s) { s.bf16_exchange = true; }},
      {"a bf16 group", 3,
       [](TrainingSettings& s) {
         s.bf16_exchange = true;
         s.topology = {{"type", "complete"}};
       }},
      {"a clipped norm, in bf16", 2,
       [](TrainingSettings& s) {
         s.clip.norm = 0.5;
         s.in_backward = false;
         s.compute = DType::kBFloat16;
       }},
  };
  for (const Variant& variant : variants) {
    CAPTURE(std::string(variant.name));
    TrainingSettings settings;
    variant.set(settings);
    const int steps = 7;
    const std::uint64_t launches = cuda::runtime_counters().graph_launches;
    const Numbers eager = train(variant.ranks, with_graphs(settings, false), steps);
    CHECK(cuda::runtime_counters().graph_launches == launches);
    const Numbers replayed = train(variant.ranks, with_graphs(settings, true), steps);
    CHECK(cuda::runtime_counters().graph_launches > launches);
    REQUIRE(eager[0].size() > 100);
    CHECK(replayed == eager);
    if (std::string(settings.algorithm) == "gossip" && settings.topology["type"] != "complete") CHECK(eager[0] != eager[1]);
  }
}

TEST_CASE("nccl/graph: a step's exchanges that start as the next step begins bring the same numbers") {
  TrainingSettings settings;
  const Numbers at_once = train(2, settings, 5);
  settings.start_at_begin = true;
  CHECK(train(2, settings, 5) == at_once);
}

TEST_CASE("nccl/graph: nobody asks for an event of a capture, and nothing is registered in it") {
  NcclWorld world(2);
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    Exchange exchange;
    exchange.kind = Exchange::Kind::kNeighbours;
    exchange.send_to = exchange.receive_from = {1 - transport.rank()};
    exchange.weights = {0.5};
    const Tensor send(backend, Shape{64}, DType::kFloat32), receive(backend, send.shape(), send.dtype());
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
    backend.add({.a = receive, .b = sum, .y = receive});
    capture->end();
    CHECK(world.fake.registrations(transport.rank()) == registered);
    backend.fill(send, 10.0 + transport.rank());
    capture->launch({.pass = 2});
    transport.wait(before);
    CHECK(has(error_of([&] { transport.wait(first); }, ExitCode::kInternal), "not under way"));
    transport.world().barrier();
    if (transport.rank() == 0) cuda::shim::hold_events(false);
    std::vector<float> host(64);
    backend.copy_to_host(receive, host.data());
    CHECK(host == std::vector<float>(64, 10.0f + 1.0f - static_cast<float>(transport.rank()) + 21.0f));
    transport.world().barrier();
  });
}

TEST_CASE("nccl/graph: a capture that is given up takes its tickets with it, and what follows goes on") {
  NcclWorld world(2);
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    const Tensor numbers(backend, Shape{8}, DType::kFloat32);
    backend.fill(numbers, 1.0);
    std::vector<Bucket> none;
    auto capture = Capture::begin(backend, transport, nullptr, none, {});
    REQUIRE(capture);
    const Ticket ticket = transport.start_sum(numbers, numbers, {0, 0, 0});
    // A host's wait on the way of an exchange, as for the mean model.
    CHECK(has(error_of([&] { mean_model(transport, {numbers}); }, ExitCode::kInternal), "while a graph is captured"));
    CHECK(has(error_of([&] { cuda::host_wait_stream(backend.native_stream()); }, ExitCode::kInternal),
              "not permitted when stream is capturing"));
    CHECK(has(error_of([&] { capture->end(); }, ExitCode::kInternal), "cudaStreamSynchronize"));
    capture.reset();
    CHECK(has(error_of([&] { transport.wait(ticket); }, ExitCode::kInternal), "not under way"));
    transport.wait(transport.start_sum(numbers, numbers, {0, 0, 0}));
    std::vector<float> host(8);
    backend.copy_to_host(numbers, host.data());
    CHECK(host == std::vector<float>(8, 2.0f));
  });
}

TEST_CASE("nccl/graph: a rank that stops between launches ends the others in time, with step, buckets, round and ranks") {
  struct Variant {
    const char* topology;
    const char* algorithm;
    int ranks;
    const char* text;
  };
  for (const Variant& variant :
       {Variant{"ring", "gossip", 2, "round 6 with rank 1"}, Variant{"complete", "gossip", 4, "round 6 among ranks 0, 1, 2, 3"},
        Variant{"ring", "allreduce", 2, "over all ranks"}}) {
    CAPTURE(std::string(variant.topology));
    CAPTURE(std::string(variant.algorithm));
    NcclWorld::Options options;
    options.timeout_seconds = 2.0;  // of the steps before the loss too: no pause of a busy machine's is to reach it
    NcclWorld world(variant.ranks, options);
    std::atomic<int> ended{0};
    std::vector<std::string> texts(static_cast<std::size_t>(variant.ranks));
    world.run([&](Transport& transport, cuda::CudaBackend& backend) {
      TrainingSettings settings;
      settings.algorithm = variant.algorithm;
      settings.topology = {{"type", variant.topology}};
      TrainingJob job(backend, transport, with_graphs(settings, true));
      while (job.steps() < 7) job.step();
      transport.world().barrier();
      const int lost = variant.ranks - 1;
      if (transport.rank() == lost) {
        world.fake.stop(lost);
        ++ended;
        wait_for(ended, variant.ranks);
        return;
      }
      wait_for(ended, 1);
      const auto begin = Clock::now();
      texts[static_cast<std::size_t>(transport.rank())] = error_of(
          [&] {
            for (int step = 0; step < 1000; ++step) job.step();
          },
          ExitCode::kLost);
      CHECK(seconds_since(begin) >= 2.0);
      CHECK(seconds_since(begin) < 30.0);
      ++ended;
      wait_for(ended, variant.ranks);
      CHECK(all_aborted(world, transport.rank()));
    });
    for (int rank = 0; rank + 1 < variant.ranks; ++rank) {
      const std::string& text = texts[static_cast<std::size_t>(rank)];
      CAPTURE(text);
      CHECK(has(text, "[transport] rank " + std::to_string(rank) + " waited 2 s (sync.timeout_s) on host "));
      CHECK(has(text, "for the exchanges of step 7 (replayed as a graph), buckets 0 to "));
      CHECK(has(text, variant.text));
    }
  }
}

TEST_CASE("nccl/graph: an asynchronous error between launches is told in NCCL's words, and ends the rank") {
  NcclWorld::Options options;
  options.timeout_seconds = 5.0;  // rank 1 waits so long; less might end the eager steps on a busy machine
  NcclWorld world(2, options);
  std::atomic<int> ended{0};
  std::vector<std::string> texts(2);
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    TrainingJob job(backend, transport, with_graphs({}, true));
    warm_up(job);
    transport.world().barrier();
    if (transport.rank() == 0) world.fake.break_down(0, "remote process has terminated");
    texts[static_cast<std::size_t>(transport.rank())] = error_of(
        [&] {
          for (int step = 0; step < 100000; ++step) job.step();
        },
        ExitCode::kLost);
    ++ended;
    wait_for(ended, 2);
  });
  CAPTURE(texts[0]);
  CAPTURE(texts[1]);
  CHECK(has(texts[0], "rank 0 on host "));
  CHECK(has(texts[0], "remote process has terminated"));
  CHECK(has(texts[1], "(replayed as a graph)"));  // the other one waits its time
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(world.fake.initialised(rank) == 1);
    CHECK(all_aborted(world, rank));
  }
}

TEST_CASE("nccl/graph: what one rank captures and another one does not is an error") {
  NcclWorld::Options options;
  options.timeout_seconds = 5.0;  // nobody is to wait so long
  NcclWorld world(2, options);
  std::atomic<int> ended{0};
  std::vector<std::string> texts(2);
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    TrainingSettings settings = with_graphs({}, transport.rank() == 0);
    TrainingJob job(backend, transport, settings);
    texts[static_cast<std::size_t>(transport.rank())] = error_of(
        [&] {
          for (int step = 0; step < 100000; ++step) job.step();
        },
        ExitCode::kLost);
    ++ended;
    wait_for(ended, 2);
  });
  for (const std::string& text : texts) {
    CAPTURE(text);
    CHECK(has(text, "rank 0 issued an operation within a graph, rank 1 issued it by itself"));
  }
}

TEST_CASE("nccl/graph: launches ask the host for nothing") {
  NcclWorld world(2);
  world.run([&](Transport& transport, cuda::CudaBackend& backend) {
    TrainingJob job(backend, transport, with_graphs({}, true));
    warm_up(job, 2);
    transport.world().barrier();
    const cuda::RuntimeCounters before = cuda::runtime_counters();
    const std::uint64_t allocations = backend.memory_stats().allocations;
    transport.world().barrier();
    for (int step = 0; step < 5; ++step) job.step();
    CHECK(backend.memory_stats().allocations == allocations);
    transport.world().barrier();
    const cuda::RuntimeCounters after = cuda::runtime_counters();
    CHECK(after.graph_launches == before.graph_launches + 2 * 5);
    CHECK(after.launches == before.launches);
    CHECK(after.device_allocations == before.device_allocations);
    CHECK(after.host_waits == before.host_waits);
    transport.world().barrier();
    job.finish();
  });
}

}  // namespace starling::tests
