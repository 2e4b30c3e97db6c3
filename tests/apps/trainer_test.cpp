#include "apps/trainer/trainer.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "apps/trainer/plugins.h"
#include "comm/fake_transport.h"
#include "kernels/optimizer.h"

namespace starling {
namespace {

nlohmann::json small_config() {
  return nlohmann::json::parse(R"({
    "model": {"type": "resnet20", "num_classes": 4},
    "data": {"type": "synthetic", "image_size": 8, "classes": 4, "limit": 128, "test_limit": 16},
    "batch_size": 4, "steps": 30, "optimizer": {"type": "accum_adamw", "lr": 0.001}, "sync": {"bucket_mb": 0.25}, "threads": 1})");
}

/// A trainer with all that it needs, on one thread.
struct Run {
  explicit Run(const nlohmann::json& json, Transport& ranks)
      : transport(ranks),
        site{ranks.size(), ranks.size()},
        config(read_train_config(json, "test", site)),
        trace(trace_shapes(*config.model, config.batch_size, config.dtype, config.allow_unused, config.compute)),
        backend(open_backend(DeviceType::kCpu, 1)) {
    config.dataset->open();
    trainer = std::make_unique<Trainer>(config, site, trace, *backend, transport);
    trainer->initialise();
  }
  ~Run() {
    trainer.reset();
    config.model.reset();  // its tensors go before the backend
  }
  Transport& transport;
  RunSite site;
  TrainConfig config;
  ShapeTrace trace;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Trainer> trainer;
};

TEST_CASE("trainer: no allocation from the system after the second step") {
  register_builtins();
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    FakeWorld world(ranks);
    std::vector<std::uint64_t> grown(static_cast<std::size_t>(ranks), 1);
    world.run([&](Transport& transport) {
      Run run(small_config(), transport);
      for (int i = 0; i < 2; ++i) run.trainer->step();
      const MemoryStats before = run.backend->memory_stats();
      for (int i = 0; i < 20; ++i) run.trainer->step();
      const MemoryStats after = run.backend->memory_stats();
      grown[static_cast<std::size_t>(transport.rank())] = after.system_allocations - before.system_allocations;
      CHECK(after.allocations > before.allocations);  // the counter counts
      run.trainer->finish();
    });
    for (const std::uint64_t count : grown) CHECK(count == 0);
  }
}

TEST_CASE("trainer: a config's mistakes are named by path") {
  register_builtins();
  const auto message = [](const char* patch) {
    nlohmann::json config = small_config();
    config.merge_patch(nlohmann::json::parse(patch));
    try {
      read_train_config(config, "test.json", {4, 4});
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kUsage);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto contains = [&](const char* patch, std::initializer_list<const char*> parts) {
    const std::string text = message(patch);
    CAPTURE(text);
    for (const char* part : parts) CHECK(text.find(part) != std::string::npos);
    CHECK(text.find('\n') == std::string::npos);
  };
  contains(R"({"optimizer": {"lrr": 1}})", {"test.json", "optimizer.lrr", "optimizer.lr"});
  contains(R"({"optimizer": {"lr": -1}})", {"optimizer.lr", "-1", ">= 0"});
  contains(R"({"optimizer": "sgd"})", {"optimizer", "object"});
  contains(R"({"model": {"type": "resnet21"}})", {"model.type", "resnet21", "resnet20"});
  contains(R"({"model": {"num_classes": 3}})", {"model.num_classes", "4"});
  contains(R"({"batch_size": 33})", {"batch_size", "32"});
  contains(R"({"accumulate": 9})", {"accumulate", "8"});
  contains(R"({"epochs": 2})", {"steps", "epochs"});
  contains(R"({"clip_norm": 1, "sync": {"update": "in_backward"}})", {"sync.update", "after_backward"});
  contains(R"({"sync": {"topology": {"type": "Ring"}}})", {"sync.topology.type", "'ring'"});
  contains(R"({"sync": {"algorithm": "gosip"}})", {"sync.algorithm", "'gossip'"});
  contains(R"({"precision": "bf32"})", {"precision", "bf16"});
  contains(R"({"precision": "fp16", "sync": {"update": "in_backward"}})", {"sync.update", "fp16", "after_backward"});
  contains(R"({"cuda_graphs": 3})", {"cuda_graphs", "auto"});
  contains(R"({"cuda_graphs": "false"})", {"cuda_graphs", "auto, true, false"});
  // Known beforehand to be impossible, for a GPU alone.
  contains(R"({"cuda_graphs": true, "device": "cuda", "sync": {"topology": {"type": "random-matching"}}})",
           {"cuda_graphs", "rounds never repeat", "auto, false"});
  contains(R"({"cuda_graphs": true, "device": "cuda", "sync": {"transport": "staged"}})", {"cuda_graphs", "staged", "through the host"});
  contains(R"({"cuda_graphs": true, "device": "cuda", "optimizer": {"type": "accum_adamw", "accum_iter": 65}})",
           {"cuda_graphs", "130 graphs", "64"});
  contains(R"({"precision": "fp16", "device": "cpu"})", {"precision", "fp16 needs a GPU"});
  contains(R"({"data": {"augment": {"crop_padding": 8}}})", {"data.augment.crop_padding", "8"});
  contains(R"({"schedule": {"type": "cosine", "warmup": 3}})", {"schedule.warmup", "'warmup_steps'"});
  CHECK(message(R"({"cuda_graphs": false})") == "no error");
  CHECK(message(R"({"cuda_graphs": "auto"})") == "no error");
  CHECK(message(R"({"cuda_graphs": true})") == "no error");
  CHECK(message(R"({"cuda_graphs": true, "device": "cuda"})") == "no error");
  CHECK(message(R"({"cuda_graphs": "auto", "device": "cuda", "sync": {"topology": {"type": "random-matching"}}})") == "no error");
  CHECK(message(R"({"cuda_graphs": true, "device": "cpu", "sync": {"topology": {"type": "random-matching"}}})") == "no error");
  CHECK(message(R"({"precision": "fp16"})") == "no error");
  CHECK(message(R"({"clip_norm": 1})") == "no error");
  CHECK(message(R"({"steps": null, "epochs": 2})") == "no error");
}

TEST_CASE("trainer: the resolved config reads back to itself") {
  register_builtins();
  const nlohmann::json first = read_train_config(small_config(), "test", {2, 2}).resolved;
  CHECK(read_train_config(first, "test", {2, 2}).resolved == first);
  CHECK(first["sync"]["topology"]["type"] == "base-2");
  CHECK(first["optimizer"]["decay"] == "weights");
  CHECK(first["cuda_graphs"] == "auto");
}

TEST_CASE("trainer: steps and epochs replace each other in settings") {
  nlohmann::json config = small_config();
  apply_settings(config, {"epochs=3"});
  CHECK_FALSE(config.contains("steps"));
  CHECK(config["epochs"] == 3);
}

}  // namespace
}  // namespace starling
