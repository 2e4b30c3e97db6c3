#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/training/config/plugins.h"
#include "apps/training/training_run.h"
#include "tests/apps/trainer_run.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/folder.h"
#include "tests/support/rows.h"
#include "tests/support/soon.h"

// Whole runs whose ranks do not step together.
namespace starling {
namespace {

nlohmann::json asynchronous_run() {
  return nlohmann::json::parse(R"({
    "model": {"type": "mlp", "hidden": [16]},
    "data": {"type": "synthetic", "image_size": 8, "classes": 4, "limit": 512, "test_limit": 16},
    "batch_size": 4, "steps": 60, "optimizer": {"type": "sgd", "lr": 0.05}, "threads": 1, "deterministic": false, "log_every": 50,
    "sync": {"algorithm": {"type": "async", "interval_ms": 0}, "bucket_mb": 0.001},
    "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0}, "tensorboard": false})");
}

/// Tells of each step that begins.
class HeardSchedule final : public Schedule {
 public:
  HeardSchedule(std::unique_ptr<Schedule> inner, std::function<void(std::int64_t)> hear)
      : inner_(std::move(inner)), hear_(std::move(hear)) {}
  double lr(std::int64_t t) const override {
    hear_(t);
    return inner_->lr(t);
  }

 private:
  std::unique_ptr<Schedule> inner_;
  std::function<void(std::int64_t)> hear_;
};

TEST_CASE(
    "trainer/asynchronous: until a line of metrics waits for the one before, no step waits for a "
    "rank that stands still") {
  register_builtins();
  const test::Folder folder;
  std::atomic<int> ahead{0};
  FakeWorld(3).run([&](Transport& transport) {
    const int rank = transport.rank();
    const auto hear = [&, rank](std::int64_t step) {
      if (rank != 1 && step == 55) ++ahead;
      if (rank == 1 && step == 3) CHECK(test::soon([&] { return ahead == 2; }));
    };
    const test::TrainerRun run(asynchronous_run(), transport, [&](TrainConfig& config) {
      config.optimizer.make_schedule = [make = std::move(config.optimizer.make_schedule),
                                        hear](const ScheduleInputs& inputs) {
        return std::make_unique<HeardSchedule>(make(inputs), hear);
      };
    });
    CHECK(TrainingRun(*run.trainer, folder.path()).run() == ExitCode::kOk);
  });
  CHECK(ahead == 2);
  const nlohmann::json summary = nlohmann::json::parse(folder.read("summary.json"));
  CHECK(summary["algorithm"] == "async");
  CHECK(summary["steps"] == 60);
}

/// What lines of metrics.jsonl say of outer steps: the participants by step.
std::vector<std::pair<std::int64_t, nlohmann::json>> participants_in(const std::string& lines) {
  std::vector<std::pair<std::int64_t, nlohmann::json>> result;
  for (const nlohmann::json& line : test::json_lines(lines))
    if (line.contains("participants"))
      result.emplace_back(line["step"].get<std::int64_t>(), line["participants"]);
  return result;
}

nlohmann::json quorum_run() {
  nlohmann::json run = asynchronous_run();
  run["sync"]["algorithm"] = {{"type", "diloco"}, {"period", 10}, {"quorum", 2}, {"grace_ms", 1}};
  run["log_every"] = 3;
  return run;
}

TEST_CASE("trainer/quorum: a rank that stands still is left out, and comes back to where all are") {
  register_builtins();
  const test::Folder folder;
  std::atomic<bool> stands{false};
  std::atomic<int> ahead{0}, trained{0};
  std::vector<SafetensorsFile> states(3);
  FakeWorld(3).run([&](Transport& transport) {
    const int rank = transport.rank();
    bool passed = false;
    const auto hear = [&, rank](std::int64_t step) {
      if (rank == 1) {
        ++trained;
        // Lines of metrics, outer steps and questions whether to stop do not wait for it.
        if (step >= 12 && !stands.exchange(true)) CHECK(test::soon([&] { return ahead == 2; }));
      } else {
        if (step >= 11) CHECK(test::soon([&] { return stands.load(); }));
        if (step >= 45 && !std::exchange(passed, true)) ++ahead;
      }
    };
    const test::TrainerRun run(quorum_run(), transport, [&](TrainConfig& config) {
      config.optimizer.make_schedule = [make = std::move(config.optimizer.make_schedule),
                                        hear](const ScheduleInputs& inputs) {
        return std::make_unique<HeardSchedule>(make(inputs), hear);
      };
    });
    CHECK(TrainingRun(*run.trainer, folder.path()).run() == ExitCode::kOk);
    states[static_cast<std::size_t>(rank)] = run.trainer->state();
  });
  CHECK(ahead == 2);
  CHECK(trained < 60 - 25);
  const auto taken = participants_in(folder.read("metrics.jsonl"));
  REQUIRE(taken.size() == 6);
  for (std::size_t k = 0; k < taken.size(); ++k) {
    CHECK(taken[k].first == static_cast<std::int64_t>(10 * (k + 1)));
    if (k >= 1 && k <= 3) CHECK(taken[k].second == nlohmann::json{0, 2});
  }
  for (const std::size_t rank : {1, 2}) {
    for (const auto& [name, tensor] : states[0].tensors) {
      CAPTURE(name);
      if (name.find(".anchor") != std::string::npos ||
          name.find(".outer_momentum") != std::string::npos)
        CHECK(states[rank].tensors.at(name).bytes == tensor.bytes);
    }
  }
  // All lines are written, with losses of those that trained.
  int losses = 0;
  for (const nlohmann::json& line : test::json_lines(folder.read("metrics.jsonl")))
    losses += line.contains("loss") ? 1 : 0;
  CHECK(losses == 20);
  CHECK(nlohmann::json::parse(folder.read("summary.json"))["steps"] == 60);
}
}  // namespace
}  // namespace starling
