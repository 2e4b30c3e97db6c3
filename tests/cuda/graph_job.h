#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "apps/trainer/config/plugins.h"
#include "apps/trainer/state/checkpoint.h"
#include "apps/trainer/training_run.h"
#include "comm/transport.h"
#include "core/backend.h"
#include "core/safetensors.h"
#include "tests/support/folder.h"

// Whole runs of the trainer with and without graphs, to be compared bit by bit.
namespace starling::tests {

/// A small convolutional network whose every kind of work depends on the step: batch norm's statistics, dropout, crops and flips.
inline nlohmann::json graph_config(std::int64_t steps) {
  const nlohmann::json layers = nlohmann::json::parse(R"([
    {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
    {"type": "dropout", "p": 0.2}, {"type": "global_avg_pool"}, {"type": "linear", "out_features": 4}])");
  return {{"model", {{"type", "sequential"}, {"num_classes", 4}, {"layers", layers}}},
          {"data",
           {{"type", "synthetic"},
            {"image_size", 6},
            {"classes", 4},
            {"limit", 96},
            {"test_limit", 8},
            {"augment", {{"flip", true}, {"crop_padding", 1}}}}},
          {"batch_size", 3},
          {"steps", steps},
          {"optimizer", {{"type", "sgd"}, {"lr", 0.05}, {"momentum", 0.9}, {"weight_decay", 0.01}}},
          {"schedule", {{"type", "cosine"}, {"warmup_steps", 3}}},
          {"sync", {{"bucket_mb", 0.0002}}},
          {"evaluate", {{"every_epochs", 0}}},
          {"checkpoint", {{"every_epochs", 0}}},
          {"log_every", 1},
          {"tensorboard", false}};
}
inline nlohmann::json with(nlohmann::json config, const nlohmann::json& patch) {
  config.merge_patch(patch);
  return config;
}

/// What a rank's run left.
struct GraphOutcome {
  std::map<std::string, FileTensor> tensors;  ///< of its last checkpoint: parameters, states of the optimizer, buffers
  std::vector<double> losses;                 ///< rank 0: a step each
  std::string why_not;
  std::int64_t warm_up = 0;
  std::size_t graphs = 0;
  LossScaleState scale;
  std::uint64_t launches = 0;  ///< of graphs, by all ranks, while it ran
};

/// One rank's run. `prepare` may change the config's objects; `resume_step` > 0 goes on from the folder's checkpoint.
struct GraphJob {
  nlohmann::json config;
  RankLayout site;
  std::function<void(TrainConfig&)> prepare;
  std::int64_t resume_step = 0;
};

inline GraphOutcome run_graph_job(const GraphJob& job, Backend& backend, Transport& transport, const std::string& folder) {
  TrainConfig config = read_train_config(job.config, "test", job.site);
  config.compute = config.precision == "bf16" ? DType::kBFloat16 : config.precision == "fp16" ? DType::kFloat16 : config.dtype;
  if (job.prepare) job.prepare(config);
  config.dataset->open();
  const ShapeTrace trace = trace_shapes(config);
  GraphOutcome outcome;
  {
    Trainer trainer(config, job.site, trace, backend, transport);
    const CheckpointFolder checkpoints(folder);
    if (job.resume_step > 0) {
      const std::string source = checkpoints.rank_file(job.resume_step, transport.rank());
      trainer.resume(checkpoints.read(job.resume_step, transport.rank()), source);
    } else {
      trainer.initialise();
    }
    const ExitCode code = TrainingRun(trainer, folder).run();
    CHECK(code == ExitCode::kOk);
    const std::int64_t steps = run_length(config, job.site).total_steps;
    outcome.tensors = checkpoints.read(steps, transport.rank()).tensors;
    outcome.why_not = trainer.graphs().why_not();
    outcome.warm_up = trainer.graphs().warm_up_steps();
    outcome.graphs = trainer.graphs().graphs();
    if (trainer.loss_scaler()) outcome.scale = trainer.loss_scaler()->settle();
  }
  config.model.reset();
  return outcome;
}

inline std::vector<double> losses_in(const test::Folder& folder) {
  std::vector<double> losses;
  std::istringstream stream(folder.read("metrics.jsonl"));
  for (std::string line; std::getline(stream, line);) {
    const nlohmann::json fields = nlohmann::json::parse(line);
    if (fields.contains("loss")) losses.push_back(fields["loss"].get<double>());
  }
  return losses;
}

/// The names of tensors whose bits differ; "" where none do.
inline std::string differences(const GraphOutcome& found, const GraphOutcome& wanted) {
  std::string names;
  if (found.tensors.size() != wanted.tensors.size() || wanted.tensors.empty()) names = "numbers of tensors ";
  for (const auto& [name, tensor] : wanted.tensors) {
    const auto it = found.tensors.find(name);
    if (it == found.tensors.end() || it->second.bytes != tensor.bytes) names += name + " ";
  }
  if (found.losses != wanted.losses) names += "losses";
  return names;
}

}  // namespace starling::tests
