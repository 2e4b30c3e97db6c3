#include "apps/inference/hugging_face.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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
  CHECK(contains(refused(with(gpt2, "n_head", 8), kGpt2),
                 "config.json: n_head: is 8, but model.heads is 4; needed: the same, as in --set "
                 "model.heads=8"));
  CHECK(contains(
      refused(with(gpt2, "activation_function", "relu"), kGpt2),
      R"(activation_function: is "relu", which gpt2 does not compute; allowed: "gelu_new")"));
  CHECK(contains(refused(with(gpt2, "n_inner", 64), kGpt2), "n_inner: is 64"));
  CHECK(contains(refused(with(gpt2, "scale_attn_by_inverse_layer_idx", true), kGpt2),
                 "scale_attn_by_inverse_layer_idx: is true"));
  CHECK(contains(refused(with(gpt2, "model_type", "gpt_neo"), kGpt2),
                 R"(model_type: is "gpt_neo", the config's model.type gpt2)"));
  CHECK(contains(refused(gpt2, kLlama), "model_type"));
  CHECK(contains(refused(with(llama, "rope_scaling", {{"rope_type", "llama3"}}), kLlama),
                 "rope_scaling: is"));
  CHECK(contains(refused(with(llama, "rope_parameters", {{"rope_type", "yarn"}}), kLlama),
                 "rope_scaling: is"));
  CHECK(contains(refused(with(llama, "rope_parameters", {{"rope_type", 5}}), kLlama),
                 "rope_scaling: is"));
  CHECK(contains(refused(with(llama, "sliding_window", 4096), kLlama), "sliding_window: is 4096"));
  CHECK(contains(refused(with(llama, "head_dim", 16), kLlama), "head_dim: is 16"));
  json all_heads = llama;
  all_heads.erase("num_key_value_heads");
  CHECK(contains(refused(all_heads, kLlama), "num_key_value_heads: is 4, but model.kv_heads is 2"));
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
