#include "apps/bench/support.h"

#include <nlohmann/json.hpp>

#include "core/config.h"

namespace starling {

std::unique_ptr<Model> bench_model(const std::string& type, const std::string& stem,
                                   std::int64_t image, std::int64_t classes) {
  nlohmann::json config{{"type", type}, {"num_classes", classes}};
  if (!stem.empty()) config["stem"] = stem;
  if (type == "mlp") config["hidden"] = {512, 512};
  ConfigSection section(config, "bench");
  return make_model(section, Shape{image, image, 3});
}

std::unique_ptr<Task> bench_task(std::int64_t image, std::int64_t classes) {
  return classification_task(Shape{image, image, 3}, classes);
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
