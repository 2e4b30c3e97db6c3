#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/comm/support.h"

// Rules that measure whole parameters, and one that is evaluated beside them, under every algorithm
// that takes any rule.
namespace starling::test {
namespace {

using Ranks = std::vector<std::vector<double>>;

struct LayerRun {
  nlohmann::json algorithm;
  const char* topology = "complete";
};

std::vector<LayerRun> layer_runs() {
  const auto of = [](const char* type, nlohmann::json keys = nlohmann::json::object()) {
    keys["type"] = type;
    return keys;
  };
  return {
      {of("gossip"), "one-peer-exp"},
      {of("gossip", {{"order", "atc"}}), "static-ring"},
      {of("gossip", {{"mix_states", 1}}), "one-peer-exp"},
      {of("gradient_tracking"), "static-ring"},
      {of("exact_diffusion"), "one-peer-exp"},
      {of("push_sum"), "directed-exp"},
      {of("allreduce")},
      {of("local_sgd", {{"period", 3}, {"states", "average"}})},
      {of("local_sgd", {{"period", 2}, {"states", "average"}, {"average", "topology"}}),
       "static-ring"},
      {of("local_sgd", {{"period", 3}, {"states", "reset"}})},
      {of("slowmo", {{"period", 3}})},
      {of("diloco", {{"period", 4}, {"delay", 2}})},
      {of("diloco", {{"period", 3}, {"states", "reset"}})},
      {of("local_sgd", {{"period", 4}, {"delay", 2}})},
      {of("gossip_diloco", {{"period", 3}}), "one-peer-exp"},
      {of("gossip_diloco", {{"period", 3}, {"states", "reset"}}), "static-ring"},
  };
}

}  // namespace

TEST_CASE(
    "comm/layers: lars, lamb, muon, adafactor and schedule_free_adamw under every algorithm: "
    "update mode, bucket size, direct reads, "
    "threads and a resume change no bit") {
  const std::vector<nlohmann::json> optimizers{
      {{"type", "lars"}, {"trust", 0.05}, {"weight_decay", 0.1}},
      {{"type", "lamb"}, {"weight_decay", 0.1}, {"adapt", "all"}},
      {{"type", "muon"}, {"eps", 1e-6}},
      {{"type", "adafactor"}, {"weight_decay", 0.1}},
      {{"type", "schedule_free_adamw"}, {"weight_decay", 0.1}, {"warmup_steps", 4}}};
  const std::vector<LayerRun> runs = layer_runs();
  // What may not change a bit. Each optimizer goes with each algorithm, and each of these with each
  // optimizer and with each algorithm, but not all three in all combinations.
  const std::vector<std::function<Ranks(Job)>> variants{
      [](Job job) { return job.in_backward = false, run_fake(job, 4); },
      [](Job job) { return job.bucket_bytes = 1.0, run_fake(job, 4); },
      [](Job job) { return job.bucket_bytes = 1e9, run_fake(job, 4); },
      [](const Job& job) {
        return run_fake(job, 4, {.most_delay_seconds = 0.001, .seed = 3, .direct = true});
      },
      [](const Job& job) { return run_fake(job, 4, {.threads = 2}); },
      [](Job job) { return job.resume_after = 5, run_fake(job, 4); }};
  for (std::size_t o = 0; o < optimizers.size(); ++o) {
    for (std::size_t a = 0; a < runs.size(); ++a) {
      const nlohmann::json& optimizer = optimizers[o];
      CAPTURE(optimizer["type"].get<std::string>());
      CAPTURE(runs[a].algorithm.dump());
      Job job;
      job.algorithm = runs[a].algorithm;
      job.topology = {{"type", runs[a].topology}};
      job.optimizer = optimizer;
      job.steps = 8;
      job.lr = 0.05;
      const Ranks expected = run_fake(job, 4);
      for (const auto& rank : expected) {
        for (const double value : rank) REQUIRE(std::isfinite(value));
      }
      for (const std::size_t v : {(o + a) % variants.size(), (o + a + 3) % variants.size()}) {
        CAPTURE(v);
        CHECK(variants[v](job) == expected);
      }
      if (a % optimizers.size() != o) continue;
      job.optimizer =
          optimizer["type"] == "lars"
              ? nlohmann::json{{"type", "sgd"}, {"momentum", 0.9}, {"weight_decay", 0.1}}
              : nlohmann::json{{"type", "adamw"}, {"eps", 1e-6}, {"weight_decay", 0.1}};
      CHECK(run_fake(job, 4) != expected);
    }
  }
}

TEST_CASE(
    "comm/layers: a loss scale changes nothing, and a rank whose gradients overflow only mixes") {
  for (const char* type : {"lars", "lamb", "muon", "adafactor", "schedule_free_adamw"}) {
    CAPTURE(type);
    Job job;
    job.topology = {{"type", "one-peer-exp"}};
    job.optimizer = {{"type", type}};
    const auto expected = run_fake(job, 4);
    Job other = job;
    other.loss_scale = 1024.0;
    other.check_overflow = true;
    CHECK(run_fake(other, 4) == expected);
    other.overflows = {{1, 2}};
    const auto skipped = run_fake(other, 4);
    CHECK(skipped != expected);
    for (const auto& rank : skipped) {
      for (const double value : rank) REQUIRE(std::isfinite(value));
    }
  }
}

TEST_CASE(
    "comm/layers: gossip leaves the mean of schedule_free_adamw's parameters where ranks alone "
    "would have it") {
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    Job job;
    job.dtype = DType::kFloat64;
    job.topology = {{"type", "base-2"}};
    job.optimizer = {{"type", "schedule_free_adamw"}};
    job.start_apart = true;
    job.steps = 10;
    // then gradients differ, as they are taken elsewhere
    job.lr_at = [](int step) { return step < 2 ? 0.1 : 0.0; };
    Job alone = job;
    alone.algorithm = {{"type", "local_sgd"}, {"period", 1000}};
    const auto mixed = run_fake(job, ranks), apart = run_fake(alone, ranks);
    CHECK(mixed != apart);
    double worst = 0.0, moved = 0.0;
    for (std::size_t i = 0; i < mixed[0].size(); ++i) {
      double sum = 0.0, expected = 0.0, start = 0.0;
      for (int rank = 0; rank < ranks; ++rank) {
        sum += mixed[static_cast<std::size_t>(rank)][i];
        expected += apart[static_cast<std::size_t>(rank)][i];
        start += start_value(rank, true, static_cast<std::int64_t>(i));
      }
      worst = std::max(worst, std::abs(sum - expected));
      moved = std::max(moved, std::abs(expected - start));
    }
    CHECK(worst < 1e-12);
    CHECK(moved > 0.01);
  }
}

}  // namespace starling::test
