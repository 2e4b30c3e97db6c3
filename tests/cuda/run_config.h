#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "apps/training/config/train_config.h"

// The run that tests of whole trainings on a GPU change as they need it.
namespace starling::tests {

/// A small convolutional network whose every kind of work depends on the step: batch norm's
/// statistics, dropout, crops and flips.
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

/// So many ranks of one host, in the config's replicas.
inline RankLayout one_host(int ranks, const nlohmann::json& config) {
  return {ranks, ranks, config.value(nlohmann::json::json_pointer("/sync/replica"), 1)};
}

/// The config as it is for a GPU, in the dtype that its precision means there, its data open.
inline TrainConfig read_gpu_config(const nlohmann::json& json, const RankLayout& site) {
  TrainConfig config = read_train_config(json, "test", site);
  config.device.compute = config.device.precision == "bf16"   ? DType::kBFloat16
                          : config.device.precision == "fp16" ? DType::kFloat16
                                                              : config.device.dtype;
  config.data.dataset->open();
  return config;
}

}  // namespace starling::tests
