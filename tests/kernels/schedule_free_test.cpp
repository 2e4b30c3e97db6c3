#include "kernels/math/schedule_free.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/optimizer.h"
#include "tests/kernels/optimizer_reference.h"
#include "tests/support/errors.h"

namespace starling::test {

TEST_CASE("kernels/schedule_free: what is trained and what is evaluated are the published package's, in fp64") {
  std::ifstream file("golden/schedule_free.json");
  REQUIRE_MESSAGE(file.good(), "golden/schedule_free.json is read from the folder tests/");
  const nlohmann::json document = nlohmann::json::parse(file);
  const auto size = document["x"][0].size();
  double worst = 0;
  int cases = 0;
  for (const auto& item : document["cases"]) {
    const auto rule = make_rule("schedule_free_adamw", item["config"]);
    const EvaluatedModel evaluated = rule->evaluated();
    REQUIRE(evaluated.state == 0);
    Bucket<double> bucket(64, 2);
    bucket.decay = {1, 0};
    for (std::size_t i = 0; i < 2 * size; ++i) bucket.x[i / size * 32 + i % size] = document["x"][i / size][i % size];
    std::size_t kept = 0;
    for (std::size_t step = 0; step < document["gradients"].size(); ++step) {
      for (std::size_t i = 0; i < 2 * size; ++i)
        bucket.gradient[i / size * 32 + i % size] = document["gradients"][step][i / size][i % size];
      bucket.update(*rule, document["rate"], static_cast<std::int64_t>(step) + 1);
      if (kept == document["kept_steps"].size() || document["kept_steps"][kept] != step + 1) continue;
      for (std::size_t i = 0; i < 2 * size; ++i) {
        const std::size_t at = i / size * 32 + i % size;
        const double x = bucket.x[at] + evaluated.weight * bucket.states[0][at];
        worst = std::max(worst, std::abs(bucket.x[at] - item["y"][kept][i / size][i % size].get<double>()));
        worst = std::max(worst, std::abs(x - item["x"][kept][i / size][i % size].get<double>()));
      }
      ++kept;
    }
    CHECK(kept == 4);
    ++cases;
  }
  CHECK(cases == 8);
  CHECK(worst < 1e-13);
}

TEST_CASE("kernels/schedule_free: the share of any step is that of a sum over all steps before it") {
  for (const std::int64_t warmup : {0, 1, 2, 7, 1000, 5000}) {
    const rules::ScheduleFreeAdam rule{.warmup_steps = warmup};
    double sum = 0, worst = 0;
    for (std::int64_t s = 1; s <= 3000; ++s) {
      const double weight = rule.warmup(s) * rule.warmup(s);
      sum += weight;
      worst = std::max(worst, std::abs(rule.share(s) * sum / weight - 1));
    }
    CHECK(worst < 1e-12);
    CHECK(rule.share(1) == 1.0);
  }
  CHECK(rules::ScheduleFreeAdam().share(1'000'000'000'000) == 1e-12);
}

TEST_CASE("kernels/schedule_free: what is evaluated is the mean of all z") {
  const auto rule = make_rule("schedule_free_adamw", nlohmann::json::object());
  const double weight = rule->evaluated().weight;
  Bucket<double> bucket(32, 2);
  bucket.x = normal_numbers<double>(32, 1);
  std::vector<double> sum(32, 0.0);
  for (std::int64_t s = 1; s <= 20; ++s) {
    bucket.gradient = normal_numbers<double>(32, 10 + static_cast<unsigned>(s));
    bucket.update(*rule, 0.01, s);
    double worst = 0;
    for (std::size_t i = 0; i < 32; ++i) {
      sum[i] += bucket.x[i] + bucket.states[0][i];
      worst = std::max(worst, std::abs(sum[i] / static_cast<double>(s) - (bucket.x[i] + weight * bucket.states[0][i])));
    }
    CHECK(worst < 1e-14);
  }
}

TEST_CASE("kernels/schedule_free: names, traffic, defaults, and bad settings by key") {
  const auto rule = make_rule("schedule_free_adamw", nlohmann::json::object());
  CHECK(rule->state_names() == std::vector<std::string>{"z_minus_y", "exp_avg_sq"});
  CHECK(rule->bytes_per_parameter(4) == 28);
  CHECK(rule->phases() == 1);
  CHECK(rule->needs_constant_rate());
  const auto adam = make_rule("adamw", nlohmann::json::object());
  CHECK(!adam->needs_constant_rate());
  CHECK(adam->evaluated().state == -1);
  ConfigSection section(nlohmann::json::object(), "test.json");
  optimizers().make("schedule_free_adamw", "optimizer.type", section);
  CHECK(section.resolved() == nlohmann::json{{"betas", {0.9, 0.999}}, {"eps", 1e-8}, {"weight_decay", 0.0}, {"warmup_steps", 0}});
  const auto names = [](const nlohmann::json& config, const std::string& key) {
    CHECK(test::contains(test::error_of(ExitCode::kUsage, [&] { make_rule("schedule_free_adamw", config); }), key));
  };
  names({{"betas", {0.0, 0.999}}}, "betas");
  names({{"betas", {0.9, 1.0}}}, "betas");
  names({{"warmup_steps", -1}}, "warmup_steps");
  names({{"warmup_steps", 1.5}}, "warmup_steps");
  names({{"momentum", 0.9}}, "momentum");
}

}  // namespace starling::test
