#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/data/augment.h"
#include "apps/inference/test_views.h"
#include "apps/training/schedules/run_length.h"
#include "apps/training/tasks/task.h"
#include "core/config.h"
#include "layers/layer.h"

namespace starling {

/// Section `evaluate`: when tests come, what they show of an image, and what text they go on with.
struct EvaluateSettings {
  Interval interval;
  std::vector<TestView> views;
  std::string prompt;  ///< of a language model: what each test goes on with; empty: nothing
  std::int64_t prompt_tokens = 64;
};
EvaluateSettings read_evaluate(ConfigSection& root, const DatasetInfo& data);

/// Reads `task`. `metrics` gets the names of the metrics, which are made once there is a model.
std::unique_ptr<Task> read_task(ConfigSection& root, const DatasetInfo& data,
                                std::vector<std::string>& metrics);
/// Reads `model`, for the task.
std::unique_ptr<Model> read_model(ConfigSection& root, const DatasetInfo& data, const Task* task);
/// Section `loss`, except what the task keeps of it.
struct LossSettings {
  /// loss.class_weights is "balanced": the loss is told of weights once the data is open
  bool balanced_classes = false;
};
/// Reads `loss`, and makes the metrics: the task has both then.
LossSettings read_loss(ConfigSection& root, const DatasetInfo& data, const Model* model,
                       const std::vector<std::string>& metrics, Task* task);
/// The weights of "balanced", one for each output: S / (K·s_c) of a class with s_c of the S
/// samples, where K classes have any, and 0 of one without. Their mean over the samples is 1.
std::vector<double> balanced_weights(const std::vector<std::int64_t>& samples_of_classes,
                                     std::int64_t outputs);
/// Checks, where batches are mixed, what they need of task and loss: targets are shares then.
void settle_mixing(const ConfigSection& root, const Augmenters& augment, const DatasetInfo& data,
                   const Model& model, std::int64_t batch_size, Task& task);

}  // namespace starling
