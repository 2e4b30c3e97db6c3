#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/training/config/plugins.h"
#include "apps/training/training_run.h"
#include "tests/apps/trainer_run.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/folder.h"
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

}  // namespace
}  // namespace starling
