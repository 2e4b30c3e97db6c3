#include "apps/inference/description.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "core/config.h"
#include "core/error.h"

namespace starling {
namespace {

using nlohmann::json;

constexpr const char* kClasses = "starling.classes";
constexpr const char* kNormalize = "starling.normalize";
constexpr const char* kInput = "starling.input";
constexpr const char* kColumns = "starling.columns";
constexpr const char* kTokenizer = "starling.tokenizer";
constexpr const char* kCompanions = "starling.companions";

/// One metadata text as JSON, whose faults name file and key.
class Metadatum {
 public:
  Metadatum(const SafetensorsFile& file, const std::string& source, const char* key)
      : place_(source + ": metadata " + key) {
    const auto it = file.metadata.find(key);
    if (it == file.metadata.end()) {
      fail(ExitCode::kUsage, "model file",
           "{}: has no metadata {}, so it does not say what model it holds; needed: a "
           "model.safetensors that starling-train wrote",
           source, key);
    }
    value_ = parse_json(it->second, place_);
  }
  const json& value() const { return value_; }
  [[noreturn]] void wrong(const char* needed) const {
    fail(ExitCode::kUsage, "model file", "{}: needed: {}", place_, needed);
  }

 private:
  std::string place_;
  json value_;
};

constexpr std::array kInputKinds{"number", "category", "missing"};  // as TableInput

/// For each number of the input, the column it comes from. Files of before `kinds` have numbers
/// alone.
TableColumns columns_of(const SafetensorsFile& file, const std::string& source,
                        const Shape& input) {
  const Metadatum entry(file, source, kColumns);
  try {
    const json& value = entry.value();
    TableColumns columns{.names = value.at("names"),
                         .mean = value.at("mean"),
                         .deviation = value.at("std"),
                         .target = value.at("target")};
    const auto width = static_cast<std::size_t>(input.elements());
    columns.categories = value.value("categories", std::vector<std::string>(width));
    columns.missing = value.value("missing", columns.missing);
    columns.target_mean = value.value("target_mean", columns.target_mean);
    columns.target_deviation = value.value("target_std", columns.target_deviation);
    bool right = input.rank() == 1 && columns.names.size() == width &&
                 columns.mean.size() == width && columns.deviation.size() == width &&
                 columns.categories.size() == width && columns.target_deviation > 0.0;
    for (const json& kind : value.value("kinds", json(std::vector<std::string>(width, "number")))) {
      const auto it = std::find(kInputKinds.begin(), kInputKinds.end(), kind.get<std::string>());
      columns.kinds.push_back(static_cast<TableInput>(it - kInputKinds.begin()));
      right = right && it != kInputKinds.end();
    }
    if (right && columns.kinds.size() == width) return columns;
  } catch (const json::exception&) {  // told with the rest
  }
  entry.wrong(
      R"({"names": [...], "mean": [...], "std": [...], "target": name}, one for each input)");
}

bool is_numbers(const json& value, std::size_t most) {
  return value.is_array() && value.size() <= most &&
         std::all_of(value.begin(), value.end(), [](const json& one) { return one.is_number(); });
}

}  // namespace

std::string name_of_output(const std::vector<std::string>& classes, std::size_t output) {
  if (output < classes.size()) return classes[output];
  std::string name = std::to_string(output);
  while (std::find(classes.begin(), classes.end(), name) != classes.end()) name = "output " + name;
  return name;
}

std::optional<std::size_t> first_other_class(const std::vector<std::string>& of_model,
                                             const std::vector<std::string>& of_data) {
  const std::size_t known = std::min(of_model.size(), of_data.size());
  for (std::size_t k = 0; k < known; ++k)
    if (of_model[k] != of_data[k]) return k;
  return std::nullopt;
}

void describe(const ModelDescription& description, SafetensorsFile& file) {
  file.metadata[kConfigMetadata] = description.config;
  file.metadata[kClasses] = json(description.classes).dump();
  json input{{"shape", description.image.sizes()}};
  if (description.pictures) {
    const auto channels = static_cast<std::size_t>(description.image[2]);
    file.metadata[kNormalize] = json{{"mean", std::span(description.scale.mean).first(channels)},
                                     {"std", std::span(description.scale.std).first(channels)}}
                                    .dump();
    input["resize"] = description.resize;
    input["interpolation"] = description.interpolation;
  }
  file.metadata[kInput] = input.dump();
  if (!description.tokenizer.empty()) file.metadata[kTokenizer] = description.tokenizer;
  if (!description.companions.empty()) file.metadata[kCompanions] = description.companions;
  if (const auto& table = description.table) {
    json kinds = json::array();
    for (const TableInput kind : table->kinds)
      kinds.push_back(kInputKinds.at(static_cast<std::size_t>(kind)));
    file.metadata[kColumns] = json{
        {"names", table->names},
        {"mean", table->mean},
        {"std", table->deviation},
        {"target", table->target},
        {"kinds", std::move(kinds)},
        {"categories", table->categories},
        {"missing", table->missing},
        {"target_mean", table->target_mean},
        {"target_std",
         table->target_deviation}}.dump();
  }
}

ModelDescription description_of(const SafetensorsFile& file, const std::string& source) {
  ModelDescription result;
  const Metadatum config(file, source, kConfigMetadata);
  if (!config.value().is_object() || !config.value().contains("model"))
    config.wrong("a JSON object with the key model");
  result.config = config.value().dump();
  const Metadatum classes(file, source, kClasses);
  if (!classes.value().is_array()) classes.wrong("a JSON list of names");
  for (const json& name : classes.value()) {
    if (!name.is_string()) classes.wrong("a JSON list of names");
    result.classes.push_back(name.get<std::string>());
  }
  const Metadatum input(file, source, kInput);
  constexpr const char* kInputForm =
      R"({"shape": [H, W, C], "resize": pixels, "interpolation": name})";
  if (!input.value().is_object() ||
      !is_numbers(input.value().value("shape", json()), Shape::kMaxRank))
    input.wrong(kInputForm);
  std::vector<std::int64_t> sizes;
  for (const json& size : input.value()["shape"]) {
    if (!size.is_number_integer() || size < 1 || size > (1 << 24)) input.wrong(kInputForm);
    sizes.push_back(size.get<std::int64_t>());
  }
  result.image = Shape(std::span<const std::int64_t>(sizes));
  if (file.metadata.count(kColumns) != 0) result.table = columns_of(file, source, result.image);
  if (const auto it = file.metadata.find(kTokenizer); it != file.metadata.end())
    result.tokenizer = it->second;
  if (const auto it = file.metadata.find(kCompanions); it != file.metadata.end())
    result.companions = it->second;
  result.pictures = file.metadata.count(kNormalize) != 0;
  if (!result.pictures) return result;
  const Metadatum normalize(file, source, kNormalize);
  const std::size_t channels =
      result.image.rank() == 3 ? static_cast<std::size_t>(result.image[2]) : 0;
  constexpr const char* kScaleForm = R"({"mean": [...], "std": [...]}, a number for each channel)";
  if (channels == 0 || channels > result.scale.mean.size() || !normalize.value().is_object())
    normalize.wrong(kScaleForm);
  const auto read = [&](const char* key, std::array<double, 4>& to) {
    const json numbers = normalize.value().value(key, json());
    if (!is_numbers(numbers, channels) || numbers.size() != channels) normalize.wrong(kScaleForm);
    for (std::size_t c = 0; c < channels; ++c) to[c] = numbers[c].get<double>();
  };
  read("mean", result.scale.mean);
  read("std", result.scale.std);
  const json resize = input.value().value("resize", json(0)),
             interpolation = input.value().value("interpolation", json("bilinear"));
  if (!resize.is_number_integer() || resize < 0 || resize > (1 << 24) || !interpolation.is_string())
    input.wrong(kInputForm);
  result.resize = resize.get<std::int64_t>();
  result.interpolation = interpolation.get<std::string>();
  return result;
}

std::unique_ptr<Model> described_model(const ModelDescription& description,
                                       const nlohmann::json& config, const std::string& source) {
  const std::string place = source + ": starling.config";
  ConfigSection root(config, place);
  ConfigSection section = root.section("model", "");
  try {
    return make_model(section, description.image,
                      std::max<std::int64_t>(1, std::ssize(description.classes)));
  } catch (const Error& error) {
    // A layer or a model that is not built in has another cause than its name.
    if (error.code() != ExitCode::kUsage || !config.contains("plugins") ||
        config["plugins"].empty())
      throw;
    fail(ExitCode::kUsage, "model file",
         "{}; the model was trained with the plug-ins {}, which must be given here too",
         message_of(error), config["plugins"].dump());
  }
}

}  // namespace starling
