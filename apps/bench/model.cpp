#include "apps/bench/support.h"

#include <nlohmann/json.hpp>

#include "core/config.h"

namespace starling {

std::unique_ptr<Model> bench_model(const ModelBench& settings) {
  const std::string& type = settings.model;
  nlohmann::json config =
      type.starts_with('{') ? parse_json(type, "--model") : nlohmann::json{{"type", type}};
  config["num_classes"] = settings.classes;
  if (!settings.stem.empty()) config["stem"] = settings.stem;
  if (type == "mlp") config["hidden"] = {512, 512};
  ConfigSection section(config, "bench");
  if (settings.tokens > 0) return make_model(section, Shape{settings.tokens});
  return make_model(section, Shape{settings.image, settings.image, 3});
}

std::unique_ptr<Task> bench_task(const ModelBench& settings) {
  if (settings.tokens == 0)
    return classification_task(Shape{settings.image, settings.image, 3}, settings.classes);
  register_builtin_tasks();
  register_builtin_losses();
  const DatasetInfo data{
      .tensors = {{"tokens", {settings.tokens}, DType::kInt32, settings.classes},
                  {"targets", {settings.tokens}, DType::kInt32, settings.classes}},
      .all_count = true};
  const nlohmann::json none = nlohmann::json::object();
  ConfigSection keys(none, "task");
  auto task = tasks().make("language_model", "task.type", keys, data);
  task->set_loss(losses().make(task->usual_loss(), "loss.type", keys));
  return task;
}

std::unique_ptr<OptimizerRule> bench_rule(const std::string& type) {
  const nlohmann::json config = nlohmann::json::object();
  ConfigSection section(config, "bench");
  return optimizers().make(type, "optimizer", section);
}

std::unique_ptr<Topology> bench_topology(const std::string& type, int ranks) {
  nlohmann::json config = nlohmann::json::object();
  if (!type.empty()) config["type"] = type;
  ConfigSection section(config, "bench");
  return make_topology(section, {ranks, 1});
}

}  // namespace starling
