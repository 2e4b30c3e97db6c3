#include "apps/inference/hugging_face.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
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
  bool windows = false, window_layers = false;  ///< keys of section `model`
};

/// The keys of models that are Llama's with options: their classes differ in defaults.
std::vector<Key> llama_keys(json kv_heads, int hidden, int context, int vocab) {
  return {{"num_hidden_layers", "layers", 32},
          {"num_attention_heads", "heads", 32},
          {"num_key_value_heads", "kv_heads", std::move(kv_heads)},
          {"hidden_size", "width", 4096},
          {"intermediate_size", "hidden", hidden},
          {"max_position_embeddings", "context", context, true, nullptr, ""},
          {"vocab_size", "vocab", vocab, true, nullptr, "model.embed_tokens.weight"},
          {"rope_theta", "rope_theta", 10000.0},
          {"rms_norm_eps", "eps", 1e-6},
          {"tie_word_embeddings", "tie", false},
          {"hidden_act", nullptr, "silu", true, "swish"},
          {"partial_rotary_factor", nullptr, nullptr, false, 1.0},
          {"pruned_heads", nullptr, nullptr, false, json::object()},
          {"quantization_config", nullptr, nullptr, false}};
}

std::vector<Key> with(std::vector<Key> keys, std::initializer_list<Key> more) {
  keys.insert(keys.end(), more);
  return keys;
}

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> all{
      {"gpt2",
       "GPT2LMHeadModel",
       {{"n_layer", "layers", 12},
        {"n_head", "heads", 12},
        {"n_embd", "width", 768},
        {"n_positions", "positions", 1024, true, nullptr, "transformer.wpe.weight"},
        {"n_inner", "hidden", nullptr},
        {"vocab_size", "vocab", 50257, true, nullptr, "transformer.wte.weight"},
        {"layer_norm_epsilon", "eps", 1e-5},
        {"tie_word_embeddings", "tie", true},
        {"activation_function", nullptr, "gelu_new", true, "gelu_pytorch_tanh"},
        {"scale_attn_weights", nullptr, true},
        {"scale_attn_by_inverse_layer_idx", nullptr, false},
        {"reorder_and_upcast_attn", nullptr, false},
        {"add_cross_attention", nullptr, false},
        {"pruned_heads", nullptr, nullptr, false, json::object()},
        {"quantization_config", nullptr, nullptr, false},
        {"is_decoder", nullptr, false, false, true}}},
      {"llama", "LlamaForCausalLM",
       with(llama_keys(nullptr, 11008, 2048, 32000),
            {{"head_dim", "head_dim", nullptr},
             {"attention_bias", "bias", false},
             {"mlp_bias", nullptr, false},
             {"sliding_window", nullptr, nullptr, false}})},
      {"mistral", "MistralForCausalLM",
       with(llama_keys(8, 14336, 131072, 32000), {{"head_dim", "head_dim", nullptr}}), true},
      {"qwen2", "Qwen2ForCausalLM",
       with(llama_keys(32, 22016, 32768, 151936), {{"head_dim", "head_dim", nullptr}}), true, true},
      {"qwen3", "Qwen3ForCausalLM",
       with(llama_keys(32, 22016, 32768, 151936),
            {{"head_dim", "head_dim", 128}, {"attention_bias", "bias", false}}),
       true, true}};
  return all;
}

std::string type_names() {
  std::vector<std::string> names;
  for (const Architecture& one : architectures()) names.emplace_back(one.type);
  return fmt::format("{}", fmt::join(names, ", "));
}

const Architecture* architecture_of(const json& type) {
  for (const Architecture& one : architectures()) {
    if (type == one.type) return &one;
  }
  return nullptr;
}

bool same(const json& a, const json& b) {
  return a.is_number() && b.is_number() ? a.get<double>() == b.get<double>() : a == b;
}

bool is_count(const json& value) {
  return value.is_number_integer() && value > 0 && value < INT32_MAX;
}

/// A config.json, whose faults name file and key.
class ModelConfig {
 public:
  ModelConfig(const json& config, std::string file, const Architecture& architecture)
      : config_(config), file_(std::move(file)), of_(architecture) {}

  [[noreturn]] void refuse(const std::string& key, const json& value,
                           const std::string& allowed) const {
    fail(ExitCode::kUsage, "init", {.file = file_, .key = key},
         "is {}, which {} does not compute; allowed: {}", value.dump(), of_.type, allowed);
  }
  const json& operator[](const char* key) const {
    static const json null;
    const auto found = config_.find(key);
    return found == config_.end() ? null : *found;
  }
  bool has(const char* key) const { return config_.contains(key); }

  /// What it says of a key, or by not having it.
  json value(const Key& key) const {
    const json& own = (*this)[key.name];
    const std::string_view name = key.name;
    if (!own.is_null()) return own;
    if (name == "rope_theta") {
      // Newer files have all of rotary embedding in one object
      const json& rope = (*this)["rope_parameters"];
      if (rope.is_object() && rope.contains("rope_theta")) return rope["rope_theta"];
    }
    if (name == "num_key_value_heads" && (key.value.is_null() || has(key.name)))
      return config_.value("num_attention_heads", json(32));
    if (name == "n_inner") return scaled("n_embd", 768, 4, 1);
    if (name == "head_dim" && key.value.is_null())
      return scaled("hidden_size", 4096, 1, config_.value("num_attention_heads", json(32)));
    return key.value;
  }

  /// Section `model`'s `rope_scaling`; null where angles are not scaled. Either object may say
  /// more of rotary embedding: its kind, its share of a head's numbers, another of each kind of
  /// layer.
  json rope_scaling() const {
    json result;
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
      const json& rope = (*this)[name];
      if (rope.is_null() || rope == json::object()) continue;
      if (!rope.is_object()) refuse(name, rope, "an object, or null");
      const std::string front = std::string(name) + ".";
      for (const auto& [key, value] : rope.items()) {
        if (value.is_object()) refuse(front + key, value, "one for all layers");
        if (key == "partial_rotary_factor" && !value.is_null() && !same(value, 1.0))
          refuse(front + key, value, "1.0");
        const json& theta = (*this)["rope_theta"];
        if (key == "rope_theta" && !value.is_null() && !theta.is_null() && !same(value, theta))
          refuse(front + key, value, "that of rope_theta beside it, " + theta.dump());
      }
      const char* const kind =
          rope.contains("rope_type") || !rope.contains("type") ? "rope_type" : "type";
      const json type = rope.value(kind, json("default"));
      if (rope.value("type", type) != type)
        refuse(front + "type", rope["type"], "that of rope_type beside it");
      if (type == "default") continue;
      if (type != "linear" && type != "llama3")
        refuse(front + kind, type, R"("default", "linear", "llama3")");
      json own{{"type", type}};
      const auto take = [&](const char* key, const char* ours) {
        json value = rope.value(key, json());
        if (value.is_null() && std::string_view(ours) == "original_context") value = (*this)[key];
        if (!value.is_number() || value <= 0)
          refuse(front + key, value, "a number above 0, which " + type.dump() + " needs");
        own[ours] = value;
      };
      take("factor", "factor");
      if (type == "llama3") {
        take("low_freq_factor", "low_freq_factor");
        take("high_freq_factor", "high_freq_factor");
        take("original_max_position_embeddings", "original_context");
      }
      if (!result.is_null() && !same_scaling(result, own))
        refuse(name, rope, "that of rope_scaling beside it");
      result = own;
    }
    return result;
  }

  /// The sliding window and the layers that have it.
  void add_windows(json& section) const {
    const json& given = (*this)["sliding_window"];
    const std::int64_t layers = section["layers"].get<std::int64_t>();
    section["window"] = 0;
    if (of_.window_layers) section["window_layers"] = json::array();
    const json& uses = (*this)["use_sliding_window"];
    if (of_.window_layers && !(uses.is_null() || uses.is_boolean()))
      refuse("use_sliding_window", uses, "true, false");
    const json window = has("sliding_window") || (of_.window_layers && uses != true)
                            ? given
                            : json(4096);  // the classes' default
    if (!window.is_null() && !is_count(window))
      refuse("sliding_window", window, "a number of tokens above 0, or null");
    if (!of_.window_layers) {
      if (!window.is_null()) section["window"] = window;
      return;
    }
    const json& types = (*this)["layer_types"];
    json chosen = json::array();
    if (types.is_null()) {
      const json first = has("max_window_layers") ? (*this)["max_window_layers"] : json(28);
      if (uses == true && !first.is_number_integer())
        refuse("max_window_layers", first, "a number of layers");
      for (std::int64_t i = 0; uses == true && !window.is_null() && i < layers; ++i) {
        if (i >= first.get<std::int64_t>()) chosen.push_back(i);
      }
    } else {
      if (!types.is_array() || types.size() != static_cast<std::size_t>(layers))
        refuse("layer_types", types, fmt::format("a list of {} names", layers));
      for (std::size_t i = 0; i < types.size(); ++i) {
        if (types[i] == "sliding_attention") {
          chosen.push_back(i);
        } else if (types[i] != "full_attention") {
          refuse(fmt::format("layer_types[{}]", i), types[i],
                 R"("full_attention", "sliding_attention")");
        }
      }
      if (!chosen.empty() && (window.is_null() || uses != true))
        refuse("sliding_window", window,
               "a number of tokens, and use_sliding_window true, as layer_types asks for it");
    }
    if (chosen.empty()) return;
    section["window"] = window;
    if (chosen.size() < static_cast<std::size_t>(layers)) section["window_layers"] = chosen;
  }

 private:
  static bool same_scaling(const json& a, const json& b) {
    return std::all_of(a.items().begin(), a.items().end(), [&](const auto& item) {
      return same(item.value(), b.value(item.key(), json()));
    });
  }
  /// A size that follows from another.
  json scaled(const char* of, int usual, int times, const json& over) const {
    const json size = config_.value(of, json(usual));
    if (!is_count(size) || !is_count(over)) return size;  // an error when that key is read
    return size.get<std::int64_t>() * times / over.get<std::int64_t>();
  }

  const json& config_;
  std::string file_;
  const Architecture& of_;
};

/// Section `model` as a config.json says it.
json told_section(const std::string& file, const json& config, const Architecture& of) {
  const ModelConfig own(config, file, of);
  json section{{"type", of.type}};
  for (const Key& key : of.keys) {
    const json value = own.value(key);
    if (!key.ours) {
      if (!same(value, key.value) && (key.equal.is_null() || !same(value, key.equal)))
        own.refuse(key.name, value, key.value.dump());
      continue;
    }
    const bool size = key.value.is_number_integer() || key.value.is_null();
    if (size && !is_count(value)) own.refuse(key.name, value, "a whole number above 0");
    if (key.value.is_number_float() && (!value.is_number() || value <= 0))
      own.refuse(key.name, value, "a number above 0");
    if (key.value.is_boolean() && !value.is_boolean()) own.refuse(key.name, value, "true, false");
    section[key.ours] = value;
  }
  if (std::string_view(of.type) == "gpt2") {
    section["context"] = section["positions"];
    return section;
  }
  if (json scaling = own.rope_scaling(); !scaling.is_null())
    section["rope_scaling"] = std::move(scaling);
  if (of.windows) own.add_windows(section);
  return section;
}

/// A section `model` with keys that older model files do not have.
json completed(json model) {
  const auto usual = [&](const char* key, const json& value) {
    if (!model.contains(key)) model[key] = value;
  };
  const std::int64_t width = model.value("width", std::int64_t{0}),
                     heads = std::max<std::int64_t>(1, model.value("heads", std::int64_t{1}));
  if (model.value("type", "") == "gpt2") {
    usual("hidden", 4 * width);
    usual("eps", 1e-5);
    usual("positions", model.value("context", json()));
  } else {
    usual("head_dim", width / heads);
    usual("bias", false);
    usual("window", 0);
    usual("window_layers", json::array());
    if (json rope = model.value("rope_scaling", json());
        rope.is_object() && rope["type"] == "linear")
      model["rope_scaling"] = {{"type", "linear"}, {"factor", rope.value("factor", json(1.0))}};
  }
  return model;
}

/// Error(kUsage): a key of config.json and one of section `model` differ. `skips`: what else helps.
[[noreturn]] void refuse_other(const std::string& file, const std::string& key, const json& value,
                               const std::string& ours, const json& wanted,
                               const std::string& skips = {}) {
  fail(ExitCode::kUsage, "init", {.file = file, .key = key},
       "is {0}, but model.{1} is {2}; needed: the same, as in --set model.{1}={0}{3}", value.dump(),
       ours, wanted.dump(), skips);
}

/// A model that is exported with its own section.
void check_own_config(const std::string& file, const json& config, const json& model) {
  for (const auto& [key, wanted] : model.items()) {
    const auto found = config.find(key);
    // Tensors' shapes tell of these, and dropout is training's
    const bool free = key == "vocab" || key == "context" || key == "dropout";
    if (!free && found != config.end() && !same(*found, wanted))
      refuse_other(file, key, *found, key, wanted);
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

/// Whether all numbers of a model in fp32 are ones of `type`, bf16 or fp16.
bool is_in(const SafetensorsFile& file, DType type) {
  bool all = true;
  for (const auto& [name, tensor] : file.tensors) {
    all = all && tensor.dtype == DType::kFloat32;
    if (all)
      each_piece(tensor, [&](std::span<const std::byte> bytes) {
        all = all && std::ranges::equal(bytes, converted(converted(bytes, DType::kFloat32, type),
                                                         type, DType::kFloat32));
      });
  }
  return all;
}

/// The same numbers in that type.
void narrow(SafetensorsFile& file, DType type) {
  for (auto& [name, tensor] : file.tensors) {
    auto wide = std::make_shared<const FileTensor>(std::move(tensor));
    tensor = {type, wide->shape, {}};
    tensor.source = [wide, type](std::vector<std::byte>& buffer) -> std::span<const std::byte> {
      std::vector<std::byte> memory;
      return buffer = converted(bytes_of(*wide, memory), DType::kFloat32, type);
    };
  }
}

/// Writes a model as one file, or as several of at most `most` bytes each, or one tensor, and the
/// index of them.
void write_parts(const fs::path& folder, SafetensorsFile file, std::uint64_t most) {
  std::vector<SafetensorsFile> parts(1);
  std::uint64_t total = 0, used = 0;
  for (auto& [name, tensor] : file.tensors) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(tensor.shape.elements()) *
                                static_cast<std::uint64_t>(size_of(tensor.dtype));
    if (!parts.back().tensors.empty() && used + bytes > most) parts.emplace_back(), used = 0;
    parts.back().tensors[name] = std::move(tensor);
    used += bytes, total += bytes;
  }
  parts[0].metadata = std::move(file.metadata);
  json index{{"metadata", {{"total_size", total}}}, {"weight_map", json::object()}};
  for (std::size_t k = 0; k < parts.size(); ++k) {
    const std::string name =
        parts.size() == 1 ? "model.safetensors"
                          : fmt::format("model-{:05}-of-{:05}.safetensors", k + 1, parts.size());
    parts[k].metadata["format"] = "pt";  // transformers asks for it
    add_checksums(parts[k]);
    for (const auto& [tensor, value] : parts[k].tensors) index["weight_map"][tensor] = name;
    write_safetensors((folder / name).string(), parts[k]);
  }
  if (parts.size() == 1) return;
  const std::string text = index.dump(2) + "\n";
  write_file_atomically((folder / kIndexFile).string(), text.data(), text.size());
}

}  // namespace

json hugging_face_config(const json& given) {
  const std::string type = given.value("type", "");
  const Architecture* const architecture = architecture_of(type);
  if (!architecture)
    fail(ExitCode::kUsage, "export",
         "model.type is {}, which transformers has under no such names; allowed: {}", type,
         type_names());
  const json model = completed(given);
  json config{{"architectures", {architecture->name}}, {"model_type", type}};
  for (const Key& key : architecture->keys) {
    if (key.exported) config[key.name] = key.ours ? model.at(key.ours) : key.value;
  }
  const json dropout = model.value("dropout", json(0.0));
  if (type == "gpt2") {
    for (const char* place : {"embd_pdrop", "attn_pdrop", "resid_pdrop"}) config[place] = dropout;
  } else {
    json rope{{"rope_type", "default"}};
    if (const json scaling = model.value("rope_scaling", json()); scaling.is_object()) {
      for (const auto& [key, value] : scaling.items()) {
        const bool context = key == "original_context";
        rope[key == "type" ? "rope_type"
             : context     ? "original_max_position_embeddings"
                           : key] =
            // transformers wants a whole number of tokens
            context && value == std::floor(value.get<double>()) ? json(value.get<std::int64_t>())
                                                                : value;
      }
      config["rope_scaling"] = rope;  // where older versions look
    }
    rope["rope_theta"] = model.at("rope_theta");
    config["rope_parameters"] = rope;
  }
  if (architecture->windows) {
    const bool any = model.at("window") > 0;
    config["sliding_window"] = any ? model.at("window") : json();
    if (architecture->window_layers) {
      const json& few = model.at("window_layers");
      const std::int64_t layers = model.at("layers").get<std::int64_t>();
      config["layer_types"] = json::array();
      for (std::int64_t i = 0; i < layers; ++i) {
        const bool has = any && (few.empty() || std::find(few.begin(), few.end(), i) != few.end());
        config["layer_types"].push_back(has ? "sliding_attention" : "full_attention");
      }
      config["use_sliding_window"] = any;
      config["max_window_layers"] = any && !few.empty() ? few.front()
                                    : any               ? json(0)
                                                        : json(layers);
    }
  }
  // Their defaults are tokens of other vocabularies
  config["bos_token_id"] = config["eos_token_id"] = nullptr;
  return config;
}

void check_hugging_face_config(const std::string& model_file, const json& given,
                               const std::function<bool(const std::string&)>& skipped) {
  const json config = config_beside(model_file);
  if (config.is_null()) return;
  const std::string file = beside(model_file, "config.json");
  const std::string type = given.value("type", "");
  const Architecture* const architecture = architecture_of(type);
  if (!architecture && config["model_type"] == type) return check_own_config(file, config, given);
  if (!architecture || config["model_type"] != type)
    fail(ExitCode::kUsage, "init", {.file = file, .key = "model_type"},
         "is {}, the config's model.type {}; needed: the same, one of {}",
         config["model_type"].dump(), type, type_names());
  const json theirs = told_section(file, config, *architecture), model = completed(given);
  const auto compare = [&](const char* name, const char* ours, const char* tensor) {
    if (tensor && (!*tensor || (skipped && skipped(tensor)))) return;
    const json value = theirs.value(ours, json()), wanted = model.value(ours, json());
    if (same(value, wanted)) return;
    if (std::string_view(ours) == "positions") ours = "context";  // which it is by itself
    refuse_other(file, name, value, ours, wanted,
                 tensor ? fmt::format(", or \"skip\": [\"{}\"] in init", tensor) : "");
  };
  for (const Key& key : architecture->keys) {
    if (key.ours) compare(key.name, key.ours, key.tensor);
  }
  if (type == "gpt2") return;
  compare("rope_scaling", "rope_scaling", nullptr);
  if (architecture->windows) compare("sliding_window", "window", nullptr);
  if (architecture->window_layers) compare("layer_types", "window_layers", nullptr);
}

json with_pretrained(json config, const std::string& source) {
  if (!config.is_object() || !config.contains("model") || !config["model"].is_object() ||
      config["model"].value("type", json()) != "pretrained")
    return config;
  const json given = config["model"];
  const auto refuse = [&]<class... Args>(const std::string& key, fmt::format_string<Args...> format,
                                         Args&&... args) {
    fail(ExitCode::kUsage, "config", {.file = source, .key = key}, format,
         std::forward<Args>(args)...);
  };
  if (!given.contains("path") || !given["path"].is_string() ||
      given["path"].get_ref<const std::string&>().empty())
    refuse("model.path", "is missing; needed: a folder of Hugging Face's");
  const std::string model_file = find_model(given["path"].get<std::string>()).path;
  const std::string file = beside(model_file, "config.json");
  const json theirs = config_beside(model_file);
  if (theirs.is_null())
    refuse("model.path",
           "is {}, which has no config.json of Hugging Face's form; needed: one with model_type",
           given["path"].get<std::string>());
  json section = section_beside(model_file);
  for (const auto& [key, value] : given.items()) {
    if (key == "type" || key == "path") continue;
    const bool learned = section["type"] == "gpt2";
    if (key != "context" && !(learned && key == "dropout"))
      refuse("model." + key, "is given beside path, whose {} says what the model is; leave it out",
             file);
    if (key == "context" && learned && value.is_number() && value > section["positions"])
      refuse("model.context",
             "is {}, but the model has learned {} positions ({}: n_positions); allowed: no more",
             value.dump(), section["positions"].dump(), file);
    section[key] = value;
  }
  config["model"] = std::move(section);
  json& init = config["init"];
  const auto is_empty = [](const json& text) {
    return text.is_string() && text.get_ref<const std::string&>().empty();
  };
  if (init.is_null() || is_empty(init)) init = given["path"];
  if (init.is_object() && is_empty(init.value("file", json("")))) init["file"] = given["path"];
  const json& initial = init.is_object() ? init["file"] : init;
  if (initial != given["path"])
    refuse("init",
           "names another file than model.path, whose weights the model begins with; "
           "leave it out");
  if (const auto data = config.find("data"); data != config.end() && data->is_object()) {
    const std::string own = tokenizer_beside(model_file);
    const json type = data->value("type", json());
    if (own.empty() && type == "text" && !data->contains("tokenizer"))
      refuse("data.tokenizer",
             "is not given, and {} has no tokenizer.json to take; needed: the one that the model "
             "was trained with{}",
             given["path"].get<std::string>(),
             fs::exists(beside(model_file, "tokenizer.model"))
                 ? " (transformers writes it from the folder's tokenizer.model)"
                 : "");
    if (!own.empty() && (type == "text" || type == "chat") && !data->contains("tokenizer")) {
      check_vocabulary(*Tokenizer::read(own), own, config["model"]["vocab"].get<std::int64_t>());
      (*data)["tokenizer"] = own;
    }
  }
  return config;
}

void add_pretrained_model(ModelRegistry& registry) {
  registry.add(
      "pretrained",
      [](ConfigSection& section, const ModelOutputs&) -> std::unique_ptr<Layer> {
        section.required_text("path",
                              "the folder: config.json, weights and, where it has one, the "
                              "tokenizer, which `text` data take by themselves");
        section.integer("context", 2048, Range::closed(1, 1 << 24),
                        "the most tokens of a sequence; default: config.json's");
        section.number("dropout", 0.0, Range::half_open(0, 1), "of gpt2 alone");
        section.error("path", "is read with the whole config alone; give the model's own type");
      },
      "the model of a Hugging Face folder (gpt2, llama, mistral, qwen2, qwen3), with its weights");
}

void check_vocabulary(const Tokenizer& tokenizer, const std::string& source, std::int64_t rows) {
  if (tokenizer.vocab() <= rows) return;
  fail(ExitCode::kUsage, "init", {.file = source, .key = "vocab"},
       "has {} tokens, and the model's table {} rows (vocab_size); needed: the tokenizer that the "
       "model was trained with",
       tokenizer.vocab(), rows);
}

json section_beside(const std::string& model_file) {
  const json config = config_beside(model_file);
  const std::string file = beside(model_file, "config.json");
  const Architecture* const architecture = architecture_of(config["model_type"]);
  if (!architecture)
    fail(ExitCode::kUsage, "model file", {.file = file, .key = "model_type"}, "is {}; allowed: {}",
         config["model_type"].dump(), type_names());
  return told_section(file, config, *architecture);
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
  if (config.is_null())
    return tensors ? read_model(model_file, {}, Reading::kLater) : std::move(file);

  const std::string place = beside(model_file, "config.json");
  const json section = section_beside(model_file);
  register_builtin_layers();
  register_builtin_models();
  ConfigSection keys(section, place);
  // Samples of a test; a model of many more tokens would take all memory for one
  const auto context = std::min<std::int64_t>(1024, section["context"].get<std::int64_t>());
  const std::unique_ptr<Model> model = make_model(keys, Shape{context});
  if (tensors) {
    file = read_model(model_file, {}, Reading::kLater);
    take_names(file, model_file, *model);
  }
  ModelDescription description{.image = model->input_shape()};
  json data{{"type", "text"}, {"path", ""}, {"sequence_length", context}};
  if (const std::string own = tokenizer_beside(model_file); !own.empty()) {
    const auto tokenizer = Tokenizer::read(own);
    check_vocabulary(*tokenizer, own, section["vocab"].get<std::int64_t>());
    description.tokenizer = tokenizer->text();
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

void export_to_hugging_face(const std::string& run, const std::string& destination, bool merges,
                            std::uint64_t most) {
  const auto [source, told] = find_model(run);
  if (!told.empty()) log::info("{}", told);
  if (!merges) {
    if (const std::optional<Adapter> adapter = read_adapter(source))
      return export_adapter(*adapter, source, destination);
  }
  SafetensorsFile file = read_described(source);
  const ModelDescription description = description_of(file, source);
  Companions companions = description.companions.empty()
                              ? Companions()
                              : Companions::parse(description.companions, source);
  if (companions.ids.is_object() && companions.ids.contains("dtype")) {
    // As the folder had it that the model began with, where no number is another then
    const json own = companions.ids["dtype"];
    companions.ids.erase("dtype");
    for (const auto& [name, type] :
         {std::pair("bfloat16", DType::kBFloat16), {"float16", DType::kFloat16}}) {
      if (own == name && is_in(file, type)) narrow(file, type);
    }
  }
  const json whole = parse_json(description.config, source);
  json config = exported_config(whole);
  const DType dtype = file.tensors.empty() ? DType::kFloat32 : file.tensors.begin()->second.dtype;
  config["dtype"] = dtype == DType::kFloat64    ? "float64"
                    : dtype == DType::kBFloat16 ? "bfloat16"
                    : dtype == DType::kFloat16  ? "float16"
                                                : "float32";
  if (companions.ids.is_object()) config.update(companions.ids);
  std::vector<std::int32_t> ends = text_bounds(description).ends;
  // A model of conversations ends its answers with the template's marker; plain's is eos
  bool answers_end = false;
  if (const json data = whole.value("data", json());
      data.is_object() && data.value("type", json()) == "chat") {
    const ChatSource beside_base = chat_source_of(description, source);
    std::string name = data.value("template", "auto");
    if (name == "auto") name = beside_base.name();
    if (name == "chatml" || name == "llama3") {
      const std::int32_t marker =
          ChatTemplate(name, Tokenizer::parse(description.tokenizer, source), "", "data.template")
              .end();
      answers_end = std::ranges::count(ends, marker) == 0;
      if (answers_end) ends.push_back(marker);
    }
    if (beside_base.jinja.empty() && !name.empty())
      companions.files["chat_template.jinja"] = ChatTemplate::jinja(name);
  }
  const json end = ends.empty() ? json() : ends.size() == 1 ? json(ends[0]) : json(ends);
  if (config["eos_token_id"].is_null() || answers_end) config["eos_token_id"] = end;
  // transformers goes by this file alone, once it is there
  json generation{{"_from_model_config", true}};
  if (const auto it = companions.files.find("generation_config.json");
      it != companions.files.end()) {
    const json kept = parse_json(it->second, source);
    if (kept.is_object() && !end.is_null() &&
        (answers_end || token_ids(kept.value("eos_token_id", json())).empty()))
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
  file.metadata.erase(kChecksums);
  write_parts(folder, std::move(file), most);
  for (const auto& [name, text] : companions.files)
    write_file_atomically((folder / name).string(), text.data(), text.size());
  const std::string text = config.dump(2) + "\n";  // last: with it the folder is whole
  write_file_atomically((folder / "config.json").string(), text.data(), text.size());
}

}  // namespace starling
