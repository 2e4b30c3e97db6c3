#include "apps/inference/hugging_face.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/inference/companions.h"
#include "apps/inference/description.h"
#include "apps/inference/model_source.h"
#include "core/error.h"
#include "core/safetensors.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"
#include "tests/support/rows.h"

// Folders of Hugging Face's transformers. That transformers loads them is a test with PyTorch
// (tests/cli/pytorch_test.sh).
using namespace starling;
using nlohmann::json;
using test::contains;
using test::fails;

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
  CHECK(fails(ExitCode::kUsage, "model.type is mlp", [] {
    hugging_face_config({{"type", "mlp"}});
  }));
  // A run's own folder has a config.json of another form.
  const test::Folder run;
  run.write("config.json", R"({"model": {"type": "gpt2"}})");
  check_hugging_face_config(run / "model.safetensors", kGpt2);
  check_hugging_face_config(run / "none/model.safetensors", kGpt2);
}

TEST_CASE("hugging_face: a config.json of what is not computed is refused by file and key") {
  const json gpt2 = hugging_face_config(kGpt2), llama = hugging_face_config(kLlama);
  // Of which model, what of its config.json is otherwise, and words of the error.
  for (const auto& row : test::rows_of(R"table(
gpt2 | {"n_head": 8} | config.json: n_head: is 8, but model.heads is 4; needed: the same, as in --set model.heads=8
gpt2 | {"activation_function": "relu"} | activation_function: is "relu", which gpt2 does not compute; allowed: "gelu_new"
gpt2 | {"n_inner": 64} | n_inner: is 64
gpt2 | {"scale_attn_by_inverse_layer_idx": true} | scale_attn_by_inverse_layer_idx: is true
gpt2 | {"model_type": "gpt_neo"} | model_type: is "gpt_neo", the config's model.type gpt2
gpt2 | {"quantization_config": {"bits": 4}} | quantization_config: is
gpt2 | {"reorder_and_upcast_attn": true} | reorder_and_upcast_attn: is true
llama | {"quantization_config": {"bits": 4}} | quantization_config: is
llama | {"rope_scaling": {"rope_type": "llama3"}} | rope_scaling.factor: is null, which llama does not compute; allowed: a number above 0, which "llama3" needs
llama | {"rope_scaling": {"type": "linear", "factor": 2.0}} | rope_scaling: is {"factor":2.0,"type":"linear"}, but model.rope_scaling is null
llama | {"rope_scaling": {"type": "dynamic", "factor": 2.0}} | rope_scaling.type: is "dynamic", which llama does not compute; allowed: "default", "linear", "llama3"
llama | {"attention_bias": true} | attention_bias: is true, but model.bias is false
llama | {"mlp_bias": true} | mlp_bias: is true, which llama does not compute
llama | {"hidden_act": "gelu"} | hidden_act: is "gelu", which llama does not compute
llama | {"rms_norm_eps": "small"} | rms_norm_eps: is "small", which llama does not compute; allowed: a number above 0
mistral | {"sliding_window": 8} | sliding_window: is 8, but model.window is 0
mistral | {"sliding_window": 0} | sliding_window: is 0, which mistral does not compute; allowed: a number of tokens above 0, or null
qwen2 | {"layer_types": ["full_attention"]} | layer_types: is ["full_attention"], which qwen2 does not compute; allowed: a list of 2 names
qwen2 | {"layer_types": ["full_attention", "chunked_attention"]} | layer_types[1]: is "chunked_attention", which qwen2 does not compute
qwen2 | {"layer_types": ["full_attention", "sliding_attention"]} | sliding_window: is null, which qwen2 does not compute
qwen3 | {"head_dim": null} | head_dim: is 128, but model.head_dim is 8
llama | {"rope_parameters": {"rope_type": "yarn"}} | rope_parameters.rope_type: is "yarn"
llama | {"rope_parameters": {"rope_type": 5}} | rope_parameters.rope_type: is 5
llama | {"sliding_window": 4096} | sliding_window: is 4096
llama | {"head_dim": 16} | head_dim: is 16
llama | {"head_dim": "8"} | head_dim: is
llama | {"num_key_value_heads": null} | num_key_value_heads: is 4, but model.kv_heads is 2
llama | {"rope_parameters": {"type": "linear", "factor": 2.0}} | rope_parameters.type: is "linear", which llama does not compute; allowed: that of rope_type beside it
llama | {"rope_parameters": {"rope_theta": 500000.0}} | rope_parameters.rope_theta: is 500000.0, which llama does not compute; allowed: that of rope_theta beside it, 10000.0
llama | {"rope_parameters": {"rope_theta": 500000.0}, "rope_theta": null} | rope_theta: is 500000.0, but model.rope_theta
llama | {"rope_parameters": {"partial_rotary_factor": 0.5}} | rope_parameters.partial_rotary_factor: is 0.5
llama | {"rope_parameters": {"full_attention": {"rope_type": "default"}}} | rope_parameters.full_attention: is
llama | {"rope_parameters": 7} | rope_parameters: is 7
llama | {"partial_rotary_factor": 0.5} | partial_rotary_factor: is 0.5
)table")) {
    CAPTURE(row.at(1));
    json model = row.at(0) == "gpt2" ? kGpt2 : kLlama;
    model["type"] = row.at(0);
    json config = hugging_face_config(model);
    // A patch's null takes a key out: what it means then is the class's default
    config.merge_patch(json::parse(row.at(1)));
    CHECK(contains(refused(config, model), row.at(2)));
  }
  CHECK(contains(refused(gpt2, kLlama), "model_type"));
  // A default embedding may say another angle's base
  check_of(with(llama, "rope_parameters", {{"type", "default"}, {"rope_theta", 10000}}), kLlama);
  check_of(with(llama, "rope_parameters", json::object()), kLlama);
  // A table that a run leaves out may have another size; angles have no table
  const test::Folder sized;
  sized.write("config.json", with(with(gpt2, "vocab_size", 300), "n_positions", 8).dump());
  const std::string model = sized / "model.safetensors";
  CHECK(fails(ExitCode::kUsage,
              R"(n_positions: is 8, but model.context is 16; needed: the same, as in --set )"
              R"(model.context=8, or "skip": ["transformer.wpe.weight"] in init)",
              [&] { check_hugging_face_config(model, kGpt2); }));
  check_hugging_face_config(model, kGpt2,
                            [](const std::string& name) { return name.ends_with("e.weight"); });
  CHECK(fails(ExitCode::kUsage, "vocab_size: is 300", [&] {
    check_hugging_face_config(model, kGpt2,
                              [](const auto& name) { return name == "transformer.wpe.weight"; });
  }));
  check_of(with(llama, "max_position_embeddings", 4096), kLlama);
  const test::Folder folder;
  folder.write("config.json", "{\"model_type\":");
  CHECK(fails(ExitCode::kUsage, "config.json",
              [&] { check_hugging_face_config(folder / "model.safetensors", kGpt2); }));
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
  CHECK(fails(ExitCode::kUsage, "has files already; needed: an empty or new folder",
              [&] { export_to_hugging_face(folder.path(), out); }));
  // Bytes are a tokenizer without merges
  file.metadata["starling.tokenizer"] = "bytes";
  add_checksums(file);
  write_safetensors(folder / "model.safetensors", file);
  export_to_hugging_face(folder.path(), folder / "bytes");
  CHECK(json::parse(test::read_text(folder / "bytes/tokenizer.json"))["model"]["vocab"].size() ==
        256);
}

TEST_CASE("hugging_face: a config.json of transformers' is a section of ours, and back") {
  const json golden = json::parse(test::read_text("golden/transformers.json"));
  int families = 0;
  for (const auto& [name, given] : golden["cases"].items()) {
    if (!given.contains("config")) continue;
    CAPTURE(name);
    ++families;
    const test::Folder folder;
    const std::string file = folder / "model.safetensors";
    folder.write("config.json", given["config"].dump());
    const json section = section_beside(file);
    for (const auto& [key, value] : given["model"].items()) {
      CAPTURE(key);
      CHECK(section[key] == value);
    }
    folder.write("config.json", hugging_face_config(section).dump());
    CHECK(section_beside(file) == section);
  }
  CHECK(families == 10);
  // A key that is not there means what it does to transformers' class.
  for (const json& whole : golden["defaults"]) {
    CAPTURE(whole["model_type"]);
    const test::Folder folder;
    const std::string file = folder / "model.safetensors";
    folder.write("config.json", whole.dump());
    const json section = section_beside(file);
    folder.write("config.json", json{{"model_type", whole["model_type"]}}.dump());
    CHECK(section_beside(file) == section);
  }
  // Older versions of transformers say the layers of a window by their first
  const json old{{"model_type", "qwen2"},
                 {"num_hidden_layers", 4},
                 {"max_window_layers", 3},
                 {"use_sliding_window", true},
                 {"sliding_window", 9}};
  const test::Folder folder;
  folder.write("config.json", old.dump());
  const json section = section_beside(folder / "model.safetensors");
  CHECK((section["window"] == 9 && section["window_layers"] == json{3}));
  folder.write("config.json", R"({"model_type": "mistral"})");
  CHECK(section_beside(folder / "model.safetensors")["window"] == 4096);
}

TEST_CASE("hugging_face: a model in several files is read by its index, and each fault is named") {
  const test::Folder folder;
  const auto part = [&](const std::string& name, const std::vector<std::string>& tensors) {
    SafetensorsFile file;
    for (const std::string& tensor : tensors)
      file.tensors[tensor] = {DType::kFloat32, Shape{2}, std::vector<std::byte>(8)};
    file.metadata["of"] = name;
    add_checksums(file);
    write_safetensors(folder / name, file);
  };
  const auto index = [&](const json& places) {
    folder.write("model.safetensors.index.json", json{{"weight_map", places}}.dump());
  };
  part("a.safetensors", {"x", "y"});
  part("b.safetensors", {"z"});
  const json places{{"x", "a.safetensors"}, {"y", "a.safetensors"}, {"z", "b.safetensors"}};
  index(places);
  const std::string path = find_model(folder.path()).path;
  CHECK(path.ends_with("model.safetensors.index.json"));
  CHECK(read_model(path).tensors.size() == 3);
  CHECK(read_model(path, [](const std::string& name) { return name == "y"; }).tensors.size() == 2);
  const auto fault = [&](json changed) {
    json now = places;
    now.merge_patch(changed);
    index(now);
    return test::error_of(ExitCode::kUsage, [&] { read_model(path, {}, Reading::kLater); });
  };
  CHECK(contains(fault({{"z", "c.safetensors"}}),
                 "index.json: weight_map.z: is c.safetensors, which is not there"));
  CHECK(contains(fault({{"w", "a.safetensors"}}),
                 "weight_map.w: is a.safetensors, which has no such tensor"));
  CHECK(contains(fault({{"x", "b.safetensors"}}),
                 "weight_map.x: is \"b.safetensors\", but a.safetensors has that tensor"));
  CHECK(contains(fault({{"y", nullptr}}), "weight_map.y: is missing, but a.safetensors has"));
  CHECK(contains(fault({{"x", "../a.safetensors"}}), "weight_map.x: is \"../a.safetensors\""));
  CHECK(contains(fault({{"x", 5}}), "weight_map.x: is 5; needed: a file beside it"));
  part("b.safetensors", {"z", "x"});
  CHECK(contains(fault(json::object()),
                 "weight_map.x: is x twice, in a.safetensors and b.safetensors"));
  folder.write("model.safetensors.index.json", "{}");
  CHECK(fails(ExitCode::kUsage, "weight_map: is no object", [&] { read_model(path); }));
  // What is read later is checked then
  part("b.safetensors", {"z"});
  index(places);
  std::string bytes = test::read_text(folder / "b.safetensors");
  bytes.back() = 1;
  folder.write("b.safetensors", bytes);
  const SafetensorsFile later = read_model(path, {}, Reading::kLater);
  std::vector<std::byte> room;
  CHECK(bytes_of(later.tensors.at("x"), room).size() == 8);
  CHECK(fails(ExitCode::kUsage, "its bytes are not those that were written",
              [&] { (void)bytes_of(later.tensors.at("z"), room); }));
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
  CHECK(fails(ExitCode::kUsage, "it: starling.companions: needed",
              [] { Companions::parse(R"({"files": {"../evil": "x"}, "ids": {}})", "it"); }));
}
