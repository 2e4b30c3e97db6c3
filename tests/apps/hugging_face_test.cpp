#include "apps/inference/hugging_face.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "apps/inference/companions.h"
#include "apps/inference/description.h"
#include "apps/inference/model_source.h"
#include "core/error.h"
#include "core/safetensors.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

// Folders of Hugging Face's transformers. That transformers loads them is a test with PyTorch
// (tests/cli/pytorch_test.sh).
using namespace starling;
using nlohmann::json;
using test::contains;

namespace {

const json kGpt2 = json::parse(
    R"({"type": "gpt2", "layers": 2, "heads": 4, "width": 32, "context": 16, "vocab": 256,
        "dropout": 0.1, "tie": true})");
const json kLlama = json::parse(
    R"({"type": "llama", "layers": 2, "heads": 4, "kv_heads": 2, "width": 32, "hidden": 88,
        "context": 16, "vocab": 256, "rope_theta": 10000.0, "eps": 1e-5, "tie": false})");

std::string refused(const json& config, const json& model) {
  const test::Folder folder;
  folder.write("config.json", config.dump());
  return test::error_of(ExitCode::kUsage,
                        [&] { check_hugging_face_config(folder / "model.safetensors", model); });
}

void check_of(const json& config, const json& model) {
  const test::Folder folder;
  folder.write("config.json", config.dump());
  check_hugging_face_config(folder / "model.safetensors", model);
}

json with(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}

}  // namespace

TEST_CASE("hugging_face: what config.json says of a model is what it is checked by") {
  for (const json& model : {kGpt2, kLlama}) {
    json config = hugging_face_config(model);
    const test::Folder folder;
    folder.write("config.json", config.dump());
    check_hugging_face_config(folder / "model.safetensors", model);
    // As older files have it, and with all that transformers adds
    config.erase("rope_parameters");
    config["use_cache"] = true;
    folder.write("config.json", config.dump());
    check_hugging_face_config(folder / "model.safetensors", model);
  }
  const json config = hugging_face_config(kGpt2);
  CHECK(config["n_layer"] == 2);
  CHECK(config["resid_pdrop"] == 0.1);
  CHECK(config["architectures"] == json{"GPT2LMHeadModel"});
  CHECK(hugging_face_config(kLlama)["num_key_value_heads"] == 2);
  CHECK(contains(test::error_of(ExitCode::kUsage,
                                [] {
                                  hugging_face_config({{"type", "mlp"}});
                                }),
                 "model.type is mlp"));
  // A run's own folder has a config.json of another form.
  const test::Folder run;
  run.write("config.json", R"({"model": {"type": "gpt2"}})");
  check_hugging_face_config(run / "model.safetensors", kGpt2);
  check_hugging_face_config(run / "none/model.safetensors", kGpt2);
}

TEST_CASE("hugging_face: a config.json of what is not computed is refused by file and key") {
  const json gpt2 = hugging_face_config(kGpt2), llama = hugging_face_config(kLlama);
  // Of which model, what of its config.json is otherwise, and words of the error.
  std::istringstream rows(R"table(
gpt2 | {"n_head": 8} | config.json: n_head: is 8, but model.heads is 4; needed: the same, as in --set model.heads=8
gpt2 | {"activation_function": "relu"} | activation_function: is "relu", which gpt2 does not compute; allowed: "gelu_new"
gpt2 | {"n_inner": 64} | n_inner: is 64
gpt2 | {"scale_attn_by_inverse_layer_idx": true} | scale_attn_by_inverse_layer_idx: is true
gpt2 | {"model_type": "gpt_neo"} | model_type: is "gpt_neo", the config's model.type gpt2
gpt2 | {"quantization_config": {"bits": 4}} | quantization_config: is
gpt2 | {"reorder_and_upcast_attn": true} | reorder_and_upcast_attn: is true
llama | {"quantization_config": {"bits": 4}} | quantization_config: is
llama | {"rope_scaling": {"rope_type": "llama3"}} | rope_scaling.rope_type: is "llama3"
llama | {"rope_parameters": {"rope_type": "yarn"}} | rope_parameters.rope_type: is "yarn"
llama | {"rope_parameters": {"rope_type": 5}} | rope_parameters.rope_type: is 5
llama | {"sliding_window": 4096} | sliding_window: is 4096
llama | {"head_dim": 16} | head_dim: is 16
llama | {"head_dim": "8"} | head_dim: is
llama | {"num_key_value_heads": null} | num_key_value_heads: is 4, but model.kv_heads is 2
llama | {"rope_parameters": {"type": "linear", "factor": 2.0}} | rope_parameters.type: is "linear", which llama does not compute
llama | {"rope_parameters": {"rope_theta": 500000.0}} | rope_parameters.rope_theta: is 500000.0, which llama does not compute; allowed: that of rope_theta beside it, 10000.0
llama | {"rope_parameters": {"rope_theta": 500000.0}, "rope_theta": null} | rope_theta: is 500000.0, but model.rope_theta
llama | {"rope_parameters": {"partial_rotary_factor": 0.5}} | rope_parameters.partial_rotary_factor: is 0.5
llama | {"rope_parameters": {"full_attention": {"rope_type": "default"}}} | rope_parameters.full_attention: is
llama | {"rope_parameters": 7} | rope_parameters: is 7
llama | {"partial_rotary_factor": 0.5} | partial_rotary_factor: is 0.5
)table");
  for (std::string row; std::getline(rows, row);) {
    if (row.empty()) continue;
    CAPTURE(row);
    const bool is_llama = row.starts_with("llama");
    const std::size_t begin = row.find(" | ") + 3, end = row.find(" | ", begin);
    json config = is_llama ? llama : gpt2;
    config.merge_patch(json::parse(row.substr(begin, end - begin)));
    CHECK(contains(refused(config, is_llama ? kLlama : kGpt2), row.substr(end + 3)));
  }
  CHECK(contains(refused(gpt2, kLlama), "model_type"));
  // A default embedding may say another angle's base
  check_of(with(llama, "rope_parameters", {{"type", "default"}, {"rope_theta", 10000}}), kLlama);
  check_of(with(llama, "rope_parameters", json::object()), kLlama);
  // A table that a run leaves out may have another size; angles have no table
  const test::Folder sized;
  sized.write("config.json", with(with(gpt2, "vocab_size", 300), "n_positions", 8).dump());
  const std::string model = sized / "model.safetensors";
  CHECK(contains(test::error_of(ExitCode::kUsage, [&] { check_hugging_face_config(model, kGpt2); }),
                 R"(n_positions: is 8, but model.context is 16; needed: the same, as in --set )"
                 R"(model.context=8, or "skip": ["transformer.wpe.weight"] in init)"));
  check_hugging_face_config(model, kGpt2,
                            [](const std::string& name) { return name.ends_with("e.weight"); });
  CHECK(contains(test::error_of(ExitCode::kUsage,
                                [&] {
                                  check_hugging_face_config(model, kGpt2, [](const auto& name) {
                                    return name == "transformer.wpe.weight";
                                  });
                                }),
                 "vocab_size: is 300"));
  check_of(with(llama, "max_position_embeddings", 4096), kLlama);
  const test::Folder folder;
  folder.write("config.json", "{\"model_type\":");
  CHECK(contains(
      test::error_of(ExitCode::kUsage,
                     [&] { check_hugging_face_config(folder / "model.safetensors", kGpt2); }),
      "config.json"));
}

TEST_CASE("hugging_face: an exported folder has config.json, model and tokenizer") {
  const test::Folder folder;
  SafetensorsFile file;
  file.tensors["transformer.wpe.weight"] = {DType::kFloat32, Shape{2}, std::vector<std::byte>(8)};
  describe({.config = json{{"model", kGpt2}}.dump(), .image = Shape{16}}, file);
  file.metadata["starling.tokenizer"] = R"({"version": "1.0"})";
  add_checksums(file);
  write_safetensors(folder / "model.safetensors", file);
  const std::string out = folder / "out";
  export_to_hugging_face(folder.path(), out);
  const auto read = [&](const char* name) {
    return json::parse(test::read_text(out + "/" + name));
  };
  CHECK(read("config.json")["n_positions"] == 16);
  CHECK(read("tokenizer.json")["version"] == "1.0");
  CHECK(read("tokenizer_config.json")["tokenizer_class"] == "PreTrainedTokenizerFast");
  CHECK(find_model(out).path == out + "/model.safetensors");
  const SafetensorsFile written = read_model(out + "/model.safetensors");
  CHECK(written.metadata.at("format") == "pt");
  CHECK(written.metadata.count("starling.config") == 1);
  CHECK(written.tensors.count("transformer.wpe.weight") == 1);
  CHECK(contains(
      test::error_of(ExitCode::kUsage, [&] { export_to_hugging_face(folder.path(), out); }),
      "has files already; needed: an empty or new folder"));
  // Bytes are a tokenizer without merges
  file.metadata["starling.tokenizer"] = "bytes";
  add_checksums(file);
  write_safetensors(folder / "model.safetensors", file);
  export_to_hugging_face(folder.path(), folder / "bytes");
  CHECK(json::parse(test::read_text(folder / "bytes/tokenizer.json"))["model"]["vocab"].size() ==
        256);
  const test::Folder parts;
  parts.write("model.safetensors.index.json", "{}");
  CHECK(contains(test::error_of(ExitCode::kUsage, [&] { (void)find_model(parts.path()); }),
                 "several files"));
}

TEST_CASE("hugging_face: what a folder has beside its weights begins and ends its texts") {
  const json special{{"id", 7}, {"content", "<|endoftext|>"}, {"special", true}};
  const auto bounds = [](const json& tokenizer, const std::string& companions = {}) {
    const TextBounds found = text_bounds({.tokenizer = tokenizer.dump(), .companions = companions});
    return json{found.begin, found.ends}.dump();
  };
  CHECK(bounds("bytes") == "[[],[]]");
  CHECK(bounds({{"added_tokens", {special}}}) == "[[],[7]]");
  json plain = special;
  plain["special"] = false;
  CHECK(bounds({{"added_tokens", {plain}}}) == "[[],[]]");
  plain = {{"id", 3}, {"content", "<|im_start|>"}, {"special", true}};
  CHECK(bounds({{"added_tokens", {plain, special}}}) == "[[],[7]]");
  const json processor{{"type", "TemplateProcessing"},
                       {"single",
                        {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                         {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                         {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}}}},
                       {"special_tokens", {{"<s>", {{"ids", {1}}}}, {"</s>", {{"ids", {2}}}}}}};
  CHECK(bounds({{"post_processor", processor}}) == "[[1],[]]");
  const json byte_level{{"type", "ByteLevel"}};
  CHECK(bounds({{"post_processor",
                 {{"type", "Sequence"}, {"processors", {byte_level, processor}}}}}) == "[[1],[]]");
  CHECK(bounds({{"post_processor", {{"type", "RobertaProcessing"}, {"cls", {"<s>", 4}}}}}) ==
        "[[4],[]]");

  const test::Folder folder;
  const std::string model = folder / "model.safetensors";
  const auto beside = [&](const json& config, const json& generation) {
    folder.write("config.json", config.dump());
    folder.write("generation_config.json", generation.dump());
    return Companions::of(model).text();
  };
  const json tokenizer{{"added_tokens", {special}}};
  CHECK(bounds(tokenizer, beside({{"model_type", "gpt2"}, {"eos_token_id", 5}},
                                 {{"eos_token_id", {8, 9}}})) == "[[],[8,9]]");
  CHECK(bounds(tokenizer, beside({{"model_type", "gpt2"}, {"eos_token_id", 5}}, json::object())) ==
        "[[],[5]]");
  // An absent key means what transformers means by it
  CHECK(bounds(tokenizer, beside({{"model_type", "gpt2"}}, json::object())) == "[[],[50256]]");
  CHECK(bounds(tokenizer, beside({{"model_type", "llama"}}, json::object())) == "[[],[2]]");
  CHECK(bounds(tokenizer, beside({{"model_type", "gpt2"}, {"eos_token_id", nullptr}},
                                 json::object())) == "[[],[7]]");
  folder.write("config.json", R"({"model": {"type": "gpt2"}})");
  CHECK(Companions::of(model).empty());
  // Names of files come from a file of somebody else's
  CHECK(contains(
      test::error_of(ExitCode::kUsage,
                     [] { Companions::parse(R"({"files": {"../evil": "x"}, "ids": {}})", "it"); }),
      "it: starling.companions: needed"));
}
