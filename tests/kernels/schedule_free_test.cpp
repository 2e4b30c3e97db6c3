#include "kernels/optimizers/schedule_free.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/optimizer.h"
#include "tests/kernels/optimizer_reference.h"

namespace starling::test {

TEST_CASE(
    "kernels/schedule_free: what is trained and what is evaluated are the published package's, in "
    "fp64") {
  const nlohmann::json document = read_json_file("golden/schedule_free.json");
  CHECK(document["cases"].size() == 8);
  for (const auto& item : document["cases"]) {
    const auto rule = make_rule("schedule_free_adamw", item["config"]);
    const EvaluatedModel evaluated = rule->facts().evaluated;
    REQUIRE(evaluated.state == 0);
    const std::size_t kept_steps = follow_golden<double>(
        document, *rule, [&](std::size_t) { return document["rate"].get<double>(); },
        [&](const Bucket<double>& bucket, std::size_t kept, std::size_t row, std::size_t column,
            std::size_t place) {
          const double y = bucket.x[place], x = y + evaluated.weight * bucket.states[0][place];
          CHECK(std::abs(y - item["y"][kept][row][column].get<double>()) < 1e-13);
          CHECK(std::abs(x - item["x"][kept][row][column].get<double>()) < 1e-13);
        });
    CHECK(kept_steps == 4);
  }
}

TEST_CASE(
    "kernels/schedule_free: the share of any step is that of a sum over all steps before it") {
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

TEST_CASE("kernels/schedule_free: what a run must know of it") {
  const auto rule = make_rule("schedule_free_adamw", nlohmann::json::object());
  CHECK(rule->facts().phases == 1);
  CHECK(rule->facts().needs_constant_rate);
  const auto adam = make_rule("adamw", nlohmann::json::object());
  CHECK(!adam->facts().needs_constant_rate);
  CHECK(adam->facts().evaluated.state == -1);
}

}  // namespace starling::test
