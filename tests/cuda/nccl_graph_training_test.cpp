#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "comm/shared/peer_transport.h"
#include "core/error.h"
#include "kernels/cuda/runtime/runtime.h"
#include "layers/layer.h"
#include "tests/cuda/graph_job.h"
#include "tests/cuda/nccl_world.h"
#include "tests/cuda/stderr_lines.h"
#include "tests/fakes/transport/thread_sharing.h"

// Several ranks over the NCCL transport and its fake: steps replayed as graphs, exchanges included, have the bits of issued ones.
namespace starling::tests {
namespace {

using nlohmann::json;

/// With `peers` the ranks read each other's parameters where they lie, and NCCL is for the rest.
std::unique_ptr<Transport> open_end(NcclWorld& world, int rank, cuda::CudaBackend& backend, bool peers) {
  std::unique_ptr<Transport> transport = world.open(rank, backend);
  if (!peers) return transport;
  std::string refusal;
  auto over = make_peer_transport(std::move(transport), backend, make_thread_sharing("host", false), {20.0}, refusal);
  require(over != nullptr, "test", "peer memory was refused: {}", refusal);
  return over;
}

std::vector<GraphOutcome> train_in(const test::Folder& folder, int ranks, const json& config, std::int64_t resume_step = 0,
                                   const std::function<void(TrainConfig&)>& prepare = {}, bool peers = false) {
  register_builtins();  // before there are threads
  std::vector<GraphOutcome> outcomes(static_cast<std::size_t>(ranks));
  const std::uint64_t before = cuda::runtime_counters().graph_launches;
  NcclWorld world(ranks);
  world.run_ranks([&](int rank) {
    cuda::CudaBackend backend(0, false, false, true);
    const std::unique_ptr<Transport> transport = open_end(world, rank, backend, peers);
    outcomes[static_cast<std::size_t>(rank)] =
        run_graph_job({config, {ranks, ranks}, prepare, resume_step}, backend, *transport, folder / ".");
  });
  outcomes[0].launches = cuda::runtime_counters().graph_launches - before;
  outcomes[0].losses = losses_in(folder);
  return outcomes;
}
std::vector<GraphOutcome> train(int ranks, const json& config) {
  const test::Folder folder;
  return train_in(folder, ranks, config);
}

void same(const std::vector<GraphOutcome>& found, const std::vector<GraphOutcome>& wanted) {
  REQUIRE(found.size() == wanted.size());
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    CAPTURE(rank);
    CHECK(differences(found[rank], wanted[rank]) == "");
  }
}

struct Variant {
  const char* name;
  int ranks;
  std::int64_t period;
  json patch;
  std::int64_t accumulate = 1;
};

json topology(const char* type) { return {{"sync", {{"topology", {{"type", type}}}}}}; }

}  // namespace

TEST_CASE("nccl/graph_training: replayed steps have the bits of issued ones") {
  const json accumulating{{"optimizer", {{"type", "accum_adamw"}, {"lr", 0.01}, {"momentum", nullptr}, {"accum_iter", 4}}},
                          {"sync", {{"topology", {{"type", "one-peer-exp"}}}}}};
  json in_fp16 = accumulating;
  in_fp16["precision"] = "fp16";
  in_fp16["sync"] = {{"algorithm", "allreduce"}};
  const Variant variants[] = {
      {"a pair", 2, 1, topology("one-peer-exp")},
      {"one-peer-exp", 4, 2, topology("one-peer-exp")},
      {"base-2 of three", 3, 0, topology("base-2")},
      {"a group", 3, 1, topology("complete")},
      {"all-reduce", 3, 1, {{"sync", {{"algorithm", "allreduce"}}}}},
      {"all-reduce, clipped", 2, 1, {{"sync", {{"algorithm", "allreduce"}}}, {"clip_norm", 0.05}}},
      {"all-reduce in fp16", 2, 1, {{"sync", {{"algorithm", "allreduce"}}}, {"precision", "fp16"}}},
      {"accumulated gradients", 2, 1, topology("one-peer-exp"), 3},
      {"accumulated gradients, all-reduce", 2, 1, {{"sync", {{"algorithm", "allreduce"}}}}, 2},
      {"an accumulating rule", 4, 4, accumulating},
      {"an accumulating rule in fp16, all-reduce", 2, 4, in_fp16},
      {"bf16 on the wire", 4, 2, with(topology("one-peer-exp"), {{"sync", {{"exchange", "bf16"}}}})},
      {"bf16 on the wire of a group", 3, 1, with(topology("complete"), {{"sync", {{"exchange", "bf16"}}}})},
      {"bf16", 2, 1, {{"precision", "bf16"}, {"clip_norm", 0.05}, {"clip", "bucket"}}},
      {"fp16", 2, 1, {{"precision", "fp16"}}},
      {"no overlap", 2, 1, {{"sync", {{"overlap", false}}}}},
      {"updates after the pass", 4, 2, with(topology("one-peer-exp"), {{"sync", {{"update", "after_backward"}}}})},
      {"nodes", 4, 0, {{"sync", {{"topology", {{"type", "hierarchical"}, {"ranks_per_node", 2}, {"inter", {{"type", "one-peer-exp"}}}}}}}}},
  };
  for (const Variant& variant : variants) {
    CAPTURE(std::string(variant.name));
    constexpr std::int64_t kSteps = 11;
    const json config =
        with(with(graph_config(kSteps), {{"accumulate", variant.accumulate}, {"data", {{"limit", 48}}}, {"batch_size", 2}}), variant.patch);
    const std::vector<GraphOutcome> eager = train(variant.ranks, with(config, {{"cuda_graphs", false}}));
    const std::vector<GraphOutcome> replayed = train(variant.ranks, config);
    CHECK(eager[0].launches == 0);
    CHECK(replayed[0].why_not == "");
    if (variant.period > 0) {
      CHECK(replayed[0].warm_up == std::max<std::int64_t>(variant.period, 2) + 1);
      CHECK(replayed[0].graphs == static_cast<std::size_t>(variant.period + std::min<std::int64_t>(variant.accumulate - 1, 2)));
    }
    CHECK(replayed[0].launches == static_cast<std::uint64_t>(variant.ranks * variant.accumulate * (kSteps - replayed[0].warm_up)));
    same(replayed, eager);
  }
}

TEST_CASE("nccl/graph_training: with buckets of two buffers, read by peers, steps alternate between graphs") {
  const Variant variants[] = {{"a pair", 2, 2, topology("one-peer-exp")},
                              {"one-peer-exp", 4, 2, topology("one-peer-exp")},
                              {"accumulated gradients", 2, 2, topology("one-peer-exp"), 3},
                              {"a group, by NCCL", 3, 2, topology("complete")},
                              {"all-reduce", 2, 1, {{"sync", {{"algorithm", "allreduce"}}}}}};
  for (const Variant& variant : variants) {
    CAPTURE(std::string(variant.name));
    constexpr std::int64_t kSteps = 10;
    const json config =
        with(with(graph_config(kSteps),
                  {{"accumulate", variant.accumulate}, {"data", {{"limit", 48}}}, {"evaluate", {{"every_steps", 3}}}, {"batch_size", 2}}),
             variant.patch);
    const test::Folder one, other;
    const std::vector<GraphOutcome> eager = train_in(one, variant.ranks, with(config, {{"cuda_graphs", false}}), 0, {}, true);
    const std::vector<GraphOutcome> replayed = train_in(other, variant.ranks, config, 0, {}, true);
    CHECK(replayed[0].why_not == "");
    const std::int64_t others = std::min<std::int64_t>(variant.accumulate - 1, 2);
    CHECK(replayed[0].graphs == static_cast<std::size_t>(variant.period * (1 + others)));
    CHECK(replayed[0].launches == static_cast<std::uint64_t>(variant.ranks * variant.accumulate * (kSteps - replayed[0].warm_up)));
    same(replayed, eager);
  }
}

TEST_CASE("nccl/graph_training: an overflow on one rank alone") {
  const json config = with(with(graph_config(16), {{"precision", "fp16"}}), topology("one-peer-exp"));
  const auto overflows = [](TrainConfig& settings) {
    settings.loss_scale.initial = 0x1p22;
    settings.loss_scale.growth_interval = 2;
  };
  const test::Folder one, other;
  const std::vector<GraphOutcome> eager = train_in(one, 2, with(config, {{"cuda_graphs", false}}), 0, overflows);
  const std::vector<GraphOutcome> replayed = train_in(other, 2, config, 0, overflows);
  same(replayed, eager);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(replayed[rank].scale.optimizer_step == eager[rank].scale.optimizer_step);
    CHECK(16 + 1 - replayed[rank].scale.optimizer_step > replayed[rank].warm_up);
  }
}

TEST_CASE("nccl/graph_training: tests, checkpoints and a resume between replays change no bit") {
  const json plain =
      with(with(graph_config(12), topology("one-peer-exp")), {{"data", {{"limit", 36}}}, {"schedule", {{"type", "constant"}}}});
  const json stops = with(plain, {{"evaluate", {{"every_steps", 3}}}, {"checkpoint", {{"every_steps", 5}, {"keep", 9}}}});
  const std::vector<GraphOutcome> wanted = train(2, with(plain, {{"cuda_graphs", false}}));
  same(train(2, stops), wanted);
  const test::Folder folder;
  train_in(folder, 2, with(stops, {{"steps", 10}}));
  same(train_in(folder, 2, stops, 5), wanted);
}

namespace {

/// Waits for the device where a graph is captured, on the rank whose thread says so; or asks the runtime to, and says nothing of its
/// answer.
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
    "nccl/graph_training: a capture that fails on one rank alone is given up on all, and the same exchanges go on in the same order") {
  register_builtins();
  static const bool added = [] {
    layers().add("test_waiting_here", [](ConfigSection&) -> std::unique_ptr<Layer> { return std::make_unique<WaitingHere>(); });
    return true;
  }();
  (void)added;
  struct Case {
    json patch;
    bool peers = false, silently = false;
  };
  const Case cases[] = {{topology("one-peer-exp")},
                        {{{"sync", {{"algorithm", "allreduce"}}}}},
                        {with(topology("one-peer-exp"), {{"sync", {{"exchange", "bf16"}}}, {"accumulate", 2}})},
                        {topology("one-peer-exp"), true},
                        {topology("one-peer-exp"), false, true},
                        {{{"sync", {{"algorithm", "allreduce"}}}}, false, true},
                        {topology("one-peer-exp"), true, true}};
  for (const Case& one : cases) {
    for (const int alone : {0, 1}) {
      CAPTURE(one.peers);
      CAPTURE(one.silently);
      CAPTURE(alone);
      json config = with(with(graph_config(9), {{"data", {{"limit", 48}}}}), one.patch);
      auto& list = config["model"]["layers"];
      list.insert(list.begin() + 3, json{{"type", "test_waiting_here"}});
      const std::vector<GraphOutcome> eager = train(2, with(config, {{"cuda_graphs", false}}));
      std::vector<GraphOutcome> outcomes(2);
      const test::Folder folder;
      const std::vector<std::string> lines = stderr_lines([&] {
        NcclWorld world(2);
        world.run_ranks([&](int rank) {
          WaitingHere::here = rank == alone;
          WaitingHere::silently = one.silently;
          cuda::CudaBackend backend(0, false, false, true);
          const std::unique_ptr<Transport> transport = open_end(world, rank, backend, one.peers);
          outcomes[static_cast<std::size_t>(rank)] = run_graph_job({config, {2, 2}, {}, 0}, backend, *transport, folder / ".");
        });
      });
      outcomes[0].losses = losses_in(folder);
      same(outcomes, eager);
      const std::string why = "step 4 could not be captured on rank " + std::to_string(alone) + ": ";
      for (const GraphOutcome& outcome : outcomes) {
        CHECK(outcome.why_not.find(why) == 0);
        // Gossip's exchanges are in the capture before the layer; those of gradients come after it.
        const bool before = config["sync"].value("algorithm", "gossip") == "gossip";
        const char* reason = !one.silently ? "synchronize while a graph is captured"
                             : before      ? "cudaStreamSynchronize: operation not permitted when stream is capturing"
                                           : "the capture was spoilt by an earlier call that a capture does not allow";
        CHECK(outcome.why_not.find(reason) != std::string::npos);
      }
      REQUIRE(lines.size() == 1);
      CHECK(lines[0].find("steps run without CUDA graphs, because " + why) == 0);
    }
  }
}

TEST_CASE("nccl/graph_training: a topology without period is issued, in one line of rank 0; with cuda_graphs true all ranks refuse") {
  const json config = with(with(graph_config(5), topology("random-matching")), {{"data", {{"limit", 48}}}});
  std::vector<GraphOutcome> outcomes;
  const std::vector<std::string> lines = stderr_lines([&] { outcomes = train(2, config); });
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] == "steps run without CUDA graphs, because the topology's rounds never repeat");
  CHECK(outcomes[0].launches == 0);
  same(outcomes, train(2, with(config, {{"cuda_graphs", false}})));
  try {
    train(2, with(config, {{"cuda_graphs", true}}));
    FAIL_CHECK("no error");
  } catch (const AgreedError& error) {
    CHECK(error.code() == ExitCode::kUsage);
    CHECK(std::string(error.what()) == "[config] cuda_graphs: is true, but the topology's rounds never repeat; allowed here: auto, false");
  }
}

}  // namespace starling::tests
