#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>

#include "apps/trainer/config/plugins.h"
#include "apps/trainer/training_run.h"
#include "kernels/open_backend.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/errors.h"
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

void train_here(const nlohmann::json& json, Transport& transport, const std::string& folder,
                const std::function<void(std::int64_t step)>& hear) {
  const RankLayout site{transport.size(), transport.size()};
  TrainConfig config = read_train_config(json, "test", site);
  config.dataset->open();
  config.make_schedule = [make = std::move(config.make_schedule), hear](const ScheduleInputs& inputs) {
    return std::make_unique<HeardSchedule>(make(inputs), hear);
  };
  const ShapeTrace trace = trace_shapes(config);
  const auto backend = open_backend(DeviceType::kCpu, 1);
  {
    Trainer trainer(config, site, trace, *backend, transport);
    trainer.initialise();
    CHECK(TrainingRun(trainer, folder).run() == ExitCode::kOk);
  }
  config.model.reset();
}

TEST_CASE("trainer/asynchronous: until a line of metrics waits for the one before, no step waits for a rank that stands still") {
  register_builtins();
  const test::Folder folder;
  std::atomic<int> ahead{0};
  FakeWorld world(3);
  world.run([&](Transport& transport) {
    const int rank = transport.rank();
    train_here(asynchronous_run(), transport, folder.path(), [&](std::int64_t step) {
      if (rank != 1 && step == 55) ++ahead;
      if (rank == 1 && step == 3) CHECK(test::soon([&] { return ahead == 2; }));
    });
  });
  CHECK(ahead == 2);
  const nlohmann::json summary = nlohmann::json::parse(folder.read("summary.json"));
  CHECK(summary["algorithm"] == "async");
  CHECK(summary["steps"] == 60);
}

TEST_CASE("trainer/asynchronous: switches into it and out of it, tests and checkpoints between averages") {
  register_builtins();
  nlohmann::json config = asynchronous_run();
  config["sync"]["algorithm"] = "allreduce";
  config["sync"]["switch"] = nlohmann::json::parse(R"([
    {"step": 8, "algorithm": {"type": "async", "interval_ms": 0, "warmup": 3}}, {"step": 30, "algorithm": "gossip"},
    {"step": 40, "algorithm": {"type": "async", "interval_ms": 1}}])");
  config["evaluate"] = {{"every_steps", 7}};
  config["checkpoint"] = {{"every_steps", 9}};
  config["log_every"] = 5;
  const test::Folder folder;
  FakeWorld world(3, {30.0, 0.001, 2});
  world.run([&](Transport& transport) { train_here(config, transport, folder.path(), [](std::int64_t) {}); });
  std::istringstream lines(folder.read("metrics.jsonl"));
  double first = 0.0, last = 0.0;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json fields = nlohmann::json::parse(line);
    if (!fields.contains("loss")) continue;
    last = fields["loss"];
    if (first == 0.0) first = last;
  }
  CHECK(first > 0.0);
  CHECK(last < 0.9 * first);
}

TEST_CASE("trainer/asynchronous: a config that asks for the same bits in every run is refused, in a switch too") {
  register_builtins();
  const auto message = [](const nlohmann::json& patch) {
    nlohmann::json config = asynchronous_run();
    config.erase("deterministic");
    config.merge_patch(patch);
    return test::error_text(ExitCode::kUsage, [&] { read_train_config(config, "test.json", {4, 4}); });
  };
  const nlohmann::json switched =
      nlohmann::json::parse(R"({"sync": {"algorithm": "gossip", "switch": [{"step": 3, "algorithm": "async"}]}})");
  CHECK(test::contains(message({{"deterministic", true}}), "sync.algorithm: asynchronous averaging"));
  CHECK(test::contains(message(nlohmann::json::object()), "allowed: \"deterministic\": false"));
  CHECK(test::contains(message(switched), "sync.switch[0].algorithm: asynchronous averaging"));
  CHECK(message({{"deterministic", false}}) == "");
  const nlohmann::json resolved = read_train_config(asynchronous_run(), "test.json", {4, 4}).resolved;
  CHECK(resolved["deterministic"] == false);
  CHECK(resolved["sync"]["algorithm"] == nlohmann::json{{"type", "async"}, {"interval_ms", 0}, {"warmup", 0}});
}

}  // namespace
}  // namespace starling
