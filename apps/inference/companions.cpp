#include "apps/inference/companions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "apps/inference/description.h"
#include "core/config.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/text.h"

namespace starling {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 4> kFiles = {
    "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
    "chat_template.jinja"};
constexpr std::array kIds = {"eos_token_id", "bos_token_id", "pad_token_id"};
constexpr std::array<std::string_view, 6> kEnds = {"<|endoftext|>", "<|end_of_text|>", "</s>",
                                                   "<eos>",         "<|eos|>",         "[EOS]"};

/// What a config.json without the key means.
json usual_id(const std::string& type, const std::string& key) {
  if (key == "pad_token_id") return nullptr;
  if (type == "gpt2") return 50256;
  return type == "llama" || type == "mistral" ? json(key == "bos_token_id" ? 1 : 2) : json();
}

/// The part of a file that is an object; an empty one of what is none.
json object_of(const std::string& text) {
  json value = json::parse(text, nullptr, false);
  return value.is_object() ? value : json::object();
}

/// The tokens before `Sequence` of a post_processor's template.
void add_begin(const json& processor, std::vector<std::int32_t>& begin) {
  if (!processor.is_object()) return;
  const json type = processor.value("type", json());
  if (type == "Sequence") {
    for (const json& inner : processor.value("processors", json::array())) add_begin(inner, begin);
  } else if (type == "TemplateProcessing") {
    const json specials = processor.value("special_tokens", json::object());
    for (const json& piece : processor.value("single", json::array())) {
      if (!piece.is_object() || !piece.contains("SpecialToken")) break;
      const json::json_pointer name("/SpecialToken/id");
      const json special = piece.contains(name) && piece[name].is_string()
                               ? specials.value(piece[name].get<std::string>(), json::object())
                               : json::object();
      for (const std::int32_t id : token_ids(special.value("ids", json()))) begin.push_back(id);
    }
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    const json first = processor.value("cls", json());
    if (first.is_array() && first.size() == 2 && first[1].is_number_unsigned())
      begin.push_back(first[1].get<std::int32_t>());
  }
}

/// The special tokens of a tokenizer.json, each with `id` and `content`.
std::vector<json> special_tokens(const json& tokenizer) {
  std::vector<json> all;
  for (const json& token : tokenizer.value("added_tokens", json::array())) {
    if (token.is_object() && token.value("special", json()) == true &&
        token.value("content", json()).is_string() &&
        token.value("id", json()).is_number_unsigned())
      all.push_back(token);
  }
  return all;
}

}  // namespace

std::string special_token(const std::string& tokenizer, std::int32_t token) {
  for (const json& one : special_tokens(object_of(tokenizer))) {
    if (one["id"] == token) return one["content"].get<std::string>();
  }
  return {};
}

std::vector<std::int32_t> token_ids(const json& value) {
  std::vector<std::int32_t> ids;
  for (const json& id : value.is_array() ? value : json::array({value})) {
    if (id.is_number_unsigned() && id <= INT32_MAX) ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

std::string Companions::text() const { return json{{"files", files}, {"ids", ids}}.dump(); }

Companions Companions::parse(const std::string& text, const std::string& place) {
  const json value = parse_json(text, place);
  try {
    Companions result{value.at("files"), value.at("ids")};
    const auto known = [](const auto& file) {  // they are written to a folder by these names
      return std::find(kFiles.begin(), kFiles.end(), file.first) != kFiles.end();
    };
    if (std::all_of(result.files.begin(), result.files.end(), known)) return result;
  } catch (const json::exception&) {  // told with the rest
  }
  fail(ExitCode::kUsage, "model file", "{}: starling.companions: needed: {}", place,
       R"({"files": {NAME: text}, "ids": {"eos_token_id": …}})");
}

std::string beside(const std::string& model_file, std::string_view name) {
  return (std::filesystem::path(model_file).parent_path() / name).string();
}

std::map<std::string, std::string> files_beside(const std::string& model_file,
                                                const std::string& component) {
  std::map<std::string, std::string> files;
  for (const std::string_view name : kFiles) {
    const std::string path = beside(model_file, name);
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) continue;
    FileText file = read_file(path);
    if (!file.fault.empty())
      fail(ExitCode::kUsage, component, {.file = path}, "cannot be read: {}", file.fault);
    files.emplace(name, std::move(file.text));
  }
  return files;
}

json config_beside(const std::string& model_file) {
  const std::string file = beside(model_file, "config.json");
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return nullptr;
  json config = read_json_file(file);
  return config.is_object() && config.contains("model_type") ? config : json();
}

Companions Companions::of(const std::string& model_file) {
  Companions result;
  const json config = config_beside(model_file);
  if (config.is_null()) return result;
  const std::string type =
      config["model_type"].is_string() ? config["model_type"].get<std::string>() : "";
  for (const char* key : kIds)
    result.ids[key] = config.contains(key) ? config[key] : usual_id(type, key);
  for (const char* key : {"torch_dtype", "dtype"}) {
    if (config.contains(key)) result.ids["dtype"] = config[key];
  }
  result.files = files_beside(model_file, "model file");
  for (const auto& [name, text] : result.files)
    if (name.ends_with(".json")) (void)parse_json(text, beside(model_file, name));
  return result;
}

TextBounds text_bounds(const ModelDescription& description) {
  TextBounds bounds;
  if (!description.companions.empty()) {
    const Companions own = Companions::parse(description.companions, "the model file");
    const auto generation = own.files.find("generation_config.json");
    if (generation != own.files.end())
      bounds.ends = token_ids(object_of(generation->second).value("eos_token_id", json()));
    if (bounds.ends.empty() && own.ids.is_object())
      bounds.ends = token_ids(own.ids.value("eos_token_id", json()));
  }
  const json tokenizer = object_of(description.tokenizer);  // `bytes` has neither
  add_begin(tokenizer.value("post_processor", json()), bounds.begin);
  if (!bounds.ends.empty()) return bounds;
  for (const json& token : special_tokens(tokenizer)) {
    if (std::find(kEnds.begin(), kEnds.end(), token["content"].get<std::string>()) == kEnds.end())
      continue;
    bounds.ends = token_ids(token["id"]);
    break;
  }
  return bounds;
}

ChatSource chat_source_of(const ModelDescription& description, const std::string& source) {
  return description.companions.empty()
             ? ChatSource()
             : ChatSource::of(Companions::parse(description.companions, source).files);
}

ChatTemplate chat_template(const std::string& name,
                           const std::shared_ptr<const Tokenizer>& tokenizer,
                           const ChatSource& source, const std::string& place,
                           const std::string& key, std::string& note) {
  std::string chosen = name;
  if (name == "auto") {
    chosen = source.name();
    if (chosen.empty())
      fail(ExitCode::kUsage, "data", {.key = key},
           "is auto, but {}; give chatml, llama3 or plain: the one that the model is to be asked "
           "in",
           source.jinja.empty()
               ? fmt::format("{} has no chat template beside it", shown(place, 200))
               : fmt::format("the chat template beside {} is neither chatml nor llama3",
                             shown(place, 200)));
  }
  if (const std::string more = source.additions(); !source.jinja.empty() && !more.empty())
    note = fmt::format("the tokenizer's own template may add {}; nothing is added here", more);
  std::string eos = source.eos;
  if (const std::string text = tokenizer->text(); chosen == "plain") {
    const TextBounds bounds = text_bounds({.tokenizer = text});
    if (eos.empty() && !bounds.ends.empty()) eos = special_token(text, bounds.ends[0]);
    if (!bounds.begin.empty())
      note += fmt::format(
          "{}plain begins without {}, which --prompt and --score of such a model put in front",
          note.empty() ? "" : "; ", special_token(text, bounds.begin[0]));
  }
  return {std::move(chosen), tokenizer, eos, key};
}

}  // namespace starling
