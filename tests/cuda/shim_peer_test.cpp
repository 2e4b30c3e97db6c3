#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/training/config/plugins.h"
#include "comm/agreement.h"
#include "comm/algorithm.h"
#include "comm/bucket.h"
#include "comm/shared/peer_transport.h"
#include "comm/transports/plan.h"
#include "comm/transports/staged.h"
#include "core/config.h"
#include "core/error.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/optimizer.h"
#include "tests/cuda/support.h"
#include "tests/cuda/training_job.h"
#include "tests/fakes/cuda/peer_fake.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/fakes/transport/thread_sharing.h"
#include "tests/support/errors.h"
#include "tests/support/exchanges.h"
#include "tests/support/numbers_of_ranks.h"
#include "tests/support/soon.h"
#include "tests/support/topologies.h"
#include "tests/support/transport_of.h"
#include "topology/topology.h"

// Peer memory (comm/shared/peer_transport.h) among threads with a GPU of the shim's each: what is
// learned, what is asked of the device in which order, and what happens when something is refused
// or somebody stops.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;
using RankNumbers = test::NumbersOfRanks;

/// Gossip on a few small buckets, step by step or as graphs.
struct PeerJobSettings {
  nlohmann::json topology = {{"type", "ring"}};
  int steps = 9;
  /// Steps are captured and replayed, once a period and one more have been done
  bool graphs = false;
  bool start_at_begin = false;  ///< as with graphs
};

class PeerJob {
 public:
  PeerJob(Backend& backend, Transport& transport, const PeerJobSettings& settings)
      : backend_(backend), transport_(transport), settings_(settings) {
    register_builtins();
    for (const Shape& shape : {Shape{7, 5}, Shape{33}, Shape{6, 3, 3, 2}, Shape{100}}) {
      auto parameter = std::make_unique<Parameter>();
      parameter->index = static_cast<int>(parameters_.size());
      parameter->name = "p" + std::to_string(parameters_.size());
      parameter->shape = shape;
      order_.push_back(parameter.get());
      parameters_.push_back(std::move(parameter));
    }
    plan_ = plan_buckets(order_, {}, DType::kFloat32, 300);
    ConfigSection optimizer(nlohmann::json{{"momentum", 0.9}}, "optimizer");
    rule_ = optimizers().make("sgd", "optimizer.type", optimizer);
    buckets_ = make_buckets(plan_, backend, DType::kFloat32, *rule_, false);
    if (transport.size() > 1) {
      ConfigSection section(settings.topology, "topology");
      topology_ = make_topology(section, {transport.size(), transport.size()});
    }
    mixer_ = transport.make_mixer(backend);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      set(buckets_[b].parameters,
          static_cast<double>(transport.rank()) + static_cast<double>(b) / 8);
      set(buckets_[b].gradients, 0.01 * static_cast<double>(transport.rank() + 1));
    }
    backend.synchronize();
    algorithm_ = make_algorithm(algorithm_of("gossip"),
                                {.backend = backend,
                                 .transport = transport,
                                 .mixer = *mixer_,
                                 .rule = *rule_,
                                 .buckets = buckets_,
                                 .topology = topology_.get(),
                                 .start_at_begin = settings.graphs || settings.start_at_begin});
  }
  ~PeerJob() {
    try {
      backend_.synchronize();  // graphs name the buckets' memory
    } catch (...) {
    }
  }
  PeerJob(const PeerJob&) = delete;
  PeerJob& operator=(const PeerJob&) = delete;

  void run() {
    for (int i = 0; i < settings_.steps; ++i) step();
    finish();
  }
  void step() {
    const StepInfo info{t_, t_ + 1, 1.0, 0.1 / static_cast<double>(t_ + 1)};
    if (settings_.graphs && transport_.size() > 1) {
      by_graph(info);
    } else {
      issue(info);
    }
    ++t_;
  }
  void finish() {
    algorithm_->finish();
    backend_.synchronize();
  }
  std::vector<double> numbers() const {
    std::vector<double> all;
    for (const Bucket& bucket : buckets_) {
      std::vector<float> part(static_cast<std::size_t>(bucket.layout->elements));
      backend_.copy_to_host(bucket.parameters, part.data());
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  std::vector<Bucket>& buckets() { return buckets_; }
  int replays() const { return replays_; }
  Mixer& mixer() { return *mixer_; }
  void graphs(bool on) { settings_.graphs = on; }

 private:
  void set(const Tensor& tensor, double base) {
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(base + 0.37 * static_cast<double>(i % 29) / 28.0);
    backend_.copy_from_host(values.data(), tensor);
  }
  void issue(const StepInfo& info) {
    algorithm_->begin(info);
    for (std::size_t b = 0; b < buckets_.size(); ++b) algorithm_->bucket_ready(static_cast<int>(b));
    algorithm_->backward_done();
  }
  void by_graph(const StepInfo& info) {
    std::string why;
    const std::int64_t period = algorithm_->graph_period(why);
    if (period == 0) fail(ExitCode::kInternal, "test", "no period: {}", why);
    if (info.step < period + 1) return issue(info);
    const StepValues values{.pass = info.step, .lr = info.lr, .step = info.optimizer_step};
    std::unique_ptr<Capture>& capture = captures_[info.step % period];
    if (capture) {
      capture->launch(values);
      ++replays_;
      return;
    }
    capture = Capture::begin(backend_, transport_, mixer_.get(), buckets_, values);
    require(capture != nullptr, "test", "this backend has no graphs");
    issue(info);
    capture->end();
    capture->launch(values);
  }

  Backend& backend_;
  Transport& transport_;
  PeerJobSettings settings_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<Parameter*> order_;
  BucketPlan plan_;
  std::unique_ptr<OptimizerRule> rule_;
  std::vector<Bucket> buckets_;
  std::unique_ptr<Topology> topology_;
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<Algorithm> algorithm_;
  std::map<std::int64_t, std::unique_ptr<Capture>> captures_;
  std::int64_t t_ = 0;
  int replays_ = 0;
};

struct PeerWorldOptions {
  double timeout_seconds = 20.0;
  int replica = 1;
  int ranks_per_host = 0;  ///< 0: all on one
};

/// A rank's end: peer memory over host memory, or `refusal` says why not.
std::unique_ptr<Transport> open_peers(FakeWorld& world, int rank, Backend& backend,
                                      const PeerWorldOptions& options, std::string& refusal) {
  auto between = make_staged_transport(world.transport(rank));
  const int host = options.ranks_per_host > 0 ? rank / options.ranks_per_host : 0;
  auto peers = make_peer_transport(std::move(between), backend,
                                   make_thread_sharing("host " + std::to_string(host), false),
                                   {options.timeout_seconds, options.replica, 1024}, refusal);
  return peers ? std::move(peers) : std::move(between);
}

/// Calls body(transport, backend) on a thread for each rank.
void with_peers(int ranks, const PeerWorldOptions& options,
                const std::function<void(Transport&, cuda::CudaBackend&)>& body) {
  FakeWorldOptions control;
  control.timeout_seconds = 20.0;
  control.ranks_per_host = options.ranks_per_host;
  FakeWorld world(ranks, control);
  world.run([&](Transport& end) {
    cuda::CudaBackend backend(0, false, false, true);
    std::string refusal;
    const auto transport = open_peers(world, end.rank(), backend, options, refusal);
    require(refusal.empty(), "test", "peer memory was refused: {}", refusal);
    body(*transport, backend);
  });
}

RankNumbers by_peers(int ranks, const PeerJobSettings& settings,
                     const PeerWorldOptions& options = {}) {
  RankNumbers numbers(static_cast<std::size_t>(ranks));
  with_peers(ranks, options, [&](Transport& transport, cuda::CudaBackend& backend) {
    PeerJob job(backend, transport, settings);
    CHECK(job.buckets().size() >= 3);
    for (const Bucket& bucket : job.buckets())
      CHECK(static_cast<bool>(bucket.spare) == (transport.size() > 1));
    job.run();
    numbers[static_cast<std::size_t>(transport.rank())] = job.numbers();
  });
  return numbers;
}

/// Through host memory.
RankNumbers without_peers(int ranks, const PeerJobSettings& settings) {
  RankNumbers numbers(static_cast<std::size_t>(ranks));
  FakeWorld world(ranks);
  world.run([&](Transport& end) {
    cuda::CudaBackend gpu(0, false, false, true);
    const auto staged = make_staged_transport(world.transport(end.rank()));
    PeerJob job(gpu, *staged, settings);
    job.run();
    numbers[static_cast<std::size_t>(end.rank())] = job.numbers();
  });
  return numbers;
}

using test::contains;
using test::soon;
using test::types_for;
using test::wait_for;

/// The kernels on a stream, a letter each: a wait, a signal, or an update.
std::string order_on(cuda::StreamHandle stream, const std::vector<Call>& calls) {
  std::string order;
  for (const Call& call : calls) {
    if (call.kind != CallKind::kLaunch || call.stream != stream) continue;
    order += contains(call.label, "CudaPeerMemory::await")    ? 'a'
             : contains(call.label, "CudaPeerMemory::signal") ? 's'
                                                              : 'u';
  }
  return order;
}

}  // namespace

TEST_CASE("cuda/peers: every topology on 1 to 5 ranks ends with the bits of host memory") {
  std::size_t ran = 0;
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (const std::string& type : types_for(ranks)) {
      CAPTURE(ranks);
      CAPTURE(type);
      PeerJobSettings settings{.topology = {{"type", type}}, .steps = 7};
      const RankNumbers found = by_peers(ranks, settings);
      CHECK(found == without_peers(ranks, settings));
      if (++ran % 3 != 0) continue;
      settings.start_at_begin = true;
      CHECK(by_peers(ranks, settings) == found);
    }
  }
  CHECK(ran >= 30);
  CHECK(cuda::shim::mapped_blocks() == 0);
}

TEST_CASE("cuda/peers: pairs within hosts, messages between them") {
  for (const char* type : {"ring", "static-exp", "complete", "base-2"}) {
    CAPTURE(std::string(type));
    const PeerJobSettings settings{.topology = {{"type", type}}};
    CHECK(by_peers(4, settings, {.ranks_per_host = 2}) == without_peers(4, settings));
  }
}

TEST_CASE("cuda/peers: eager steps go on after replayed ones") {
  PeerJobSettings settings{.steps = 16};
  const RankNumbers eager = by_peers(4, settings);
  RankNumbers mixed(4);
  settings.graphs = true;
  with_peers(4, {}, [&](Transport& transport, cuda::CudaBackend& backend) {
    PeerJob job(backend, transport, settings);
    for (int i = 0; i < 9; ++i) job.step();
    CHECK(job.replays() >= 2);
    job.graphs(false);
    transport.world().barrier();
    if (transport.rank() == 0) cuda::shim::start_recording();
    transport.world().barrier();
    job.step();
    transport.world().barrier();
    if (transport.rank() == 0) {
      // Who has read what the graphs published, the host does not know: all are waited for.
      std::string wanted(job.buckets().size(), 's');
      for (std::size_t b = 0; b < job.buckets().size(); ++b) wanted += "aaus";
      CHECK(order_on(handle_of(backend, StreamKind::kUpdate), cuda::shim::stop_recording()) ==
            wanted);
    }
    for (int i = 0; i < 2; ++i) job.step();
    job.graphs(true);
    for (int i = 0; i < 4; ++i) job.step();
    CHECK(job.replays() >= 6);
    job.finish();
    mixed[static_cast<std::size_t>(transport.rank())] = job.numbers();
  });
  CHECK(mixed == eager);
}

TEST_CASE("cuda/peers: why exchanges cannot be captured, and what repeats") {
  const auto why = [](const char* type, int ranks, int per_host) {
    std::vector<std::string> answers(static_cast<std::size_t>(ranks));
    with_peers(
        ranks, {.ranks_per_host = per_host}, [&](Transport& transport, cuda::CudaBackend& backend) {
          PeerJob job(backend, transport, {.topology = {{"type", type}}});
          answers[static_cast<std::size_t>(transport.rank())] = job.mixer().why_not_captured();
        });
    CHECK(std::count(answers.begin(), answers.end(), answers[0]) == ranks);
    return answers[0];
  };
  CHECK(why("ring", 4, 0).empty());
  CHECK(why("static-exp", 3, 0).empty());
  CHECK(contains(why("complete", 3, 0), "through host memory"));  // sums are the other transport's
  CHECK(contains(why("ring", 4, 2), "through host memory"));
}

TEST_CASE(
    "cuda/peers: an update follows its two waits and precedes its two signals on its stream, and "
    "the host waits for nothing") {
  constexpr int kRanks = 2;
  std::vector<Call> calls;
  std::vector<cuda::StreamHandle> update(kRanks);
  std::size_t buckets = 0;
  with_peers(kRanks, {}, [&](Transport& transport, cuda::CudaBackend& backend) {
    TrainingJob job(backend, transport, {});
    for (int i = 0; i < 3; ++i) job.step();
    update[static_cast<std::size_t>(transport.rank())] = handle_of(backend, StreamKind::kUpdate);
    transport.world().barrier();
    if (transport.rank() == 0) {
      buckets = job.buckets();
      cuda::shim::hold_events(true);
      cuda::shim::start_recording();
    }
    transport.world().barrier();
    job.step();
    transport.world().barrier();
    if (transport.rank() == 0) {
      calls = cuda::shim::stop_recording();
      cuda::shim::hold_events(false);
    }
    transport.world().barrier();
    job.finish();
  });
  REQUIRE(buckets >= 3);
  for (const Call& call : calls) {
    CHECK(call.kind != CallKind::kHostWait);
    CHECK(call.kind != CallKind::kAllocate);
    CHECK(call.kind != CallKind::kFree);
    if (contains(call.label, "CudaPeerMemory"))
      CHECK(std::count(update.begin(), update.end(), call.stream) == 1);
  }
  for (const cuda::StreamHandle stream : update) {
    std::string wanted;
    for (std::size_t b = 0; b < buckets; ++b) wanted += "aauss";
    CHECK(order_on(stream, calls) == wanted);
  }
}

namespace {

/// Two ranks that exchange one bucket with each other.
struct Pair {
  Pair(Transport& to, cuda::CudaBackend& with)
      : transport(to),
        backend(with),
        job(with, to, {}),
        bucket(job.buckets()[0]),
        exchange(test::pair_with(1 - to.rank())) {}
  Ticket start(std::int64_t step) {
    return job.mixer().start(exchange, bucket, {}, received, {step, 0, step});
  }
  /// The first number of what came.
  float came() {
    std::vector<float> numbers(static_cast<std::size_t>(received.at(0).elements()));
    backend.copy_to_host(received[0], numbers.data());
    return numbers[0];
  }
  Transport& transport;
  cuda::CudaBackend& backend;
  PeerJob job;
  Bucket& bucket;
  Exchange exchange;
  std::vector<Tensor> received;
};

}  // namespace

TEST_CASE("cuda/peers: a slow reader delays the writer of what it reads, and nobody else") {
  std::atomic<bool> looked{false}, read{false};
  with_peers(2, {}, [&](Transport& transport, cuda::CudaBackend& backend) {
    Pair pair(transport, backend);
    Mixer& mixer = pair.job.mixer();
    backend.fill(pair.bucket.parameters, 10.0 + transport.rank());
    const StreamScope scope(backend, StreamKind::kUpdate);
    mixer.wait(pair.start(0));
    CHECK(pair.came() == 11.0f - static_cast<float>(transport.rank()));
    mixer.wait_until_writable(pair.bucket, {1, 0, 0});  // nobody has read the other buffer yet
    backend.fill(pair.bucket.target(), 20.0 + transport.rank());
    pair.bucket.flip();
    if (transport.rank() == 1) {
      CHECK(pair.came() == 10.0f);  // what was published stays, though its owner writes
      soon([&] { return looked.load(); });
      // a writer that does not wait is through by then
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      CHECK(pair.came() == 10.0f);
      read = true;
      mixer.release({1, 0, 0});
      mixer.wait(pair.start(1));
    } else {
      mixer.release({1, 0, 0});
      const Ticket ticket = pair.start(1);
      CHECK(!read.load());
      looked = true;
      mixer.wait_until_writable(pair.bucket, {2, 0, 1});
      CHECK(read.load());
      backend.fill(pair.bucket.target(), 30.0);
      mixer.wait(ticket);
    }
    CHECK(pair.came() == 21.0f - static_cast<float>(transport.rank()));
    mixer.release({2, 0, 1});
    transport.world().barrier();
  });
}

TEST_CASE("cuda/peers: what one rank refuses, all ranks go without, for the same reason") {
  using cuda::shim::PeerRefusal;
  struct Case {
    PeerRefusal what;
    const char* reason;
  };
  for (const auto& [what, reason] :
       {Case{PeerRefusal::kExport,
             "rank 1: its GPU's memory cannot be exported as a file descriptor"},
        Case{PeerRefusal::kAccess,
             "rank 1: the GPU of rank 0: the GPUs cannot access each other's memory "
             "(cudaDeviceCanAccessPeer)"},
        Case{PeerRefusal::kCreate, "rank 1: cuMemCreate: out of memory (2)"},
        Case{PeerRefusal::kMap, "rank 1: cuMemImportFromShareableHandle: invalid argument (1)"}}) {
    CAPTURE(std::string(reason));
    FakeWorld world(3);
    world.run([&](Transport& end) {
      cuda::CudaBackend backend(0, false, false, true);
      if (end.rank() == 1) cuda::shim::refuse_peers(what);
      std::string refusal;
      auto between = make_staged_transport(world.transport(end.rank()));
      CHECK(make_peer_transport(std::move(between), backend, make_thread_sharing("host", false),
                                {20.0}, refusal) == nullptr);
      CHECK(between != nullptr);
      CHECK(refusal == reason);
    });
  }
  // Hosts with one rank each have nothing to share, and nothing to say.
  FakeWorld world(2);
  world.run([&](Transport& end) {
    cuda::CudaBackend backend(0, false, false, true);
    std::string refusal = "something";
    auto between = make_staged_transport(world.transport(end.rank()));
    const std::string host = "host " + std::to_string(end.rank());
    CHECK(make_peer_transport(std::move(between), backend, make_thread_sharing(host, false), {20.0},
                              refusal) == nullptr);
    CHECK(refusal.empty());
  });
  CHECK(cuda::shim::mapped_blocks() == 0);
}

TEST_CASE("cuda/peers: memory for the buckets that is refused later ends in host memory too") {
  const RankNumbers wanted = without_peers(2, {});
  for (const auto what : {cuda::shim::PeerRefusal::kCreate, cuda::shim::PeerRefusal::kMap}) {
    RankNumbers numbers(2);
    with_peers(2, {}, [&](Transport& transport, cuda::CudaBackend& backend) {
      if (transport.rank() == 1) cuda::shim::refuse_peers(what);
      PeerJob job(backend, transport, {});
      for (const Bucket& bucket : job.buckets()) CHECK(!bucket.spare);
      CHECK(contains(transport.why_not_captured(), "through host memory"));
      job.run();
      numbers[static_cast<std::size_t>(transport.rank())] = job.numbers();
    });
    CHECK(numbers == wanted);
  }
  CHECK(cuda::shim::mapped_blocks() == 0);
}

namespace {

/// What ranks without NCCL take and say; with `refuses`, rank 1 reaches no other GPU.
std::string chosen(const std::string& wanted, bool refuses) {
  std::vector<std::string> names(2);
  FakeWorld world(2);
  world.run([&](Transport& end) {
    cuda::CudaBackend backend(0, false, false, true);
    std::string& name = names[static_cast<std::size_t>(end.rank())];
    if (refuses && end.rank() == 1) cuda::shim::refuse_peers(cuda::shim::PeerRefusal::kAccess);
    try {
      const auto open = [](std::string& why) -> std::unique_ptr<Nccl> {
        why = "this build has none";
        return nullptr;
      };
      const auto transport =
          transport_of(wanted).make(world.transport(end.rank()), {backend, 20.0, 0, false, open});
      PeerJob job(backend, *transport, {});
      job.run();
      name = job.mixer().name();
    } catch (const AgreedError& error) {
      CHECK(error.code() == ExitCode::kUsage);
      name = error.what();
    }
  });
  CHECK(names[0] == names[1]);
  return names[0];
}

}  // namespace

TEST_CASE(
    "cuda/peers: auto and direct take peer memory, nccl and staged do not; where it is refused, "
    "direct is an error") {
  CHECK(chosen("auto", false) == "peer memory + fake, through host memory");
  CHECK(chosen("direct", false) == "peer memory + fake, through host memory");
  CHECK(chosen("staged", false) == "fake, through host memory");
  CHECK(chosen("mpi", false) == "fake, through host memory");
  CHECK(chosen("auto", true) == "fake, through host memory");
  const std::string refused = chosen("direct", true);
  CHECK(contains(refused,
                 "sync.transport is direct, but the ranks of a host cannot share their GPUs' "
                 "memory: rank 1: the GPU of rank 0: "));
  CHECK(contains(refused, "; or sync.transport auto, nccl or staged"));
}

TEST_CASE("cuda/peers: where a rank stops, the others end in time and say for whom they waited") {
  for (const bool graphs : {false, true}) {
    CAPTURE(graphs);
    constexpr int kRanks = 3;
    std::vector<std::string> errors(kRanks);
    std::atomic<int> ended{0};
    const PeerJobSettings settings{.topology = {{"type", "static-exp"}}, .graphs = graphs};
    // The limit is that of the steps before too: no pause of a busy machine's is to reach it.
    with_peers(
        kRanks, {.timeout_seconds = 2.0}, [&](Transport& transport, cuda::CudaBackend& backend) {
          const auto begin = std::chrono::steady_clock::now();
          PeerJob job(backend, transport, settings);  // one that goes says that it has ended
          errors[static_cast<std::size_t>(transport.rank())] =
              test::error_text(ExitCode::kLost, [&] {
                for (int i = 0; i < (transport.rank() == 2 ? 8 : 20); ++i) job.step();
              });
          CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() <
                30.0);
          ++ended;
          wait_for(ended, kRanks);
        });
    CHECK(errors[2].empty());
    for (int rank = 0; rank < 2; ++rank) {
      const std::string& text = errors[static_cast<std::size_t>(rank)];
      CAPTURE(text);
      CHECK(contains(text, "rank " + std::to_string(rank) + " waited 2 s (sync.timeout_s)"));
      CHECK(contains(text, "the parameters of rank 2 for step 8, bucket "));
      CHECK(contains(text, ", round "));
      CHECK(contains(text, "missing: rank 2 last heard of "));
      CHECK(contains(text, "(published bucket "));
    }
  }
}

TEST_CASE("cuda/peers: where a rank of a replica stops, the other one says for what it waited") {
  std::vector<std::string> errors(4);
  std::atomic<int> ended{0};
  with_peers(
      4, {.timeout_seconds = 2.0, .replica = 2},
      [&](Transport& transport, cuda::CudaBackend& backend) {
        const int rank = transport.rank(), first = rank / 2 * 2;
        const Tensor whole(backend, Shape{2000}, DType::kFloat32),
            part(backend, Shape{rank % 2 == 0 ? 32 : 1968}, DType::kFloat32);
        const auto exchange = [&](std::int64_t step) {
          const auto wait = [&](Exchange::Kind kind, const Tensor& from, const Tensor& to) {
            Exchange of{.kind = kind, .group = {first, first + 1}, .parts = {0, 32, 2000}};
            transport.wait(transport.start_exchange(of, from, {to}, {step, 5, step}));
          };
          backend.fill(whole, 1.0 + rank);
          wait(Exchange::Kind::kScatterSum, whole, part);
          wait(Exchange::Kind::kGather, part, whole);
          std::vector<float> numbers(2000);
          backend.copy_to_host(whole, numbers.data());
          CHECK(numbers == std::vector<float>(2000, 2.0f * static_cast<float>(first) + 3.0f));
        };
        for (std::int64_t step = 0; step < 3; ++step) exchange(step);
        if (rank != 3)
          errors[static_cast<std::size_t>(rank)] = test::error_text(ExitCode::kLost, [&] {
            if (rank == 2) exchange(3);
            fail(ExitCode::kLost, "test", "done");
          });
        ++ended;
        wait_for(ended, 4);
      });
  CHECK(contains(errors[0], "done"));
  CHECK(contains(errors[1], "done"));
  CHECK(contains(errors[2], "rank 2 waited 2 s (sync.timeout_s)"));
  CHECK(contains(errors[2],
                 "for what rank 3 sends in the exchange of step 3, bucket 5, round 3 in the group "
                 "of ranks 2, 3"));
  CHECK(contains(errors[2], "missing: rank 3 last heard of "));
}

}  // namespace starling::tests
