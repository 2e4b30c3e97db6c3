#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/training/estimates/memory.h"
#include "comm/shared/peer_transport.h"
#include "comm/transports/staged.h"
#include "core/error.h"
#include "kernels/cuda/runtime/runtime.h"
#include "layers/layer.h"
#include "tests/cuda/graph_job.h"
#include "tests/cuda/nccl_world.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/fakes/transport/thread_sharing.h"
#include "tests/support/errors.h"
#include "tests/support/stderr_lines.h"

// Whole runs of the trainer over the NCCL transport have the bits of runs through host memory: with
// steps that are issued or replayed as graphs, and where ranks of a host read each other's memory.
namespace starling::tests {
namespace {

using nlohmann::json;
using test::contains;
using test::stderr_lines;

enum class Way : unsigned char { kStaged, kNccl, kPeers };

struct RunOptions {
  Way way = Way::kNccl;
  int ranks_per_host = 0;          ///< kPeers: those that read each other; 0: all
  std::size_t piece_bytes = 1024;  ///< kPeers: of what a replica's ranks exchange
  std::int64_t resume_step = 0;
  std::function<void(TrainConfig&)> prepare;
  std::function<void(int rank)> at_begin;  ///< on the rank's thread
};

std::unique_ptr<Transport> open_end(NcclWorld& world, int rank, int replica,
                                    cuda::CudaBackend& backend, const RunOptions& options) {
  if (options.way == Way::kStaged) return make_staged_transport(world.control(rank));
  std::unique_ptr<Transport> transport = world.open(rank, backend);
  if (options.way == Way::kNccl) return transport;
  const int host = options.ranks_per_host > 0 ? rank / options.ranks_per_host : 0;
  std::string refusal;
  auto over = make_peer_transport(std::move(transport), backend,
                                  make_thread_sharing("host " + std::to_string(host), false),
                                  {20.0, replica, options.piece_bytes}, refusal);
  require(over != nullptr, "test", "peer memory was refused: {}", refusal);
  return over;
}

std::vector<GraphOutcome> train_in(const test::Folder& folder, int ranks, const json& config,
                                   const RunOptions& options = {}) {
  register_builtins();  // before there are threads
  std::vector<GraphOutcome> outcomes(static_cast<std::size_t>(ranks));
  const std::uint64_t before = cuda::runtime_counters().graph_launches;
  NcclWorld world(ranks);
  world.run_ranks([&](int rank) {
    if (options.at_begin) options.at_begin(rank);
    cuda::CudaBackend backend(0, false, false, true);
    const RankLayout site = one_host(ranks, config);
    const std::unique_ptr<Transport> transport =
        open_end(world, rank, site.replica, backend, options);
    outcomes[static_cast<std::size_t>(rank)] = run_graph_job(
        {config, site, options.prepare, options.resume_step}, backend, *transport, folder / ".");
  });
  outcomes[0].launches = cuda::runtime_counters().graph_launches - before;
  outcomes[0].losses = losses_in(folder);
  return outcomes;
}
std::vector<GraphOutcome> train(int ranks, const json& config, const RunOptions& options = {}) {
  const test::Folder folder;
  return train_in(folder, ranks, config, options);
}
json eager(const json& config) { return with(config, {{"cuda_graphs", false}}); }

void same(const std::vector<GraphOutcome>& found, const std::vector<GraphOutcome>& wanted) {
  REQUIRE(found.size() == wanted.size());
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    CAPTURE(rank);
    CHECK(differences(found[rank], wanted[rank]) == "");
  }
}

json topology(const json& keys) { return {{"sync", {{"topology", keys}}}}; }
json topology(const char* type) { return topology(json{{"type", type}}); }
const json kAllReduce{{"sync", {{"algorithm", "allreduce"}}}};

}  // namespace

TEST_CASE(
    "nccl/training: steps that are issued and steps that are replayed have the bits of steps "
    "through host memory") {
  const json accumulating{
      {"optimizer",
       {{"type", "accum_adamw"}, {"lr", 0.01}, {"momentum", nullptr}, {"accum_iter", 4}}}};
  const json inter{
      {"type", "hierarchical"}, {"ranks_per_node", 2}, {"inter", {{"type", "one-peer-exp"}}}};
  struct Variant {
    const char* name;
    int ranks;
    std::int64_t period;  ///< of the work; 0: not looked at
    json patch;
    std::int64_t accumulate = 1;
    int peers = 0;  ///< not 0: with peers, too, so many on a host
    /// Their buckets have two buffers, which steps alternate between
    std::int64_t peer_period = 2;
  };
  const Variant variants[] = {
      {"a pair", 2, 1, topology("one-peer-exp"), 1, 2},
      {"one-peer-exp", 4, 2, topology("one-peer-exp"), 1, 4},
      {"a ring of two hosts", 4, 2, topology("ring"), 1, 2},
      {"several neighbours, two hosts", 4, 1, topology("static-exp"), 1, 2},
      {"other neighbours to send to than to receive from", 4, 2, topology("directed-exp"), 1, 2},
      {"base-2 of three", 3, 0, topology("base-2")},
      {"base-2 of four, two hosts", 4, 2, topology("base-2"), 1, 2},
      {"a group", 3, 1, topology("complete"), 1, 3},
      {"groups of three", 5, 2, topology(groups_of_three())},
      {"nodes", 4, 0, topology(inter)},
      {"all-reduce", 3, 1, kAllReduce, 1, 3, 1},
      {"all-reduce, clipped", 2, 1, with(kAllReduce, {{"clip_norm", 0.05}})},
      {"all-reduce in fp16", 2, 1, with(kAllReduce, {{"precision", "fp16"}})},
      {"accumulated gradients", 2, 1, topology("one-peer-exp"), 3, 2},
      {"accumulated gradients, all-reduce", 2, 1, kAllReduce, 2},
      {"an accumulating rule", 4, 4, with(accumulating, topology("one-peer-exp"))},
      {"an accumulating rule in fp16, all-reduce", 2, 4,
       with(with(accumulating, kAllReduce), {{"precision", "fp16"}})},
      {"bf16 on the wire", 4, 2,
       with(topology("one-peer-exp"), {{"sync", {{"exchange", "bf16"}}}})},
      {"bf16 on the wire of a group", 3, 1,
       with(topology("complete"), {{"sync", {{"exchange", "bf16"}}}})},
      {"bf16", 2, 1, {{"precision", "bf16"}, {"clip_norm", 0.05}, {"clip", "bucket"}}},
      {"fp16", 2, 1, {{"precision", "fp16"}}},
      {"no overlap", 2, 1, {{"sync", {{"overlap", false}}}}},
      {"updates after the pass", 4, 2,
       with(topology("one-peer-exp"), {{"sync", {{"update", "after_backward"}}}})},
  };
  std::size_t turn = 0;
  for (const Variant& variant : variants) {
    CAPTURE(std::string(variant.name));
    ++turn;
    constexpr std::int64_t kSteps = 11;
    const json config =
        with(with(graph_config(kSteps), {{"accumulate", variant.accumulate},
                                         {"data", {{"limit", 60}, {"image_size", 4}}},
                                         {"batch_size", 2}}),
             variant.patch);
    const std::vector<GraphOutcome> wanted =
        train(variant.ranks, eager(config), {.way = Way::kStaged});
    const auto check = [&](const json& run, const RunOptions& options, std::int64_t period) {
      // A run that replays issues its first steps, too; of every second variant one issues all
      if ((turn % 2 == 0) == (options.way == Way::kPeers)) {
        const std::vector<GraphOutcome> issued = train(variant.ranks, eager(run), options);
        CHECK(issued[0].launches == 0);
        same(issued, wanted);
      }
      const std::vector<GraphOutcome> replayed = train(variant.ranks, run, options);
      CHECK(replayed[0].why_not == "");
      CHECK(replayed[0].launches == static_cast<std::uint64_t>(variant.ranks * variant.accumulate *
                                                               (kSteps - replayed[0].warm_up)));
      if (period > 0) {
        CHECK(replayed[0].warm_up == std::max<std::int64_t>(period, 2) + 1);
        CHECK(replayed[0].graphs ==
              static_cast<std::size_t>(period *
                                       (1 + std::min<std::int64_t>(variant.accumulate - 1, 2))));
      }
      same(replayed, wanted);
    };
    check(config, {}, variant.period);
    if (variant.peers == 0) continue;
    CAPTURE(variant.peers);
    check(with(config, {{"evaluate", {{"every_steps", 3}}}}),
          {.way = Way::kPeers, .ranks_per_host = variant.peers}, variant.peer_period);
  }
}

TEST_CASE(
    "nccl/training: every family has the bits of steps through host memory, and is replayed where "
    "its work repeats") {
  const json none = json::object(),
             sgd{{"optimizer", {{"type", "sgd"}, {"lr", 0.01}, {"momentum", 0.8}}}},
             heavy = with(sgd, {{"precision", "fp16"}}), int8{{"sync", {{"exchange", "int8"}}}},
             adamw{{"optimizer", {{"type", "adamw"}, {"lr", 0.01}, {"momentum", nullptr}}}};
  struct Variant {
    json algorithm;
    const char* topology;
    bool repeats;
    json patch = json::object();
    /// With peers, too: what reads a neighbour's memory, and one of each other kind of exchange
    bool peers = false;
  };
  const Variant variants[] = {
      {{{"type", "gossip"}, {"order", "atc"}}, "one-peer-exp", true, none, true},
      {{{"type", "gossip"}, {"order", "atc"}}, "complete", true, heavy},
      {{{"type", "gossip"}, {"interval", 2}, {"global_every", 2}, {"mix_states", 2}},
       "one-peer-exp",
       false,
       none,
       true},
      {{{"type", "gossip"}, {"global_above", 1e-6}, {"check_every", 2}}, "ring", false, none, true},
      {{{"type", "gossip"}, {"global_every", 3}}, "one-peer-exp", true, none, true},
      {{{"type", "qgm"}}, "one-peer-exp", true, sgd},
      {{{"type", "qgm"}, {"order", "awc"}}, "static-ring", true, heavy, true},
      {{{"type", "decentlam"}}, "static-ring", true, heavy},
      {{{"type", "gradient_tracking"}}, "one-peer-exp", false, heavy, true},
      {{{"type", "momentum_tracking"}}, "one-peer-exp", false, sgd, true},
      {{{"type", "exact_diffusion"}}, "one-peer-exp", true},
      {{{"type", "push_sum"}}, "directed-exp", false},
      {{{"type", "allreduce"}, {"delay", true}, {"average", false}}, "ring", true, none, true},
      {{{"type", "local_sgd"}, {"period", 3}, {"start", 2}, {"states", "average"}},
       "ring",
       false,
       sgd},
      {{{"type", "slowmo"}, {"period", 4}, {"inner", "gossip"}}, "one-peer-exp", false, none, true},
      {{{"type", "diloco"}, {"period", 4}, {"delay", 2}}, "ring", false},
      {{{"type", "gossip"}, {"error_feedback", true}}, "one-peer-exp", true, int8, true},
      {{{"type", "gossip"}, {"order", "atc"}, {"consensus_step", 0.5}},
       "complete",
       true,
       with(int8, heavy)},
      {{{"type", "gossip"}, {"error_feedback", true}},
       "static-ring",
       true,
       {{"sync", {{"exchange", "bf16"}}}}},
      {{{"type", "choco"}}, "static-ring", false, heavy},
      {{{"type", "low_precision"}}, "static-ring", true},
      {{{"type", "bytegrad"}}, "ring", true, heavy},
      {{{"type", "qadam"}, {"warmup", 3}, {"error_feedback", true}}, "ring", false, adamw},
      {{{"type", "qadam"}, {"warmup", 2}, {"error_feedback", true}},
       "ring",
       false,
       with(adamw, {{"precision", "fp16"}})},
      {{{"type", "gossip"}}, "one-peer-exp", false, {{"sync", {{"batch_norm", "sync"}}}}, true},
      {{{"type", "allreduce"}}, "ring", false, with(heavy, {{"sync", {{"batch_norm", "sync"}}}})},
      {{{"type", "allreduce"}, {"scatter_gather", true}}, "ring", true},
      {{{"type", "allreduce"}, {"hierarchical", true}, {"ranks_per_node", 2}},
       "ring",
       true,
       heavy,
       true},
      {{{"type", "local_sgd"}, {"period", 3}, {"gradients", "node"}, {"ranks_per_node", 2}},
       "ring",
       false},
  };
  constexpr int kRanks = 4;
  // A model whose work depends on the step is in the test above
  const json small{{"data", {{"limit", 60}, {"image_size", 4}}},
                   {"batch_size", 2},
                   {"sync", {{"bucket_mb", 0.0001}}},
                   {"model", {{"layers", json::parse(R"([{"type": "batch_norm"},
          {"type": "global_avg_pool"}, {"type": "linear", "out_features": 7},
          {"type": "linear", "out_features": 4}])")}}}};
  for (const Variant& variant : variants) {
    CAPTURE(variant.algorithm.dump());
    const json keys{
        {"sync", {{"algorithm", variant.algorithm}, {"topology", {{"type", variant.topology}}}}}};
    const json config = with(with(with(graph_config(12), small), keys), variant.patch);
    const std::vector<GraphOutcome> wanted = train(kRanks, eager(config), {.way = Way::kStaged});
    for (const Way way : {Way::kNccl, Way::kPeers}) {
      if (way == Way::kPeers && !variant.peers) continue;
      CAPTURE(static_cast<int>(way));
      // its first steps are issued
      const std::vector<GraphOutcome> replayed = train(kRanks, config, {.way = way});
      CHECK((replayed[0].why_not == "") == variant.repeats);
      CHECK((replayed[0].launches > 0) == variant.repeats);
      same(replayed, wanted);
    }
  }
}

TEST_CASE("nccl/training: an overflow on one rank alone") {
  const json config =
      with(with(graph_config(16), {{"precision", "fp16"}}), topology("one-peer-exp"));
  const RunOptions options{.prepare = [](TrainConfig& settings) {
    settings.state.loss_scale = {.initial = 0x1p22, .growth_interval = 2};
  }};
  const std::vector<GraphOutcome> issued = train(2, eager(config), options),
                                  replayed = train(2, config, options);
  same(replayed, issued);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(replayed[rank].scale.optimizer_step == issued[rank].scale.optimizer_step);
    CHECK(16 + 1 - replayed[rank].scale.optimizer_step > replayed[rank].warm_up);
  }
}

TEST_CASE("nccl/training: ranks that are one replica have the numbers of one with their batches") {
  const auto numbers = [](const GraphOutcome& outcome) {
    std::map<std::string, std::vector<double>> result;
    for (const auto& [name, tensor] : outcome.tensors) {
      const auto take = [&, &values = result[name]](const auto* first) {
        values.assign(first, first + tensor.shape.elements());
      };
      if (tensor.dtype == DType::kFloat64)
        take(reinterpret_cast<const double*>(tensor.bytes.data()));
      if (tensor.dtype == DType::kFloat32)
        take(reinterpret_cast<const float*>(tensor.bytes.data()));
    }
    return result;
  };
  const json plain = with(
      graph_config(12),
      {{"model", {{"layers", json::parse(R"([{"type": "flatten"},
          {"type": "linear", "out_features": 9}, {"type": "gelu"},
          {"type": "linear", "out_features": 4}])")}}},
       {"precision", "fp64"},
       {"schedule", {{"type", "constant"}, {"warmup_steps", nullptr}}},
       {"evaluate", {{"every_steps", 5}}},
       {"checkpoint", {{"every_steps", 5}, {"keep", 9}}},
       {"data",
        {{"limit", 36}, {"image_size", 4}, {"augment", {{"flip", false}, {"crop_padding", 0}}}}}});
  const json adamw{{"optimizer", {{"type", "adamw"}, {"lr", 0.01}, {"momentum", nullptr}}}},
      variants[] = {
          topology("one-peer-exp"),
          with(adamw,
               {{"clip_norm", 0.1}, {"ema", {{"decay", 0.9}}}, {"lookahead", {{"every", 5}}}}),
          with({{"optimizer", {{"type", "lamb"}, {"momentum", nullptr}}}}, kAllReduce),
          with(adamw, {{"sync", {{"algorithm", {{"type", "diloco"}, {"period", 3}}}}}}),
          with(kAllReduce, {{"sync", {{"bucket_mb", 1.0}}}, {"accumulate", 2}}),
          // with fp32 numbers by parts
          with(adamw, {{"precision", "bf16"},
                       {"clip_norm", 0.1},
                       {"ema", {{"decay", 0.9}}},
                       {"lookahead", {{"every", 5}}}}),
          with({{"optimizer", {{"type", "schedule_free_adamw"}, {"momentum", nullptr}}},
                {"precision", "bf16"}},
               kAllReduce),
          with(kAllReduce,
               {{"precision", "fp16"},
                {"sync",
                 {{"bucket_mb", 0.0005},
                  {"switch",
                   {{{"step", 7}, {"algorithm", {{"type", "local_sgd"}, {"period", 2}}}}}}}}})};
  for (const json& variant : variants) {
    for (const auto& [replicas, size] : {std::pair{2, 2}, {1, 3}}) {
      CAPTURE(variant.dump());
      CAPTURE(size);
      if (replicas == 1 && variant.contains("sync") && variant["sync"].contains("topology"))
        continue;  // of one rank
      const bool low = variant.contains("precision");
      if (low && (replicas == 1) != variant.contains("sync")) continue;
      const json config = with(plain, variant),
                 divided = with(config, {{"sync", {{"replica", size}}}}),
                 whole = with(config, {{"batch_size", 3 * size}, {"cuda_graphs", false}});
      const std::vector<GraphOutcome> wanted = train(replicas, whole);
      const test::Folder folder;
      const std::vector<GraphOutcome> found = train_in(folder, replicas * size, divided);
      same(train(replicas * size, divided, {.way = Way::kStaged}), found);
      same(train(replicas * size, divided, {.way = Way::kPeers}), found);
      train_in(folder, replicas * size, with(divided, {{"steps", 10}}));
      same(train_in(folder, replicas * size, divided, {.resume_step = 5}), found);
      for (int rank = 0; rank < replicas; ++rank) {
        const auto expected = numbers(wanted[static_cast<std::size_t>(rank)]);
        auto values = numbers(found[static_cast<std::size_t>(rank * size)]);
        REQUIRE(expected.size() >= 8);
        for (const auto& [name, of_rank] : expected) {
          CAPTURE(name);
          REQUIRE(values[name].size() == of_rank.size());
          double furthest = 0.0, all = 0.0;
          for (std::size_t i = 0; i < of_rank.size(); ++i) {
            const double apart = std::abs(values[name][i] - of_rank[i]);
            furthest = std::max(furthest, apart);
            all += apart;
          }
          // In low precision Adam takes a step of its own where a gradient is about 0
          CHECK((low ? all / static_cast<double>(of_rank.size()) : furthest) <=
                (low ? 0.01 : 1e-12));
        }
      }
    }
  }
}

TEST_CASE(
    "nccl/training: steps in replicas have the bits of steps through host memory, replayed over "
    "NCCL, or issued where ranks read each other's memory") {
  struct Variant {
    int ranks, size;
    json patch;
    std::size_t piece_bytes = 1024;
  };
  const json adamw{{"optimizer", {{"type", "adamw"}, {"lr", 0.01}, {"momentum", nullptr}}}},
      bf16{{"precision", "bf16"}};
  const Variant variants[] = {
      {2, 2, kAllReduce, 256},
      {4, 2, with(topology("one-peer-exp"), {{"clip_norm", 0.05}}), std::size_t{1} << 16},
      {4, 2, with(with(adamw, bf16), topology("one-peer-exp"))},
      {4, 2, with(kAllReduce, {{"precision", "fp16"}})},
      {4, 4, with(with(bf16, kAllReduce), {{"clip_norm", 0.05}, {"ema", {{"decay", 0.9}}}}), 512},
      {6, 3, topology("one-peer-exp"), 512},
  };
  for (const Variant& variant : variants) {
    CAPTURE(variant.patch.dump());
    CAPTURE(variant.size);
    constexpr std::int64_t kSteps = 11;
    // Tests gather parts between replayed steps
    const json config = with(with(graph_config(kSteps), {{"data", {{"limit", 60}}},
                                                         {"batch_size", 2},
                                                         {"evaluate", {{"every_steps", 3}}},
                                                         {"sync", {{"replica", variant.size}}}}),
                             variant.patch);
    const std::vector<GraphOutcome> wanted =
        train(variant.ranks, eager(config), {.way = Way::kStaged});
    for (const Way way : {Way::kNccl, Way::kPeers}) {
      CAPTURE(static_cast<int>(way));
      const RunOptions options{.way = way, .piece_bytes = variant.piece_bytes};
      if (way == Way::kNccl) same(train(variant.ranks, eager(config), options), wanted);
      const std::vector<GraphOutcome> replayed = train(variant.ranks, config, options);
      same(replayed, wanted);
      if (way == Way::kPeers) {
        CHECK(contains(replayed[0].why_not, "a replica's ranks read each other's GPU memory"));
      } else {
        CHECK(replayed[0].why_not == "");
        CHECK(replayed[0].launches ==
              static_cast<std::uint64_t>(variant.ranks * (kSteps - replayed[0].warm_up)));
      }
    }
  }
  const json adding = with(graph_config(4), {{"accumulate", 2}, {"sync", {{"replica", 2}}}});
  CHECK(contains(train(2, with(adding, kAllReduce))[0].why_not, "accumulate adds"));
}

TEST_CASE("nccl/training: the dry run knows the memory of ranks that are one replica") {
  // of layers whose buckets are about the pool's size classes
  register_builtins();
  for (const auto& [size, precision] : {std::pair{2, "fp32"}, {4, "bf16"}}) {
    const json config = with(
        graph_config(4), {{"model", {{"layers", json::parse(R"([{"type": "flatten"},
            {"type": "linear", "out_features": 1016}, {"type": "relu"},
            {"type": "linear", "out_features": 1016}, {"type": "relu"},
            {"type": "linear", "out_features": 1016}, {"type": "relu"},
            {"type": "linear", "out_features": 4}])")}}},
                          {"precision", precision},
                          {"device", "cuda"},
                          {"cuda_graphs", false},
                          {"optimizer", {{"type", "adamw"}, {"lr", 0.01}, {"momentum", nullptr}}},
                          {"sync",
                           {{"algorithm", "allreduce"},
                            {"bucket_mb", 4.0},
                            {"replica", size},
                            {"transport", "nccl"}}}});
    NcclWorld world(4);
    const test::Folder folder;
    world.run_ranks([&](int rank) {
      cuda::CudaBackend backend(0, false, false, true);
      const std::unique_ptr<Transport> transport = world.open(rank, backend);
      const RankLayout site = one_host(4, config);
      TrainConfig made = read_gpu_config(config, site);
      const ShapeTrace trace = trace_shapes(made);
      {
        Trainer trainer(made, site, trace, backend, *transport);
        trainer.initialise();
        while (trainer.steps_done() < 2) trainer.step();
        trainer.finish();
        const double need = memory_need(made, site, trace).total(),
                     found = static_cast<double>(backend.memory_stats().peak_in_use);
        CAPTURE(need);
        CHECK(std::abs(found / need - 1.0) < 0.05);
      }
      made.model.reset();
    });
  }
}

TEST_CASE("nccl/training: tests, checkpoints and a resume between replays change no bit") {
  const json plain = with(with(graph_config(12), topology("one-peer-exp")),
                          {{"data", {{"limit", 36}}}, {"schedule", {{"type", "constant"}}}});
  const json stops = with(plain, {{"evaluate", {{"every_steps", 3}}},
                                  {"checkpoint", {{"every_steps", 5}, {"keep", 9}}}});
  const std::vector<GraphOutcome> wanted = train(2, eager(plain));
  same(train(2, stops), wanted);
  const test::Folder folder;
  train_in(folder, 2, with(stops, {{"steps", 10}}));
  same(train_in(folder, 2, stops, {.resume_step = 5}), wanted);
}

TEST_CASE(
    "nccl/training: in replayed steps the host calls NCCL never, asks for no memory, and waits for "
    "nothing but fp16's flag") {
  using cuda::shim::Call;
  using cuda::shim::CallKind;
  for (const json& algorithm : {topology("one-peer-exp"), kAllReduce}) {
    for (const char* precision : {"bf16", "fp16"}) {
      CAPTURE(algorithm.dump());
      CAPTURE(std::string(precision));
      cuda::shim::start_recording();
      train(2, with(with(graph_config(15), algorithm),
                    {{"precision", precision}, {"log_every", 1000}, {"batch_size", 2}}));
      const std::vector<Call> calls = cuda::shim::stop_recording();
      std::map<std::uint32_t, std::vector<std::size_t>> launches;  // of each rank's thread
      for (std::size_t i = 0; i < calls.size(); ++i) {
        if (calls[i].kind == CallKind::kLaunchGraph) launches[calls[i].thread].push_back(i);
      }
      REQUIRE(launches.size() == 2);
      for (const auto& [thread, places] : launches) {
        REQUIRE(places.size() >= 10);
        const auto count = [&, of = thread](std::size_t begin, std::size_t end, CallKind kind) {
          return std::count_if(
              calls.begin() + static_cast<std::ptrdiff_t>(begin),
              calls.begin() + static_cast<std::ptrdiff_t>(end),
              [&](const Call& call) { return call.thread == of && call.kind == kind; });
        };
        CHECK(count(0, places[0], CallKind::kNcclGroupStart) > 0);
        for (const CallKind kind : {CallKind::kNcclGroupStart, CallKind::kHostWait,
                                    CallKind::kAllocate, CallKind::kFree}) {
          CHECK(count(places[4], places.back(), kind) == 0);
        }
      }
    }
  }
}

namespace {

/// Waits for the device where a graph is captured, on the rank whose thread says so; or asks the
/// runtime to, and says nothing of its answer.
class WaitingHere final : public Layer {
 public:
  static inline thread_local bool here = false, silently = false;

 private:
  Shape build(const Shape& input) override { return input; }
  Variable compute(const Variable& x, Pass& pass) override {
    if (!here || pass.backend.device() != DeviceType::kCuda || !pass.backend.capturing()) return x;
    if (!silently) pass.backend.synchronize();
    try {
      cuda::host_wait_stream(pass.backend.native_stream());
    } catch (const Error&) {  // the capture is spoilt now
    }
    return x;
  }
};

}  // namespace

TEST_CASE(
    "nccl/training: a capture that fails on one rank alone is given up on all, and the same "
    "exchanges go on in the same order") {
  struct Case {
    json patch;
    Way way = Way::kNccl;
    bool silently = false;
  };
  const json pairs = topology("one-peer-exp");
  const Case cases[] = {{pairs},
                        {kAllReduce},
                        {with(pairs, {{"sync", {{"exchange", "bf16"}}}, {"accumulate", 2}})},
                        {pairs, Way::kPeers},
                        {pairs, Way::kNccl, true},
                        {kAllReduce, Way::kNccl, true},
                        {pairs, Way::kPeers, true}};
  for (const Case& one : cases) {
    const json base = with(with(graph_config(9), {{"data", {{"limit", 48}}}}), one.patch);
    const json config = with_layer<WaitingHere>(base, "test_waiting_here", 3);
    const std::vector<GraphOutcome> issued = train(2, eager(config));
    for (const int alone : {0, 1}) {
      CAPTURE(one.patch.dump());
      CAPTURE(static_cast<int>(one.way));
      CAPTURE(one.silently);
      CAPTURE(alone);
      RunOptions options;
      options.way = one.way;
      options.at_begin = [&](int rank) {
        WaitingHere::here = rank == alone;
        WaitingHere::silently = one.silently;
      };
      std::vector<GraphOutcome> outcomes;
      const std::vector<std::string> lines =
          stderr_lines([&] { outcomes = train(2, config, options); });
      same(outcomes, issued);
      const std::string why =
          "step 4 could not be captured on rank " + std::to_string(alone) + ": ";
      // Gossip's exchanges are in the capture before the layer; those of gradients come after it.
      const bool before = config["sync"].value("algorithm", "gossip") == "gossip";
      const char* reason =
          !one.silently ? "synchronize while a graph is captured"
          : before      ? "cudaStreamSynchronize: operation not permitted when stream is capturing"
                        : "the capture was spoilt by an earlier call that a capture does not allow";
      for (const GraphOutcome& outcome : outcomes) {
        CHECK(outcome.why_not.find(why) == 0);
        CHECK(contains(outcome.why_not, reason));
      }
      REQUIRE(lines.size() == 1);
      CHECK(lines[0].find("steps run without CUDA graphs, because " + why) == 0);
    }
  }
}

TEST_CASE(
    "nccl/training: a topology without period is issued, in one line of rank 0; with cuda_graphs "
    "true all ranks refuse") {
  const json config =
      with(with(graph_config(5), topology("random-matching")), {{"data", {{"limit", 48}}}});
  std::vector<GraphOutcome> outcomes;
  const std::vector<std::string> lines = stderr_lines([&] { outcomes = train(2, config); });
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] == "steps run without CUDA graphs, because the topology's rounds never repeat");
  CHECK(outcomes[0].launches == 0);
  same(outcomes, train(2, eager(config)));
  CHECK(test::error_of(ExitCode::kUsage,
                       [&] {
                         train(2, with(config, {{"cuda_graphs", true}}));
                       }) ==
        "[config] cuda_graphs: is true, but the topology's rounds never repeat; allowed here: "
        "auto, false");
}

}  // namespace starling::tests
