#include "apps/training/state/early_stopping.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/registry.h"
#include "core/text.h"

namespace starling {

const MetricValue* Decisive::of(const std::vector<MetricValue>& values) const {
  const auto found = std::ranges::find_if(
      values, [&](const MetricValue& value) { return "test_" + value.name == metric; });
  return found == values.end() ? nullptr : &*found;
}

Decisive read_decisive(ConfigSection& section, const std::vector<MetricValue>& tested) {
  Decisive settings;
  std::vector<std::string> names;
  for (const MetricValue& value : tested) names.push_back("test_" + value.name);
  const std::string usual = tested.empty() ? "test_accuracy" : "test_" + decisive(tested).name;
  settings.metric =
      section.text("metric", usual, "the number of tests that decides, as metrics.jsonl calls it");
  if (std::ranges::find(names, settings.metric) == names.end())
    section.error("metric", "unknown value '{}'{}; allowed: {}", shown(settings.metric, 60),
                  suggestion(settings.metric, names), fmt::join(names, ", "));
  const std::string mode = section.choice("mode", "auto", {"auto", "min", "max"},
                                          "what is better; auto: a loss falls, a share rises");
  const MetricValue* value = settings.of(tested);
  settings.rises = mode == "auto" ? value && (value->share || value->rises) : mode == "max";
  return settings;
}

bool EarlyStopping::ends(const std::vector<MetricValue>& values, std::int64_t step) {
  const MetricValue* found = settings_.of(values);
  // A test without a number, as r2 of targets that are all the same, is neither better nor worse
  if (!found || !std::isfinite(found->value)) return ended();
  if (best_step_ < 0 || settings_.better(found->value, best_, settings_.min_delta)) {
    best_ = found->value;
    best_step_ = step;
    waited_ = 0;
  } else {
    ++waited_;
  }
  return ended();
}

std::string EarlyStopping::text() const {
  return nlohmann::json{{"metric", settings_.metric},
                        {"waited", waited_},
                        {"best_step", best_step_},
                        {"best", fmt::format("{:a}", best_)}}
      .dump();
}

void EarlyStopping::read(const std::string& text, const std::string& source) {
  try {
    const auto json = nlohmann::json::parse(text);
    if (json.at("metric") != settings_.metric) return;
    waited_ = json.at("waited").get<std::int64_t>();
    best_step_ = json.at("best_step").get<std::int64_t>();
    best_ = std::strtod(json.at("best").get<std::string>().c_str(), nullptr);
  } catch (const nlohmann::json::exception&) {
    fail(ExitCode::kUsage, "resume", {.file = source}, "the entry 'early_stopping' is damaged");
  }
}

std::optional<EarlyStoppingSettings> read_early_stopping(ConfigSection& root,
                                                         const std::vector<MetricValue>& tested,
                                                         bool has_tests) {
  const char* doc =
      "ends the run at a test when the tests no longer become better; off where it is not given";
  std::optional<ConfigSection> section = root.optional_section("early_stopping", doc);
  if (!section) return std::nullopt;
  EarlyStoppingSettings settings{read_decisive(*section, tested)};
  section->read("patience", settings.patience, Range::closed(1, 1e9),
                "so many tests in a row without a better one end it");
  section->read("min_delta", settings.min_delta, Range::at_least(0.0),
                "a better one is better by more than this");
  section->finish();
  if (!has_tests)
    root.error("early_stopping",
               "goes by tests, of which there is one at the end alone; needed: "
               "evaluate.every_epochs or evaluate.every_steps above 0");
  return settings;
}

}  // namespace starling
