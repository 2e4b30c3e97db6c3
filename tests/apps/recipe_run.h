#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "apps/training/config/plugins.h"
#include "apps/training/training_run.h"
#include "tests/apps/data_test_support.h"
#include "tests/apps/trainer_run.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

// A run with all that a recipe may ask for, and what it tells.
namespace starling::test {

inline nlohmann::json recipe_config(const char* patch = "{}") {
  register_builtins();
  nlohmann::json config = nlohmann::json::parse(R"({
    "model": {"type": "sequential", "layers": [{"type": "batch_norm"}, {"type": "conv2d", "out_channels": 4, "kernel_size": 3},
      {"type": "batch_norm", "momentum": 0.3}, {"type": "relu"}, {"type": "dropout", "p": 0.25}, {"type": "flatten"},
      {"type": "linear", "out_features": 4}]},
    "data": {"type": "synthetic", "image_size": 8, "classes": 4, "limit": 128, "test_limit": 32, "augment": {"crop_padding": 1}},
    "precision": "fp64", "batch_size": 4, "steps": 8, "optimizer": {"type": "sgd", "lr": 0.05, "momentum": 0.9},
    "sync": {"bucket_mb": 0.001, "topology": {"type": "ring"}}, "threads": 1, "log_every": 1, "tensorboard": false,
    "evaluate": {"every_steps": 2}, "checkpoint": {"every_epochs": 0}})");
  config.merge_patch(nlohmann::json::parse(patch));
  return config;
}

/// Trains to the config's end, or `stop` steps of it, and gives what run() came to.
inline ExitCode train_to_end(const nlohmann::json& json, const std::string& folder, int ranks,
                             bool resume = false) {
  ExitCode code = ExitCode::kInternal;
  FakeWorld(ranks).run([&](Transport& transport) {
    TrainerRun run(json, transport);
    const CheckpointFolder checkpoints(folder);
    if (resume) {
      const std::int64_t step = checkpoints.newest().value_or(0);
      run.trainer->resume(checkpoints.read(step, transport.rank()), "test");
    }
    const ExitCode result = TrainingRun(*run.trainer, folder).run();
    if (transport.rank() == 0) code = result;
  });
  return code;
}

inline std::vector<nlohmann::json> lines_with(const std::string& folder, const char* key) {
  std::vector<nlohmann::json> lines;
  std::istringstream in(read_text(folder + "/metrics.jsonl"));
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains(key)) lines.push_back(json);
  }
  return lines;
}

}  // namespace starling::test
