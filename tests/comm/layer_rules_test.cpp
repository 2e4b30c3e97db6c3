#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/comm/support.h"

// Rules that measure whole parameters, and one that is evaluated beside them, under every algorithm
// that takes any rule.
namespace starling::test {
namespace {

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
  };
}

}  // namespace

TEST_CASE(
    "comm/layers: lars, lamb, muon, adafactor and schedule_free_adamw under every algorithm: "
    "update mode, bucket size, direct reads, "
    "threads and a resume change no bit") {
  for (const nlohmann::json& optimizer :
       {nlohmann::json{{"type", "lars"}, {"trust", 0.05}, {"weight_decay", 0.1}},
        nlohmann::json{{"type", "lamb"}, {"weight_decay", 0.1}, {"adapt", "all"}},
        nlohmann::json{{"type", "muon"}, {"eps", 1e-6}},
        nlohmann::json{{"type", "adafactor"}, {"weight_decay", 0.1}},
        nlohmann::json{
            {"type", "schedule_free_adamw"}, {"weight_decay", 0.1}, {"warmup_steps", 4}}}) {
    for (const LayerRun& run : layer_runs()) {
      CAPTURE(optimizer["type"].get<std::string>());
      CAPTURE(run.algorithm.dump());
      Job job;
      job.algorithm = run.algorithm;
      job.topology = {{"type", run.topology}};
      job.optimizer = optimizer;
      job.steps = 8;
      job.lr = 0.05;
      const auto expected = run_fake(job, 4);
      for (const auto& rank : expected) {
        for (const double value : rank) REQUIRE(std::isfinite(value));
      }
      Job plain = job;
      plain.optimizer =
          optimizer["type"] == "lars"
              ? nlohmann::json{{"type", "sgd"}, {"momentum", 0.9}, {"weight_decay", 0.1}}
              : nlohmann::json{{"type", "adamw"}, {"eps", 1e-6}, {"weight_decay", 0.1}};
      CHECK(run_fake(plain, 4) != expected);
      Job other = job;
      other.in_backward = false;
      CHECK(run_fake(other, 4) == expected);
      for (const double bytes : {1.0, 1e9}) {
        other = job;
        other.bucket_bytes = bytes;
        CHECK(run_fake(other, 4) == expected);
      }
      CHECK(run_fake(job, 4, {.most_delay_seconds = 0.001, .seed = 3, .direct = true}) == expected);
      CHECK(run_fake(job, 4, {.threads = 2}) == expected);
      other = job;
      other.resume_after = 5;
      CHECK(run_fake(other, 4) == expected);
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
