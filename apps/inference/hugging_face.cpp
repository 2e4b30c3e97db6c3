#include "apps/inference/hugging_face.h"

#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include "apps/inference/adapter.h"
#include "apps/inference/companions.h"
#include "apps/inference/description.h"
#include "apps/inference/model_file.h"
#include "apps/inference/model_source.h"
#include "apps/text/tokenizer.h"
#include "core/config.h"
#include "core/error.h"
#include "core/log.h"
#include "core/safetensors.h"
#include "layers/layer.h"

namespace starling {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A key of config.json: one of section `model`, or what is computed here and cannot be chosen.
struct Key {
  const char* name;      ///< in config.json
  const char* ours;      ///< in section `model`; null: it is always `value`
  json value;            ///< what a config.json without the key means
  bool exported = true;  ///< written; others are only read
  json equal = nullptr;  ///< another value that means the same as `value`
  /// The tensor whose size it is, where a run may leave that out; "": any value means the same
  const char* tensor = nullptr;
};

struct Architecture {
  const char *type, *name;  ///< model.type, which is model_type too; the class
  std::vector<Key> keys;
};

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> all{
      {"gpt2",
       "GPT2LMHeadModel",
       {{"n_layer", "layers", 12},
        {"n_head", "heads", 12},
        {"n_embd", "width", 768},
        {"n_positions", "context", 1024, true, nullptr, "transformer.wpe.weight"},
        {"vocab_size", "vocab", 50257, true, nullptr, "transformer.wte.weight"},
        {"tie_word_embeddings", "tie", true},
        {"activation_function", nullptr, "gelu_new", true, "gelu_pytorch_tanh"},
        {"layer_norm_epsilon", nullptr, 1e-5},
        {"scale_attn_weights", nullptr, true},
        {"scale_attn_by_inverse_layer_idx", nullptr, false},
        {"reorder_and_upcast_attn", nullptr, false},
        {"add_cross_attention", nullptr, false},
        {"pruned_heads", nullptr, nullptr, false, json::object()},
        {"quantization_config", nullptr, nullptr, false},
        {"is_decoder", nullptr, false, false, true}}},
      {"llama",
       "LlamaForCausalLM",
       {{"num_hidden_layers", "layers", 32},
        {"num_attention_heads", "heads", 32},
        {"num_key_value_heads", "kv_heads", nullptr},
        {"hidden_size", "width", 4096},
        {"intermediate_size", "hidden", 11008},
        {"max_position_embeddings", "context", 2048, true, nullptr, ""},
        {"vocab_size", "vocab", 32000, true, nullptr, "model.embed_tokens.weight"},
        {"rope_theta", "rope_theta", 10000.0},
        {"rms_norm_eps", "eps", 1e-6},
        {"tie_word_embeddings", "tie", false},
        {"hidden_act", nullptr, "silu", true, "swish"},
        {"attention_bias", nullptr, false},
        {"mlp_bias", nullptr, false},
        {"partial_rotary_factor", nullptr, nullptr, false, 1.0},
        {"pruned_heads", nullptr, nullptr, false, json::object()},
        {"quantization_config", nullptr, nullptr, false},
        {"sliding_window", nullptr, nullptr, false}}}};
  return all;
}

const Architecture* architecture_of(const std::string& type) {
  for (const Architecture& one : architectures()) {
    if (type == one.type) return &one;
  }
  return nullptr;
}

bool same(const json& a, const json& b) {
  return a.is_number() && b.is_number() ? a.get<double>() == b.get<double>() : a == b;
}

/// What the file says of a key; a model of several heads of keys has as many as of queries where
/// it does not say.
json told(const json& config, const Key& key) {
  const auto found = config.find(key.name);
  if (found != config.end() && !found->is_null()) return *found;
  if (std::string_view(key.name) == "rope_theta") {
    // Newer files have all of rotary embedding in one object
    const json rope = config.value("rope_parameters", json());
    if (rope.is_object() && rope.contains("rope_theta")) return rope["rope_theta"];
  }
  if (std::string_view(key.name) == "num_key_value_heads")
    return config.value("num_attention_heads", json(32));
  return key.value;
}

/// Rotary embedding, of which either object may say more: its kind, its share of a head's numbers,
/// another of each kind of layer.
void check_rope(const std::string& file, const json& config, const std::string& type) {
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const json rope = config.value(name, json());
    if (rope.is_null() || rope == json::object()) continue;
    const auto refuse = [&, name](const std::string& key, const json& value, const auto& allowed) {
      fail(ExitCode::kUsage, "init", {.file = file, .key = name + key},
           "is {}, which {} does not compute; allowed: {}", value.dump(), type, allowed);
    };
    if (!rope.is_object()) refuse("", rope, "an object, or null");
    for (const auto& [key, value] : rope.items()) {
      const bool kind = key == "rope_type" || key == "type";
      if (value.is_object() || (kind && value != "default"))
        refuse("." + key, value, "\"default\"");
      if (key == "partial_rotary_factor" && !value.is_null() && !same(value, 1.0))
        refuse("." + key, value, "1.0");
      const json theta = config.value("rope_theta", json());
      if (key == "rope_theta" && !value.is_null() && !theta.is_null() && !same(value, theta))
        refuse("." + key, value, "that of rope_theta beside it, " + theta.dump());
    }
  }
}

/// A model that is exported with its own section.
void check_own_config(const std::string& file, const json& config, const json& model) {
  for (const auto& [key, wanted] : model.items()) {
    const auto found = config.find(key);
    // Tensors' shapes tell of these, and dropout is training's
    const bool free = key == "vocab" || key == "context" || key == "dropout";
    if (free || found == config.end() || same(*found, wanted)) continue;
    fail(ExitCode::kUsage, "init", {.file = file, .key = key},
         "is {}, but model.{} is {}; needed: the same, as in --set model.{}={}", found->dump(), key,
         wanted.dump(), key, found->dump());
  }
}

/// What config.json says of the model of a resolved config.
json exported_config(const json& config) {
  const json& model = config.at("model");
  const json::json_pointer task("/task/type");
  if (architecture_of(model.value("type", "")) || !config.contains(task) ||
      config[task] != "language_model")
    return hugging_face_config(model);
  json own = model;
  own.erase("type");
  own["model_type"] = model.value("type", "");
  own["eos_token_id"] = nullptr;
  return own;
}

}  // namespace

json hugging_face_config(const json& model) {
  const std::string type = model.value("type", "");
  const Architecture* const architecture = architecture_of(type);
  if (!architecture)
    fail(ExitCode::kUsage, "export",
         "model.type is {}, which transformers has under no such names; allowed: gpt2, llama",
         type);
  json config{{"architectures", {architecture->name}}, {"model_type", type}};
  for (const Key& key : architecture->keys) {
    if (key.exported) config[key.name] = key.ours ? model.at(key.ours) : key.value;
  }
  const json dropout = model.value("dropout", json(0.0));
  if (type == "gpt2") {
    for (const char* place : {"embd_pdrop", "attn_pdrop", "resid_pdrop"}) config[place] = dropout;
  } else {
    config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", model.at("rope_theta")}};
  }
  // Their defaults are tokens of other vocabularies
  config["bos_token_id"] = config["eos_token_id"] = nullptr;
  return config;
}

void check_hugging_face_config(const std::string& model_file, const json& model,
                               const std::function<bool(const std::string&)>& skipped) {
  const json config = config_beside(model_file);
  if (config.is_null()) return;
  const std::string file = beside(model_file, "config.json");
  const std::string type = model.value("type", "");
  const Architecture* const architecture = architecture_of(type);
  if (!architecture && config["model_type"] == type) return check_own_config(file, config, model);
  if (!architecture || config["model_type"] != type)
    fail(ExitCode::kUsage, "init", {.file = file, .key = "model_type"},
         "is {}, the config's model.type {}; needed: the same, gpt2 or llama",
         config["model_type"].dump(), type);
  if (type == "llama") check_rope(file, config, type);
  for (const Key& key : architecture->keys) {
    if (key.tensor && (!*key.tensor || (skipped && skipped(key.tensor)))) continue;
    const json value = told(config, key),
               wanted = key.ours ? model.value(key.ours, json()) : key.value;
    if (same(value, wanted) || (!key.equal.is_null() && same(value, key.equal))) continue;
    if (key.ours)
      fail(ExitCode::kUsage, "init", {.file = file, .key = key.name},
           "is {}, but model.{} is {}; needed: the same, as in --set model.{}={}{}", value.dump(),
           key.ours, wanted.dump(), key.ours, value.dump(),
           key.tensor ? fmt::format(", or \"skip\": [\"{}\"] in init", key.tensor) : "");
    fail(ExitCode::kUsage, "init", {.file = file, .key = key.name},
         "is {}, which {} does not compute; allowed: {}", value.dump(), type, wanted.dump());
  }
  const auto side = [&](const char* name, double usual) {
    const auto found = config.find(name);
    if (found == config.end() || found->is_null() || same(*found, usual)) return;
    fail(ExitCode::kUsage, "init", {.file = file, .key = name},
         "is {}, which {} does not compute; allowed: {}", found->dump(), type, usual);
  };
  const double width = model.at("width").get<double>();
  side("n_inner", 4 * width);
  side("head_dim", width / model.at("heads").get<double>());
}

std::string tokenizer_beside(const std::string& model_file) {
  std::error_code error;
  for (const char* name : {"tokenizer.json", "vocab.json", "encoder.json"}) {
    std::string file = beside(model_file, name);
    if (fs::is_regular_file(file, error)) return file;
  }
  return {};
}

SafetensorsFile read_described(const std::string& model_file, bool tensors) {
  SafetensorsFile file = read_model_metadata(model_file);
  const json config = file.metadata.count(kConfigMetadata) > 0 ? json() : config_beside(model_file);
  if (config.is_null()) return tensors ? read_model(model_file) : std::move(file);

  const std::string place = beside(model_file, "config.json");
  const json& type = config["model_type"];
  const Architecture* const architecture =
      type.is_string() ? architecture_of(type.get<std::string>()) : nullptr;
  if (!architecture)
    fail(ExitCode::kUsage, "model file", {.file = place, .key = "model_type"},
         "is {}; allowed: gpt2, llama", type.dump());
  json section{{"type", type}};
  for (const Key& key : architecture->keys) {
    if (key.ours) section[key.ours] = told(config, key);
  }
  check_hugging_face_config(model_file, section);
  register_builtin_layers();
  register_builtin_models();
  ConfigSection keys(section, place);
  const auto context = section["context"].is_number_integer()
                           ? std::max<std::int64_t>(1, section["context"].get<std::int64_t>())
                           : std::int64_t{1};
  const std::unique_ptr<Model> model = make_model(keys, Shape{context});
  if (tensors) {
    std::set<std::string> own;
    for (const Parameter* parameter : model->parameters()) own.insert(parameter->name);
    file = read_safetensors(model_file, nullptr, [&](const std::string& name) {
      return holds_nothing(model->file_names(), name) && own.count(name) == 0;
    });
    take_names(file, model_file, *model);
  }
  ModelDescription description{.image = model->input_shape()};
  json data{{"type", "text"}, {"path", ""}, {"sequence_length", context}};
  if (const std::string own = tokenizer_beside(model_file); !own.empty()) {
    description.tokenizer = Tokenizer::read(own)->text();
    data["tokenizer"] = own;
  }
  description.config = json{
      {"model", section},
      {"data", data},
      {"task", {{"type", "language_model"}}},
      {"batch_size", 8}}.dump();
  description.companions = Companions::of(model_file).text();
  describe(description, file);
  return file;
}

void make_export_folder(const std::string& destination) {
  std::error_code error;
  if (!fs::is_directory(destination, error)) {
    fs::create_directories(destination, error);
    if (error)
      fail(ExitCode::kOutput, "export", {.file = destination}, "cannot be made: {}",
           error.message());
  } else if (!fs::is_empty(destination, error)) {
    fail(ExitCode::kUsage, "export", {.file = destination},
         "has files already; needed: an empty or new folder");
  }
}

void export_to_hugging_face(const std::string& run, const std::string& destination, bool merges) {
  const auto [source, told] = find_model(run);
  if (!told.empty()) log::info("{}", told);
  if (!merges) {
    if (const std::optional<Adapter> adapter = read_adapter(source))
      return export_adapter(*adapter, source, destination);
  }
  SafetensorsFile file = read_described(source);
  const ModelDescription description = description_of(file, source);
  const json whole = parse_json(description.config, source);
  json config = exported_config(whole);
  const DType dtype = file.tensors.empty() ? DType::kFloat32 : file.tensors.begin()->second.dtype;
  config["dtype"] = dtype == DType::kFloat64 ? "float64" : "float32";
  Companions companions = description.companions.empty()
                              ? Companions()
                              : Companions::parse(description.companions, source);
  if (companions.ids.is_object()) config.update(companions.ids);
  const std::vector<std::int32_t> ends = text_bounds(description).ends;
  const json end = ends.empty() ? json() : ends.size() == 1 ? json(ends[0]) : json(ends);
  if (config["eos_token_id"].is_null()) config["eos_token_id"] = end;
  // transformers goes by this file alone, once it is there
  json generation{{"_from_model_config", true}};
  if (const auto it = companions.files.find("generation_config.json");
      it != companions.files.end()) {
    const json kept = parse_json(it->second, source);
    if (kept.is_object() && token_ids(kept.value("eos_token_id", json())).empty() && !end.is_null())
      generation = kept, generation["eos_token_id"] = end, companions.files.erase(it);
  }
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (config.contains(key) && !config[key].is_null() && !generation.contains(key))
      generation[key] = config[key];
  }
  companions.files.try_emplace("generation_config.json", generation.dump(2) + "\n");
  if (!description.tokenizer.empty()) {
    json tokenizer{{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"model_max_length",
                    config.value("n_positions", config.value("max_position_embeddings", json()))},
                   {"clean_up_tokenization_spaces", false}};
    const std::string word = ends.empty() ? "" : special_token(description.tokenizer, ends[0]);
    if (!word.empty()) tokenizer["eos_token"] = word;
    companions.files.try_emplace("tokenizer_config.json", tokenizer.dump(2) + "\n");
    companions.files["tokenizer.json"] = description.tokenizer == "bytes"
                                             ? Tokenizer::bytes()->huggingface()
                                             : description.tokenizer;
  }

  make_export_folder(destination);
  const fs::path folder(destination);
  file.metadata["format"] = "pt";  // transformers asks for it
  file.metadata.erase(kChecksums);
  add_checksums(file);
  write_safetensors((folder / "model.safetensors").string(), file);
  for (const auto& [name, text] : companions.files)
    write_file_atomically((folder / name).string(), text.data(), text.size());
  const std::string text = config.dump(2) + "\n";  // last: with it the folder is whole
  write_file_atomically((folder / "config.json").string(), text.data(), text.size());
}

}  // namespace starling
