#include "apps/inference/hugging_face.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

#include "apps/inference/description.h"
#include "apps/inference/model_source.h"
#include "apps/text/tokenizer.h"
#include "core/config.h"
#include "core/error.h"
#include "core/log.h"
#include "core/safetensors.h"

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
        {"n_positions", "context", 1024},
        {"vocab_size", "vocab", 50257},
        {"tie_word_embeddings", "tie", true},
        {"activation_function", nullptr, "gelu_new", true, "gelu_pytorch_tanh"},
        {"layer_norm_epsilon", nullptr, 1e-5},
        {"scale_attn_weights", nullptr, true},
        {"scale_attn_by_inverse_layer_idx", nullptr, false},
        {"add_cross_attention", nullptr, false},
        {"is_decoder", nullptr, false, false, true}}},
      {"llama",
       "LlamaForCausalLM",
       {{"num_hidden_layers", "layers", 32},
        {"num_attention_heads", "heads", 32},
        {"num_key_value_heads", "kv_heads", nullptr},
        {"hidden_size", "width", 4096},
        {"intermediate_size", "hidden", 11008},
        {"max_position_embeddings", "context", 2048},
        {"vocab_size", "vocab", 32000},
        {"rope_theta", "rope_theta", 10000.0},
        {"rms_norm_eps", "eps", 1e-6},
        {"tie_word_embeddings", "tie", false},
        {"hidden_act", nullptr, "silu"},
        {"attention_bias", nullptr, false},
        {"mlp_bias", nullptr, false},
        {"rope_scaling", nullptr, nullptr, false},
        {"sliding_window", nullptr, nullptr, false}}}};
  return all;
}

const Architecture* architecture_of(const std::string& type) {
  for (const Architecture& one : architectures()) {
    if (type == one.type) return &one;
  }
  return nullptr;
}

json read_json(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  if (!stream) fail(ExitCode::kUsage, "config.json", {.file = file}, "cannot be read");
  return parse_json(text, file);
}

bool same(const json& a, const json& b) {
  return a.is_number() && b.is_number() ? a.get<double>() == b.get<double>() : a == b;
}

/// What the file says of a key; a model of several heads of keys has as many as of queries where
/// it does not say.
json told(const json& config, const Key& key) {
  const std::string_view name = key.name;
  const auto found = config.find(key.name);
  if (found != config.end() && !found->is_null()) return *found;
  // Newer files have all of rotary embedding in one object
  const auto rope = config.find("rope_parameters");
  const bool ropes = rope != config.end() && rope->is_object();
  if (name == "rope_theta" && ropes) return rope->value("rope_theta", key.value);
  if (name == "rope_scaling" && ropes && rope->value("rope_type", json("default")) != "default")
    return *rope;
  if (name == "num_key_value_heads") return config.value("num_attention_heads", json(32));
  return key.value;
}

/// A part of a folder that is made: whole, or not there.
void write_json(const fs::path& file, const json& value) {
  const std::string text = value.dump(2) + "\n";
  write_file_atomically(file.string(), text.data(), text.size());
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

void check_hugging_face_config(const std::string& model_file, const json& model) {
  const std::string file = (fs::path(model_file).parent_path() / "config.json").string();
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return;
  const json config = read_json(file);
  if (!config.is_object() || !config.contains("model_type")) return;
  const std::string type = model.value("type", "");
  const Architecture* const architecture = architecture_of(type);
  if (!architecture || config["model_type"] != type)
    fail(ExitCode::kUsage, "init", {.file = file, .key = "model_type"},
         "is {}, the config's model.type {}; needed: the same, gpt2 or llama",
         config["model_type"].dump(), type);
  for (const Key& key : architecture->keys) {
    const json value = told(config, key),
               wanted = key.ours ? model.value(key.ours, json()) : key.value;
    if (same(value, wanted) || (!key.equal.is_null() && same(value, key.equal))) continue;
    if (key.ours)
      fail(ExitCode::kUsage, "init", {.file = file, .key = key.name},
           "is {}, but model.{} is {}; needed: the same, as in --set model.{}={}", value.dump(),
           key.ours, wanted.dump(), key.ours, value.dump());
    fail(ExitCode::kUsage, "init", {.file = file, .key = key.name},
         "is {}, which {} does not compute; allowed: {}", value.dump(), type, wanted.dump());
  }
  const auto side = [&](const char* name, double usual) {
    const auto found = config.find(name);
    if (found == config.end() || !found->is_number() || found->get<double>() == usual) return;
    fail(ExitCode::kUsage, "init", {.file = file, .key = name},
         "is {}, which {} does not compute; allowed: {}", found->dump(), type, usual);
  };
  const double width = model.at("width").get<double>();
  side("n_inner", 4 * width);
  side("head_dim", width / model.at("heads").get<double>());
}

void export_to_hugging_face(const std::string& run, const std::string& destination) {
  const auto [source, told] = find_model(run);
  if (!told.empty()) log::info("{}", told);
  SafetensorsFile file = read_model(source);
  const ModelDescription description = description_of(file, source);
  json config = hugging_face_config(parse_json(description.config, source).at("model"));
  const DType dtype = file.tensors.empty() ? DType::kFloat32 : file.tensors.begin()->second.dtype;
  config["dtype"] = dtype == DType::kFloat64 ? "float64" : "float32";

  const fs::path folder(destination);
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    fs::create_directories(folder, error);
    if (error)
      fail(ExitCode::kOutput, "export", {.file = destination}, "cannot be made: {}",
           error.message());
  } else if (!fs::is_empty(folder, error)) {
    fail(ExitCode::kUsage, "export", {.file = destination},
         "has files already; needed: an empty or new folder");
  }
  file.metadata["format"] = "pt";  // transformers asks for it
  file.metadata.erase(kChecksums);
  add_checksums(file);
  write_safetensors((folder / "model.safetensors").string(), file);
  if (const auto it = file.metadata.find("starling.tokenizer"); it != file.metadata.end()) {
    const std::string text = it->second == "bytes" ? Tokenizer::bytes()->huggingface() : it->second;
    write_file_atomically((folder / "tokenizer.json").string(), text.data(), text.size());
    write_json(folder / "tokenizer_config.json",
               {{"tokenizer_class", "PreTrainedTokenizerFast"},
                {"model_max_length",
                 config.value("n_positions", config.value("max_position_embeddings", json()))},
                {"clean_up_tokenization_spaces", false}});
  }
  write_json(folder / "config.json", config);  // last: with it the folder is whole
}

}  // namespace starling
