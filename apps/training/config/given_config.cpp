#include "apps/training/config/given_config.h"

#include <algorithm>
#include <filesystem>

#include "apps/inference/description.h"
#include "apps/inference/hugging_face.h"
#include "apps/training/config/model_metadata.h"
#include "core/config.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text.h"

namespace starling {

std::string source_of(const TrainOptions& options) {
  return options.config.empty() ? options.evaluate : options.config;
}

nlohmann::json given_config(const TrainOptions& options) {
  const std::string source = source_of(options);
  nlohmann::json config = options.config.empty()
                              ? config_of_model(read_described(source, false), source)
                              : read_json_file(source);
  if (!options.join.empty() && config.is_object())
    config = config.value("config", nlohmann::json());
  if (!config.is_object())
    fail(ExitCode::kUsage, "config", "{}: holds {}, needed: a JSON object", source,
         config.type_name());
  if (!options.evaluate.empty() && !options.config.empty() && !config.contains("model")) {
    const std::string& file = options.evaluate;
    config["model"] =
        parse_json(description_of(read_described(file, false), file).config, file)["model"];
  }
  apply_settings(config, options.settings);
  if (!options.device.empty()) config["device"] = options.device;
  if (!options.trace.empty()) config["trace"] = options.trace;
  const auto names_no_data = [](const nlohmann::json& data) {
    const auto path = data.find("path");
    return path != data.end() && path->is_string() && path->get_ref<const std::string&>().empty();
  };
  if (options.config.empty() && config["data"].is_object() && names_no_data(config["data"])) {
    // A folder of Hugging Face's has a tokenizer, but no data
    nlohmann::json& data = config["data"];
    if (options.test.empty() || !data.contains("tokenizer"))
      fail(ExitCode::kUsage, "arguments",
           "--evaluate {}: it names no data; give {}, or a config: starling-train CONFIG.json "
           "--evaluate {}",
           options.evaluate,
           data.contains("tokenizer") ? "a text to test, --test PATH" : "a folder with a tokenizer",
           options.evaluate);
    data["path"] = options.test;
    std::error_code error;
    if (options.test.ends_with(".bin") || std::filesystem::exists(options.test + "/val.bin", error))
      data["type"] = "tokens";
    if (std::filesystem::exists(options.test + "/meta.json", error)) data.erase("tokenizer");
  }
  if (!options.evaluate.empty() && config.is_object()) {
    // What is tested is merged with its base
    config.erase("lora");
    if (config.contains("init") && config["init"].is_object()) config["init"].erase("adapter");
  }
  if (!options.test.empty() && config["data"].is_object()) {
    nlohmann::json& data = config["data"];
    data["val_path"] = options.test;
    for (const char* other : {"val_fraction", "test_limit"}) data.erase(other);
  }
  const nlohmann::json flat = config.flatten();
  for (const auto& [place, value] : flat.items()) {  // the command line's bytes; files are JSON
    if (!value.is_string() || is_utf8(value.get<std::string>())) continue;
    std::string key = place.substr(1);
    std::ranges::replace(key, '/', '.');
    fail(ExitCode::kUsage, "config", {.file = source, .key = key},
         "is {}, which is not UTF-8, so no config.json or model file can keep it; give another "
         "name, such as a link's",
         shown(value.get<std::string>()));
  }
  return config;
}

TrainConfig read_for_ranks(const TrainOptions& options, const RankLayout& site, bool first_rank) {
  nlohmann::json config = given_config(options);
  const std::string source = source_of(options);
  DataUse use;
  if (!options.evaluate.empty())
    use = {.tested_model = options.evaluate, .training_rows = options.of_training};
  use.opens = !options.dry_run;
  try {
    // The size is checked here for a dry run alone, else once the data is there
    return read_train_config(config, source, site, options.dry_run, use);
  } catch (const Error& error) {
    const ErrorParts& parts = error.parts();
    // A type that takes tests says itself what is wrong with these
    if (!options.test.empty() && parts.where.key == "data.val_path" &&
        parts.what.starts_with("is not a key of")) {
      fail(ExitCode::kUsage, "arguments",
           "--test {}: data of type {} has tests of its own and takes no others; leave it out",
           shown(options.test, 200), config["data"].value("type", "?"));
    }
    if (parts.component != "topology" && !parts.where.key.starts_with("sync.topology")) throw;
    if (!options.elastic) {
      if (options.resume.empty()) throw;
      ErrorParts told = parts;
      told.remedy += " (where the run had another number of ranks: add --elastic)";
      throw Error(error.code(), told);
    }
    const nlohmann::json elastic = config.value("elastic", nlohmann::json()),
                         given = elastic.is_object() ? elastic.value("topology", nlohmann::json())
                                                     : nlohmann::json();
    // What is no text is told by the reader
    const std::string other =
        given.is_string() ? given.get<std::string>() : ElasticSettings().topology;
    config["sync"]["topology"] = {{"type", other}};
    TrainConfig result = read_train_config(config, source, site, options.dry_run, use);
    if (first_rank) log::warning("{}; going on with elastic.topology, {}", error.message(), other);
    return result;
  }
}

}  // namespace starling
