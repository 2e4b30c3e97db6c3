#include "apps/training/config/model_metadata.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "apps/inference/adapter.h"
#include "apps/inference/model_file.h"
#include "apps/inference/model_source.h"
#include "core/config.h"
#include "core/error.h"
#include "core/log.h"

namespace starling {
namespace {

constexpr const char* kTestShare = "starling.test_share";

}  // namespace

ModelDescription description_of(const TrainConfig& config) {
  ModelDescription description;
  description.config = config.resolved.dump();
  if (config.data.info.classes > 0)
    description.classes = config.data.info.names_of_classes(config.data.info.classes);
  description.image = config.model->input_shape();
  config.data.info.collate().describe(config.data.info, description);
  for (const auto& [key, to] : {std::pair("starling.companions", &description.companions),
                                {"starling.tokenizer", &description.tokenizer}}) {
    if (const auto kept = config.companions.find(key); kept != config.companions.end())
      *to = kept->second;
  }
  return description;
}

void describe_model(const TrainConfig& config, std::int64_t step, SafetensorsFile& file) {
  file.metadata[kStepMetadata] = std::to_string(step);
  describe(description_of(config), file);
  if (const auto& lora = config.state.lora)
    describe_adapter({.file = {},
                      .base = {std::filesystem::absolute(config.state.init.file).lexically_normal(),
                               config.state.base_digest},
                      .rank = lora->rank,
                      .alpha = lora->alpha,
                      .dropout = lora->dropout},
                     file);
  if (const auto& share = config.data.info.test_share) {
    nlohmann::json most = nlohmann::json::array();
    for (const auto& draw : share->most)
      most.push_back(draw ? nlohmann::json(*draw) : nlohmann::json());
    file.metadata[kTestShare] = nlohmann::json{
        {"seed", share->seed},
        {"most", std::move(most)},
        {"tests", share->tests},
        {"digest", share->digest},
        {"by", share->by}}.dump();
  }
}

std::optional<TestShare> test_share_of(const SafetensorsFile& file, const std::string& source) {
  const auto entry = file.metadata.find(kTestShare), config = file.metadata.find(kConfigMetadata);
  if (entry == file.metadata.end()) {
    const auto fraction = nlohmann::json::json_pointer("/data/val_fraction");
    const nlohmann::json trained =
        config == file.metadata.end() ? nlohmann::json() : parse_json(config->second, source);
    if (trained.is_object() && trained.contains(fraction) && trained[fraction].is_number() &&
        trained[fraction] > 0.0 && trained["data"].value("type", "") == "image_folder") {
      log::info(
          "warning: {} does not say which pictures its run set aside, as files of this version do: "
          "some that it was trained on may be tested",
          source);
    }
    return std::nullopt;
  }
  const nlohmann::json json = parse_json(entry->second, source + ": metadata " + kTestShare);
  TestShare share;
  const auto number = [](const nlohmann::json& value) {
    if (!value.is_number_unsigned()) throw std::invalid_argument("no number from 0 on");
    return value.get<std::uint64_t>();
  };
  try {
    share.seed = number(json.at("seed"));
    for (const auto& most : json.at("most").get_ref<const nlohmann::json::array_t&>())
      share.most.emplace_back(most.is_null() ? std::nullopt : std::optional(number(most)));
    if (json.contains("tests")) {
      share.tests = static_cast<decltype(share.tests)>(number(json["tests"]));
      share.digest = static_cast<decltype(share.digest)>(number(json.at("digest")));
    }
    share.by = json.value("by", share.by);
  } catch (const std::exception&) {
    fail(ExitCode::kUsage, "model file", "{}: metadata {}; needed: {}", source, kTestShare,
         R"({"seed": number, "most": [number or null, …], "tests": number, "digest": number})");
  }
  return share;
}

void write_model(const TrainConfig& config, std::int64_t step, const std::string& path) {
  SafetensorsFile file;
  add_model_tensors(*config.model, "", file, refer_file_tensor);
  file.metadata["format"] = "pt";
  describe_model(config, step, file);
  add_checksums(file);
  write_safetensors(path, file);
}

nlohmann::json config_of_model(const SafetensorsFile& file, const std::string& source) {
  const auto entry = file.metadata.find(kConfigMetadata);
  if (entry == file.metadata.end()) {
    fail(ExitCode::kUsage, "model file",
         "{} does not say by what config it was trained (its metadata have no {}); give one: "
         "starling-train CONFIG.json --evaluate {}",
         source, kConfigMetadata, source);
  }
  const std::string place = source + ", " + kConfigMetadata;
  const nlohmann::json whole = parse_json(entry->second, place);
  if (!whole.is_object() || !whole.contains("model") || !whole.contains("data")) {
    fail(ExitCode::kUsage, "model file",
         "{} holds no config of a model and its data; needed: the resolved config of a run", place);
  }
  // A data file does not say what code is to be run
  if (whole.contains("plugins") && !whole["plugins"].empty()) {
    fail(ExitCode::kUsage, "model file",
         "{} was trained with the plug-ins {}; give its config: starling-train CONFIG.json "
         "--evaluate {}",
         source, whole["plugins"].dump(), source);
  }
  nlohmann::json config = nlohmann::json::object();
  for (const char* key : {"seed", "precision", "deterministic", "tf32", "cudnn_benchmark", "model",
                          "data", "task", "loss", "batch_size"}) {
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
