#include "apps/trainer/schedules/schedule.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <vector>

#include "core/error.h"
#include "tests/support/errors.h"

namespace starling {
namespace {

std::unique_ptr<Schedule> make_schedule(const std::string& type, const nlohmann::json& config, const ScheduleInputs& site) {
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

TEST_CASE("apps/schedule: parity with torch.optim.lr_scheduler and decent-dp's warm-up and cosine") {
  std::ifstream file("golden/optimizers.json");
  REQUIRE_MESSAGE(file.good(), "golden/optimizers.json is read from the folder tests/");
  const auto document = nlohmann::json::parse(file);
  CHECK(document["schedules"].size() == 6);
  for (const auto& item : document["schedules"]) {
    const auto schedule = make_schedule(item["type"], item["config"], {item["base_lr"], item["total_steps"], item["steps_per_epoch"]});
    for (std::size_t t = 0; t < item["lr"].size(); ++t) {
      INFO(item["type"].dump(), " t = ", t);
      // PyTorch's recursive forms gather rounding; the definitions here are closed.
      CHECK(schedule->lr(static_cast<std::int64_t>(t)) == doctest::Approx(item["lr"][t].get<double>()).epsilon(1e-11));
    }
  }
}

TEST_CASE("apps/schedule: cosine at its boundaries") {
  const ScheduleInputs site{0.4, 110, 10.0};
  const auto schedule = make_schedule("cosine", {{"warmup_steps", 10}, {"min_lr", 0.001}}, site);
  CHECK(schedule->lr(0) == exactly(0.4 * 0.01));
  CHECK(schedule->lr(9) == exactly(0.4 * (0.01 + 0.99 * 0.9)));
  CHECK(schedule->lr(10) == exactly(0.4));
  CHECK(schedule->lr(60) == exactly(0.001 + 0.399 / 2));
  CHECK(schedule->lr(109) == exactly(0.001 + 0.399 * (1 + std::cos(std::numbers::pi * 99 / 100)) / 2));
  CHECK(schedule->lr(110) == exactly(0.001));
  CHECK(schedule->lr(1000) == exactly(0.001));
}

TEST_CASE("apps/schedule: cosine where the warm-up takes the whole run") {
  for (const int warmup : {20, 30}) {
    const auto schedule = make_schedule("cosine", {{"warmup_steps", warmup}}, {1.0, 20, 5.0});
    for (std::int64_t t = 0; t < 20; ++t) CHECK(schedule->lr(t) == exactly(0.01 + 0.99 * static_cast<double>(t) / warmup));
    CHECK(schedule->lr(warmup) == exactly(1e-6));
  }
}

TEST_CASE("apps/schedule: constant, with and without warm-up") {
  const ScheduleInputs site{0.5, 100, 10.0};
  const auto plain = make_schedule("constant", nlohmann::json::object(), site);
  for (const std::int64_t t : {0, 1, 50, 99, 1000}) CHECK(plain->lr(t) == 0.5);
  const auto warmed = make_schedule("constant", {{"warmup_steps", 4}, {"warmup_factor", 0.2}}, site);
  CHECK(warmed->lr(0) == exactly(0.1));
  CHECK(warmed->lr(2) == exactly(0.3));
  CHECK(warmed->lr(3) == exactly(0.4));
  CHECK(warmed->lr(4) == 0.5);
  CHECK(make_schedule("constant", {{"warmup_steps", 2}, {"warmup_factor", 0}}, site)->lr(0) == 0.0);
}

TEST_CASE("apps/schedule: multistep passes fractional milestones at the right update, counted from the run's start") {
  const auto schedule = make_schedule("multistep", {{"milestones", {0.3, 0.7, 2}}, {"gamma", 0.5}, {"warmup_steps", 2}}, {1.0, 30, 10.0});
  CHECK(schedule->lr(0) == exactly(0.01));
  CHECK(schedule->lr(1) == exactly(0.505));
  CHECK(schedule->lr(2) == exactly(1.0));
  CHECK(schedule->lr(3) == exactly(0.5));
  CHECK(schedule->lr(6) == exactly(0.5));
  CHECK(schedule->lr(7) == exactly(0.25));
  CHECK(schedule->lr(19) == exactly(0.25));
  CHECK(schedule->lr(20) == exactly(0.125));
  // An epoch of 7 steps: 1/7, 2/7, … are not exact in binary.
  const auto sevenths = make_schedule("step", {{"step_size", 3}, {"gamma", 0.5}}, {1.0, 1000, 7.0});
  for (std::int64_t t = 0; t < 300; ++t) CHECK(sevenths->lr(t) == exactly(std::pow(0.5, static_cast<double>(t / 21))));
  CHECK(make_schedule("multistep", nlohmann::json::object(), {0.3, 30, 10.0})->lr(29) == 0.3);
}

TEST_CASE("apps/schedule: step counts in epochs") {
  const auto schedule = make_schedule("step", {{"step_size", 0.5}, {"gamma", 0.1}}, {1.0, 100, 4.0});
  CHECK(schedule->lr(0) == exactly(1.0));
  CHECK(schedule->lr(1) == exactly(1.0));
  CHECK(schedule->lr(2) == exactly(0.1));
  CHECK(schedule->lr(4) == exactly(0.01));
  CHECK(make_schedule("step", {{"step_size", 1e-300}}, {1.0, 100, 4.0})->lr(3) == 0.0);
}

TEST_CASE("apps/schedule: linear reaches final_lr at the last update, also after a warm-up") {
  const auto plain = make_schedule("linear", {{"final_lr", 0.1}}, {1.0, 10, 4.0});
  CHECK(plain->lr(0) == exactly(1.0));
  CHECK(plain->lr(1) == exactly(0.9));
  CHECK(plain->lr(9) == exactly(0.1));
  CHECK(plain->lr(20) == exactly(0.1));
  const auto warmed = make_schedule("linear", {{"warmup_steps", 4}}, {1.0, 9, 4.0});
  CHECK(warmed->lr(0) == exactly(0.01));
  CHECK(warmed->lr(3) == exactly(0.01 + 0.99 * 0.75));
  CHECK(warmed->lr(4) == exactly(1.0));
  CHECK(warmed->lr(6) == exactly(0.5));
  CHECK(warmed->lr(8) == 0.0);
  const auto only_warmup = make_schedule("linear", {{"warmup_steps", 10}}, {1.0, 10, 4.0});
  CHECK(only_warmup->lr(9) == exactly(0.01 + 0.99 * 0.9));
}

TEST_CASE("apps/schedule: inverse square root") {
  const auto schedule = make_schedule("inverse_sqrt", {{"warmup_steps", 4}}, {2.0, 1000, 4.0});
  CHECK(schedule->lr(0) == exactly(0.02));
  CHECK(schedule->lr(3) == exactly(2.0 * (0.01 + 0.99 * 0.75)));
  CHECK(schedule->lr(4) == exactly(2.0));
  CHECK(schedule->lr(16) == exactly(1.0));
  CHECK(schedule->lr(400) == exactly(0.2));
  const auto plain = make_schedule("inverse_sqrt", nlohmann::json::object(), {2.0, 1000, 4.0});
  CHECK(plain->lr(0) == exactly(2.0));
  CHECK(plain->lr(1) == exactly(2.0));
  CHECK(plain->lr(4) == exactly(1.0));
}

TEST_CASE("apps/schedule: bad settings are refused by key") {
  const auto names = [](const std::string& text, const std::string& key) {
    INFO(text);
    CHECK(text.find(key) != std::string::npos);
  };
  names(refusal("cosine", {{"warmup_steps", -1}}), "warmup_steps");
  names(refusal("cosine", {{"warmup_steps", 1.5}}), "warmup_steps");
  names(refusal("cosine", {{"warmup_factor", 1.1}}), "warmup_factor");
  names(refusal("cosine", {{"min_lr", -1e-6}}), "min_lr");
  names(refusal("cosine", {{"gamma", 0.1}}), "gamma");
  names(refusal("multistep", {{"milestones", {3, 2}}}), "milestones");
  names(refusal("multistep", {{"milestones", {2, 2}}}), "milestones");
  names(refusal("multistep", {{"milestones", {0, 2}}}), "milestones");
  names(refusal("multistep", {{"milestones", 3}}), "milestones");
  names(refusal("multistep", {{"gamma", 0}}), "gamma");
  names(refusal("step", {{"step_size", 0}}), "step_size");
  names(refusal("linear", {{"final_lr", -1}}), "final_lr");
  names(refusal("constant", {{"min_lr", 0.1}}), "min_lr");
  names(refusal("cosin", nlohmann::json::object()), "did you mean 'cosine'");
}

}  // namespace starling
