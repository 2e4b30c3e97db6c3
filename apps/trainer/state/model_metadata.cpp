#include "apps/trainer/state/model_metadata.h"

#include <nlohmann/json.hpp>

#include "apps/inference/model_file.h"
#include "core/config.h"
#include "core/error.h"

namespace starling {
namespace {

constexpr const char* kConfigEntry = "starling.config";
constexpr const char* kClassesEntry = "starling.classes";
constexpr const char* kNormalizeEntry = "starling.normalize";

}  // namespace

void describe_model(const TrainConfig& config, SafetensorsFile& file) {
  file.metadata[kConfigEntry] = config.resolved.dump();
  if (config.data.classes > 0) file.metadata[kClassesEntry] = nlohmann::json(config.data.names_of_classes(config.data.classes)).dump();
  for (const TensorInfo& tensor : config.data.tensors) {
    if (!tensor.pixels) continue;
    const auto channels = static_cast<std::ptrdiff_t>(tensor.shape.back());
    const auto of_channels = [&](const std::array<double, 4>& values) {
      return std::vector<double>(values.begin(), values.begin() + channels);
    };
    const nlohmann::json normalize{{"mean", of_channels(tensor.pixels->mean)}, {"std", of_channels(tensor.pixels->std)}};
    file.metadata[kNormalizeEntry] = normalize.dump();
    return;
  }
}

void write_model(const TrainConfig& config, const std::string& path) {
  SafetensorsFile file;
  add_model_tensors(*config.model, "", file);
  file.metadata["format"] = "pt";
  describe_model(config, file);
  write_safetensors(path, file);
}

nlohmann::json config_of_model(const SafetensorsFile& file, const std::string& source) {
  const auto entry = file.metadata.find(kConfigEntry);
  if (entry == file.metadata.end()) {
    fail(ExitCode::kUsage, "model file",
         "{} does not say by what config it was trained (its metadata have no {}); give one: starling-train CONFIG.json --evaluate {}",
         source, kConfigEntry, source);
  }
  const std::string place = source + ", " + kConfigEntry;
  const nlohmann::json whole = parse_json(entry->second, place);
  if (!whole.is_object() || !whole.contains("model") || !whole.contains("data")) {
    fail(ExitCode::kUsage, "model file", "{} holds no config of a model and its data; needed: the resolved config of a run", place);
  }
  nlohmann::json config = nlohmann::json::object();
  for (const char* key :
       {"seed", "plugins", "precision", "deterministic", "tf32", "cudnn_benchmark", "model", "data", "task", "loss", "batch_size"}) {
    if (whole.contains(key)) config[key] = whole[key];
  }
  // How training samples were drawn and changed says nothing of a test.
  for (const char* key : {"shuffle", "sampler", "partition", "augment", "cache"}) {
    if (config["data"].is_object()) config["data"].erase(key);
  }
  config["steps"] = 1;
  return config;
}

}  // namespace starling
