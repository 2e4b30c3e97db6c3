#include <doctest/doctest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <tuple>

#include "apps/training/config/plugins.h"
#include "apps/training/estimates/memory.h"
#include "apps/training/training_run.h"
#include "core/forwarding_backend.h"
#include "kernels/open_backend.h"
#include "tests/apps/trainer_run.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace starling {
namespace {

/// A device with so much memory and no more.
class SmallDevice final : public ForwardingBackend {
 public:
  SmallDevice(Backend& inner, std::size_t capacity)
      : ForwardingBackend(inner), capacity_(capacity) {}
  std::shared_ptr<Storage> allocate(std::size_t bytes) override {
    const std::size_t in_use = ForwardingBackend::memory_stats().in_use;
    if (in_use + bytes > capacity_) {
      fail(ExitCode::kMemory, "memory", "{} bytes are needed, {} are free", bytes,
           capacity_ - in_use);
    }
    return ForwardingBackend::allocate(bytes);
  }
  MemoryStats memory_stats() const override {
    MemoryStats stats = ForwardingBackend::memory_stats();
    stats.reserved = capacity_;
    return stats;
  }

 protected:
  void around(std::string_view, const std::function<void()>& operation) override { operation(); }

 private:
  std::size_t capacity_;
};

/// The message of what ends a training run on a device of `capacity` bytes; "" where nothing does.
std::string message_of_run(std::int64_t batch_size, std::size_t capacity) {
  const nlohmann::json json{{"model", {{"type", "resnet20"}, {"num_classes", 4}}},
                            {"data",
                             {{"type", "synthetic"},
                              {"image_size", 16},
                              {"classes", 4},
                              {"limit", 1024},
                              {"test_limit", 8}}},
                            {"batch_size", batch_size},
                            {"steps", 2},
                            {"tensorboard", false}};
  const test::Folder folder;
  const auto transport = make_single_transport();
  const auto cpu = open_backend(DeviceType::kCpu, 1);
  SmallDevice device(*cpu, capacity);
  TrainConfig config = read_train_config(json, "test", {});
  config.data.dataset->open();
  const ShapeTrace trace = trace_shapes(config);
  std::string message;
  {
    Trainer trainer(config, {}, trace, device, *transport);
    trainer.initialise();
    message =
        test::error_text(ExitCode::kMemory, [&] { TrainingRun(trainer, folder / ".").run(); });
  }
  config.model.reset();
  return message;
}

TEST_CASE(
    "trainer/memory: a device that is too small names the batch size that fits, and that one "
    "does") {
  register_builtins();
  constexpr std::size_t kCapacity = 48 << 20;
  const std::string message = message_of_run(256, kCapacity);
  CHECK(test::contains(message, "[memory] "));
  CHECK(test::contains(message, "are free; step 1 with batch_size 256: "));
  CHECK(test::contains(message, "; \"recompute\": \"block\" takes "));
  const std::string words = "a batch_size of about ";
  const auto at = message.find(words);
  REQUIRE(at != std::string::npos);
  const std::int64_t fits = std::atoll(message.c_str() + at + words.size());
  CHECK(fits > 16);
  CHECK(fits < 256);
  CHECK(message_of_run(fits, kCapacity).empty());
  CHECK_FALSE(message_of_run(2 * fits, kCapacity).empty());
}

TEST_CASE(
    "trainer/memory: a bucket's update in the backward pass gives its gradients' memory to the "
    "next bucket") {
  register_builtins();
  const auto of = [](const char* patch, int ranks = 1) {
    nlohmann::json json{
        {"model", {{"type", "resnet20"}, {"num_classes", 4}}},
        {"data", {{"type", "synthetic"}, {"image_size", 8}, {"classes", 4}, {"limit", 64}}},
        {"batch_size", 4},
        {"steps", 4},
        {"sync", {{"bucket_mb", 0.25}}}};
    json.merge_patch(nlohmann::json::parse(patch));
    const auto transport = make_single_transport();
    test::TrainerRun run(json, *transport);
    const MemoryNeed need = memory_need(run.config, {ranks, 1}, run.trace);
    for (int i = 0; i < 2; ++i) run.trainer->step();
    const auto held = static_cast<double>(run.backend->memory_stats().in_use);
    run.trainer->finish();
    return std::tuple(need.parameters, need.gradients, held);
  };
  const auto [all, passing, held] = of("{}");
  CHECK(passing > 0.25 * 1048576);
  CHECK(passing < 0.7 * all);
  const auto [same, kept, more] = of(R"({"sync": {"update": "after_backward"}})");
  CHECK(same == all);
  CHECK(kept == all);
  CHECK(more - held > 0.9 * all);
  CHECK(std::get<1>(of(R"({"accumulate": 2})")) == all);
  const auto [equal, alone, least] = of(R"({"sync": {"algorithm": "allreduce"}})");
  CHECK(alone == passing);  // of one rank, which waits for no sum
  CHECK(more - least > 0.9 * all);
  CHECK(std::get<1>(of(R"({"sync": {"algorithm": "allreduce"}})", 2)) == all);
  CHECK(std::get<1>(of(R"({"clip_norm": 1.0})")) == all);
}

TEST_CASE(
    "trainer/memory: where a rank cannot have a model of its own, the replica that fits is named") {
  register_builtins();
  const nlohmann::json json{
      {"model", {{"type", "mlp"}, {"hidden", std::vector<int>(12, 256)}}},
      {"data", {{"type", "synthetic"}, {"image_size", 8}, {"limit", 64}}},
      {"batch_size", 2},
      {"steps", 1},
      {"optimizer", {{"type", "adamw"}, {"lr", 0.001}}},
      {"sync", {{"topology", {{"type", "one-peer-exp"}}}, {"bucket_mb", 0.25}}}};
  FakeWorld world(4);
  world.run([&](Transport& transport) {
    const RankLayout site{4, 4};
    TrainConfig config = read_train_config(json, "test", site);
    const ShapeTrace trace = trace_shapes(config);
    const auto needed = [&](int replica) {
      return memory_need(config, {4, 4, replica}, trace).total();
    };
    const auto cpu = open_backend(DeviceType::kCpu, 1);
    const auto message = [&](double capacity) {
      SmallDevice device(*cpu, static_cast<std::size_t>(capacity));
      return test::error_text(ExitCode::kMemory, [&] {
        const Trainer trainer(config, site, trace, device, transport);
      });
    };
    CHECK(needed(4) < needed(2));
    CHECK(test::contains(message(needed(2)),
                         "are free; \"sync.replica\": 2 takes " + size_text(needed(2))));
    CHECK(test::contains(message(needed(4)), "; \"sync.replica\": 4 takes "));
    CHECK(test::contains(message(needed(4) - 1.0), "; no other recompute or replica fits"));
    config.model.reset();
    config.task.reset();
  });
}

TEST_CASE("trainer/memory: where not even one sample fits, that is said") {
  register_builtins();
  CHECK(test::contains(message_of_run(2, 2'500'000), "not even a batch_size of 1 would fit"));
}

}  // namespace
}  // namespace starling
