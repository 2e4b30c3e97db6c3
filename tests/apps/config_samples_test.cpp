// Samples of docs/config.md: each is read by the program, as part of a config, without a word.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "apps/training/config/plugins.h"
#include "apps/training/config/train_config.h"
#include "tests/apps/chat_files.h"
#include "tests/support/folder.h"

namespace starling {
namespace {

using nlohmann::json;

/// What a sample needs beside it: JSON that is merged into the config.
const std::map<std::string, const char*> kBeside = {
    {"load_balanced", R"({"data": {"type": "image_folder"}})"},
    {"vgg11", R"({"data": {"image_size": 224}})"},
    {"vit", R"({"data": {"image_size": 224}})"},
    {"vit_ti_16", R"({"data": {"image_size": 224}})"},
    {"vit_s_16", R"({"data": {"image_size": 224}})"},
    {"vit_b_16", R"({"data": {"image_size": 224}})"},
    {"gpt2", R"({"data": {"type": "text"}})"},
    {"llama", R"({"data": {"type": "text"}})"},
    {"mistral", R"({"data": {"type": "text"}})"},
    {"qwen2", R"({"data": {"type": "text"}})"},
    {"qwen3", R"({"data": {"type": "text"}})"},
    {"pretrained", R"({"data": {"type": "text"}})"},
    {"choco", R"({"sync": {"topology": {"type": "static-ring"}}})"},
    {"decentlam", R"({"sync": {"topology": {"type": "static-ring"}}})"},
    {"momentum_tracking", R"({"optimizer": {"momentum": 0.9}})"},
    {"qadam", R"({"optimizer": {"type": "adam"}})"},
    {"csv", R"({"task": {"type": "regression"}})"},
    {"regression", R"({"data": {"type": "csv"}})"},
    {"mse", R"({"data": {"type": "csv"}, "task": {"type": "regression"}})"},
    {"l1", R"({"data": {"type": "csv"}, "task": {"type": "regression"}})"},
    {"language_model", R"({"data": {"type": "text"}, "model": {"type": "gpt2", "layers": 1}})"},
    {"text", R"({"model": {"type": "gpt2", "layers": 1}})"},
    {"tokens", R"({"model": {"type": "gpt2", "layers": 1}})"},
    {"chat", R"({"model": {"type": "gpt2", "layers": 1}})"},
    {"huber", R"({"data": {"type": "csv"}, "task": {"type": "regression"}})"},
};

/// A place in a config, as the heading of a kind names it: "sync.topology.type".
json::json_pointer place_of(const std::string& heading) {
  std::string path = heading.substr(heading.find('`') + 1);
  path = "/" + path.substr(0, path.find('`'));
  if (path.ends_with(".type")) path.resize(path.size() - 5);
  if (heading.starts_with("# Augmentations")) path = "/data/augment";
  for (char& c : path) c = c == '.' ? '/' : c;
  return json::json_pointer(path);
}

}  // namespace

TEST_CASE("apps/config: each sample of docs/config.md is read, and means what it says") {
  register_builtins();
  const test::Folder folder;
  const std::string table = folder.write("table.csv", "a,b\n1,2\n2,3\n3,5\n4,7\n5,8\n6,9\n");
  const std::string words = folder.write("words.txt", std::string(1000, 'a'));
  const std::string tokens = folder.write("train.bin", std::string(1000, '\0'));
  const std::string tokenizer = folder.write("tokenizer.json", test::tokenizer_json({}).dump());
  folder.write("config.json", R"({"model_type": "gpt2", "n_layer": 1, "n_positions": 2048})");
  folder.write("model.safetensors", "");
  const json least = json::parse(R"({"data": {"type": "synthetic"}, "model": {"type": "mlp"},
    "batch_size": 1, "steps": 1000, "loss": {"type": "cross_entropy"}, "deterministic": false})");
  std::istringstream text(describe_config());
  std::string heading, name, sample;
  bool inside = false;
  int read = 0;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("# ")) heading = line;
    if (line.starts_with("## ")) name = line.substr(3);
    if (inside && line == "```") inside = false;
    if (inside) sample += line + "\n";
    if (line == "```json") inside = true;
    const bool short_one = line.find("`{\"type\"") != std::string::npos;
    if (short_one) sample = line.substr(line.find('{'), line.find('}') + 1 - line.find('{'));
    if (inside || sample.empty()) continue;
    json config = least, value = json::parse(sample);
    sample.clear();
    CAPTURE(heading);
    CAPTURE(name);
    if (const auto beside = kBeside.find(name); beside != kBeside.end())
      config.merge_patch(json::parse(beside->second));
    if (heading == "# Config keys") {
      config = value;
    } else {
      if (heading.starts_with("# Layers")) {
        json layers = json::array();
        if (name == "embed_inputs") layers = {{{"type", "flatten"}}};  // takes a vector
        if (name == "multi_head_attention")                            // takes places×width
          layers = {{{"type", "flatten"}},
                    {{"type", "embedding"}, {"num_embeddings", 256}, {"embedding_dim", 8}}};
        layers.insert(layers.end(),
                      {value, {{"type", "flatten"}}, {{"type", "linear"}, {"out_features", 10}}});
        config["model"] = {{"type", "sequential"}, {"layers", layers}};
      } else {
        if (name == "pretrained") value["path"] = folder.path();
        config[place_of(heading)] = value;
      }
    }
    if (config["data"]["type"] == "csv") config["data"].update({{"path", table}, {"target", "b"}});
    if (config["data"]["type"] == "text")
      config["data"].update({{"path", words}, {"sequence_length", 16}});
    if (config["data"]["type"] == "tokens")
      config["data"].update({{"path", tokens}, {"vocab", 256}, {"sequence_length", 16}});
    if (config["data"]["type"] == "chat")
      config["data"].update({{"tokenizer", tokenizer}, {"template", "plain"}});
    ++read;
    TrainConfig made;
    CHECK_NOTHROW(made = read_train_config(config, "sample", {4, 2}, false));
    if (heading != "# Config keys" && !heading.starts_with("# Layers") && name != "pretrained") {
      json& resolved = made.resolved[place_of(heading)];
      if (resolved.is_string()) resolved = {{"type", resolved}};
      for (const auto& [key, given] : config[place_of(heading)].items()) {
        CAPTURE(key);
        if (key == "layers") continue;  // each has its own defaults
        CHECK(resolved[key] == given);
      }
    }
  }
  CHECK(read > 90);
}

}  // namespace starling
