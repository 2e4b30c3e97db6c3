#include "apps/training/schedules/schedule.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "tests/support/errors.h"

namespace starling {
namespace {

std::unique_ptr<Schedule> make_schedule(const std::string& type, const nlohmann::json& config,
                                        const ScheduleInputs& site) {
  register_builtin_schedules();
  ConfigSection section(config, "test.json");
  auto schedule = schedules().make(type, "schedule.type", section, site);
  section.finish();
  return schedule;
}

std::string refusal(const std::string& type, const nlohmann::json& config) {
  return test::error_of(ExitCode::kUsage, [&] { make_schedule(type, config, {}); });
}

doctest::Approx exactly(double value) { return doctest::Approx(value).epsilon(1e-13).scale(1e-3); }

}  // namespace

TEST_CASE(
    "apps/schedule: parity with torch.optim.lr_scheduler and decent-dp's warm-up and cosine") {
  std::ifstream file("golden/optimizers.json");
  REQUIRE_MESSAGE(file.good(), "golden/optimizers.json is read from the folder tests/");
  const auto document = nlohmann::json::parse(file);
  CHECK(document["schedules"].size() == 6);
  for (const auto& item : document["schedules"]) {
    const auto schedule =
        make_schedule(item["type"], item["config"],
                      {item["base_lr"], item["total_steps"], item["steps_per_epoch"]});
    for (std::size_t t = 0; t < item["lr"].size(); ++t) {
      INFO(item["type"].dump(), " t = ", t);
      // PyTorch's recursive forms gather rounding; the definitions here are closed.
      CHECK(schedule->lr(static_cast<std::int64_t>(t)) ==
            doctest::Approx(item["lr"][t].get<double>()).epsilon(1e-11));
    }
  }
}

TEST_CASE("apps/schedule: boundaries, warm-ups and what comes after the end") {
  const nlohmann::json none = nlohmann::json::object();
  struct Row {
    const char* type;
    nlohmann::json config;
    ScheduleInputs site;
    std::vector<std::pair<std::int64_t, double>> rates, exact = {};
  };
  const std::vector<Row> rows{
      {"cosine",
       {{"warmup_steps", 10}, {"min_lr", 0.001}},
       {0.4, 110, 10.0},
       {{0, 0.4 * 0.01},
        {9, 0.4 * (0.01 + 0.99 * 0.9)},
        {10, 0.4},
        {60, 0.001 + 0.399 / 2},
        {109, 0.001 + 0.399 * (1 + std::cos(std::numbers::pi * 99 / 100)) / 2},
        {110, 0.001},
        {1000, 0.001}}},
      {"constant",
       none,
       {0.5, 100, 10.0},
       {},
       {{0, 0.5}, {1, 0.5}, {50, 0.5}, {99, 0.5}, {1000, 0.5}}},
      {"constant",
       {{"warmup_steps", 4}, {"warmup_factor", 0.2}},
       {0.5, 100, 10.0},
       {{0, 0.1}, {2, 0.3}, {3, 0.4}},
       {{4, 0.5}}},
      {"constant",
       {{"warmup_epochs", 0.4}, {"warmup_factor", 0.2}},
       {0.5, 100, 10.0},
       {{0, 0.1}, {2, 0.3}, {3, 0.4}},
       {{4, 0.5}}},
      {"constant", {{"warmup_steps", 2}, {"warmup_factor", 0}}, {0.5, 100, 10.0}, {}, {{0, 0.0}}},
      // Milestones are fractions of epochs, counted from the run's start.
      {"multistep",
       {{"milestones", {0.3, 0.7, 2}}, {"gamma", 0.5}, {"warmup_steps", 2}},
       {1.0, 30, 10.0},
       {{0, 0.01}, {1, 0.505}, {2, 1.0}, {3, 0.5}, {6, 0.5}, {7, 0.25}, {19, 0.25}, {20, 0.125}}},
      {"multistep", none, {0.3, 30, 10.0}, {}, {{29, 0.3}}},
      {"step",
       {{"step_size", 0.5}, {"gamma", 0.1}},
       {1.0, 100, 4.0},
       {{0, 1.0}, {1, 1.0}, {2, 0.1}, {4, 0.01}}},
      {"step", {{"step_size", 1e-300}}, {1.0, 100, 4.0}, {}, {{3, 0.0}}},
      // At the last update the rate is final_lr, also after a warm-up.
      {"linear", {{"final_lr", 0.1}}, {1.0, 10, 4.0}, {{0, 1.0}, {1, 0.9}, {9, 0.1}, {20, 0.1}}},
      {"linear",
       {{"warmup_steps", 4}},
       {1.0, 9, 4.0},
       {{0, 0.01}, {3, 0.01 + 0.99 * 0.75}, {4, 1.0}, {6, 0.5}},
       {{8, 0.0}}},
      {"linear", {{"warmup_steps", 10}}, {1.0, 10, 4.0}, {{9, 0.01 + 0.99 * 0.9}}},
      {"wsd",
       {{"warmup_steps", 4}, {"decay_steps", 5}, {"min_lr", 0.1}},
       {1.0, 20, 4.0},
       {{0, 0.01}, {3, 0.01 + 0.99 * 0.75}, {15, 0.82}, {17, 0.46}, {18, 0.28}},
       {{4, 1.0}, {14, 1.0}, {19, 0.1}, {30, 0.1}}},
      {"wsd", {{"decay_steps", 1}}, {1.0, 20, 4.0}, {}, {{0, 1.0}, {18, 1.0}, {19, 0.0}}},
      {"inverse_sqrt",
       {{"warmup_steps", 4}},
       {2.0, 1000, 4.0},
       {{0, 0.02}, {3, 2.0 * (0.01 + 0.99 * 0.75)}, {4, 2.0}, {16, 1.0}, {400, 0.2}}},
      {"inverse_sqrt", none, {2.0, 1000, 4.0}, {{0, 2.0}, {1, 2.0}, {4, 1.0}}}};
  for (const Row& row : rows) {
    const auto schedule = make_schedule(row.type, row.config, row.site);
    INFO(row.type, " ", row.config.dump());
    for (const auto& [t, rate] : row.rates) {
      CAPTURE(t);
      CHECK(schedule->lr(t) == exactly(rate));
    }
    for (const auto& [t, rate] : row.exact) CHECK(schedule->lr(t) == rate);
  }
}

TEST_CASE(
    "apps/schedule: cosine where the warm-up takes the whole run, and epochs whose parts are not "
    "exact in binary") {
  for (const int warmup : {20, 30}) {
    const auto schedule = make_schedule("cosine", {{"warmup_steps", warmup}}, {1.0, 20, 5.0});
    for (std::int64_t t = 0; t < 20; ++t)
      CHECK(schedule->lr(t) == exactly(0.01 + 0.99 * static_cast<double>(t) / warmup));
    CHECK(schedule->lr(warmup) == exactly(1e-6));
  }
  const auto sevenths = make_schedule("step", {{"step_size", 3}, {"gamma", 0.5}}, {1.0, 1000, 7.0});
  for (std::int64_t t = 0; t < 300; ++t)
    CHECK(sevenths->lr(t) == exactly(std::pow(0.5, static_cast<double>(t / 21))));
}

TEST_CASE("apps/schedule: bad settings are refused by key") {
  const auto names = [](const std::string& text, const std::string& key) {
    CHECK(test::contains(text, key));
  };
  names(refusal("cosine", {{"warmup_steps", 1}, {"warmup_epochs", 0.5}}), "give one of them");
  names(refusal("multistep", {{"milestones", {3, 2}}}), "milestones");
  names(refusal("multistep", {{"milestones", {2, 2}}}), "milestones");
  names(refusal("multistep", {{"milestones", {0, 2}}}), "milestones");
  names(refusal("multistep", {{"milestones", 3}}), "milestones");
  names(refusal("constant", {{"min_lr", 0.1}}), "min_lr");
}

}  // namespace starling
