// Runs of adapters (`lora`): what is trained and kept, what a base is known by, PEFT's folders, and
// what is refused.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/inference/adapter.h"
#include "apps/inference/hugging_face.h"
#include "apps/inference/model_source.h"
#include "core/safetensors.h"
#include "tests/apps/program.h"
#include "tests/support/errors.h"

namespace starling {
namespace {

using test::contains;
using test::Program;

void write_lora_run(const Program& program) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "sing, starling " + std::to_string(i * i % 97) + ". ";
  program.write("text.txt", text);
  program.write("run.json", R"({
    "data": {"type": "text", "path": "text.txt", "sequence_length": 16},
    "model": {"type": "gpt2", "layers": 2, "heads": 2, "width": 16, "context": 16},
    "batch_size": 2, "steps": 6, "threads": 1, "optimizer": {"type": "adamw", "lr": 0.01},
    "log_every": 1, "tensorboard": false, "evaluate": {"every_epochs": 0},
    "checkpoint": {"every_steps": 3}, "sync": {"transport": "mpi"}})");
}

/// The largest difference of two files' tensors, which have the same names and shapes.
double adapter_difference(const SafetensorsFile& a, const SafetensorsFile& b) {
  REQUIRE(a.tensors.size() == b.tensors.size());
  double largest = 0.0;
  for (const auto& [name, tensor] : a.tensors) {
    CAPTURE(name);
    const FileTensor& other = b.tensors.at(name);
    REQUIRE(tensor.dtype == other.dtype);
    REQUIRE(tensor.shape == other.shape);
    const auto compare = [&](auto x) {
      for (std::size_t at = 0; at < tensor.bytes.size(); at += sizeof x) {
        auto y = x;
        std::memcpy(&x, tensor.bytes.data() + at, sizeof x);
        std::memcpy(&y, other.bytes.data() + at, sizeof y);
        largest = std::max(largest, std::abs(static_cast<double>(x) - y));
      }
    };
    if (tensor.dtype == DType::kFloat64)
      compare(0.0);
    else
      compare(0.0F);
  }
  return largest;
}

double loss_of_test(const Program& program, const std::string& command) {
  return test::last_line(program.check(command, 1, 0, "test_loss", command)).at("test_loss");
}

}  // namespace

TEST_CASE("lora: adapters are trained and kept, and go with their base") {
  const Program program;
  write_lora_run(program);
  program.play(R"table(
0 1 | a base | done | run.json --output base
let lora = init=base | lora.rank=2 | seed=5
0 1 | the dry run | parameters: 1024, and 10944 that are not trained | run.json --dry-run | $lora
0 1 | adapters | 1024 parameters and 10944 frozen ones in | run.json --output tuned | $lora
0 1 | stopped | done | run.json --output part | $lora | steps=3
0 1 | and resumed | continuing after step 3 | run.json --output part --resume latest | $lora
same tuned part
0 2 | two ranks share the base | done | run.json --output pair | $lora
0 4 | and with replicas | done | run.json --output replicas | $lora | sync.replica=2
0 1 | right gradients | gradients agree with central differences | run.json --check-gradients | $lora | lora.dropout=0.3
0 1 | with blocks computed again | done | run.json --output again | $lora | recompute=block
same tuned again
0 1 | a norm is trained, too | 1056 parameters | run.json --output norm | $lora | lora.train=["ln_f"]
0 1 | some layers alone | 384 parameters | run.json --output some | $lora | lora.targets=["c_fc", "1\\.attn\\.c_proj"]
0 1 | from an adapter | done | run.json --output further | init=tuned | lora={}
0 1 | and its base | done | run.json --output the_same | init.file=base | init.adapter=tuned | lora={}
same further the_same
0 1 | merged, all of it is trained | done | run.json --output whole | init=tuned
)table");
  // Files have adapters alone, and the base is as it was
  const SafetensorsFile tuned = read_safetensors("tuned/model.safetensors");
  CHECK(tuned.tensors.size() == 16);
  for (const auto& [name, tensor] : tuned.tensors) CHECK(contains(name, ".lora_"));
  CHECK(read_safetensors("norm/model.safetensors").tensors.size() == 18);
  CHECK(std::filesystem::file_size("tuned/checkpoints/step-6/rank-0.safetensors") <
        std::filesystem::file_size("base/checkpoints/step-6/rank-0.safetensors") / 2);
  // What is tested while it is trained is what a merged model gives
  CHECK(loss_of_test(program, "run.json --evaluate tuned/model.safetensors") ==
        doctest::Approx(program.summary("tuned")["test_loss"].get<double>()).epsilon(1e-6));
  CHECK(program.summary("tuned")["test_loss"].get<double>() <
        program.summary("base")["test_loss"].get<double>());
}

TEST_CASE("lora: other ranks go on with adapters, and replicas begin with them") {
  const Program program;
  write_lora_run(program);
  program.play(R"table(
0 1 | a base | done | run.json --output base | precision=fp64
let lora = lora.rank=2 | precision=fp64 | sync.algorithm=allreduce
0 1 | one rank | done | run.json --output one | init=base | $lora
copy one two
forget two 6
0 2 | two go on | from step 3 on 2 ranks in place of 1, batch_size 1 in place of 2 | run.json --output two --resume latest --elastic | init=base | $lora
copy two three
forget three 6
0 1 | and one again | done | run.json --output three --resume latest --elastic | init=base | $lora
0 2 | ranks begin from an adapter | done | run.json --output ranks | init=one | $lora | sync.algorithm=gossip | batch_size=4
0 4 | and so do replicas | 2 replicas of 2 ranks | run.json --output replicas | init=one | $lora | sync.algorithm=gossip | sync.replica=2
copy replicas resumed
forget resumed 6
0 4 | which go on | done | run.json --output resumed --resume latest | init=one | $lora | sync.algorithm=gossip | sync.replica=2
same replicas resumed
copy replicas fewer
forget fewer 6
0 2 | as fewer, too | done | run.json --output fewer --resume latest --elastic | init=one | $lora | sync.algorithm=gossip | sync.replica=2
)table");
  const auto model = [](const std::string& run) {
    return read_safetensors(run + "/model.safetensors");
  };
  CHECK(adapter_difference(model("one"), model("two")) < 1e-9);
  CHECK(adapter_difference(model("one"), model("three")) < 1e-9);
  CHECK(adapter_difference(model("ranks"), model("replicas")) < 1e-9);
  CHECK(adapter_difference(model("one"), model("ranks")) > 1e-6);
}

TEST_CASE("lora: what is refused is told by the key or the file") {
  const Program program;
  write_lora_run(program);
  program.play(R"table(
0 1 | a base | done | run.json --output base
0 1 | another | done | run.json --output other | seed=9
let lora = init=base | lora.rank=2
0 1 | adapters | done | run.json --output tuned | $lora
0 1 | of some layers | done | run.json --output some | $lora | lora.targets=["c_fc"]
2 1 | no base | init: is missing beside lora, whose base it is | run.json --dry-run | lora.rank=2
2 1 | no rank | lora\.rank: expected an integer 1 … 65536, found 0 | run.json --dry-run | $lora | lora.rank=0
2 1 | no such layer | lora\.targets: 'q_proj' is in the name of no layer; linear layers are transformer\.h\.0\.attn\.c_attn, …, transformer\.h\.1\.mlp\.c_proj | run.json --dry-run | $lora | lora.targets=["c_attn", "q_proj"]
2 1 | a norm | lora\.targets: 'ln_1' finds transformer\.h\.0\.ln_1, which is no linear layer | run.json --dry-run | $lora | lora.targets=["ln_1"]
2 1 | the head | lora\.targets: 'lm_head' finds the head, lm_head, .*name lm_head\.weight in lora\.train | run.json --dry-run | $lora | lora.targets=["lm_head"] | model.tie=false
2 1 | no such parameter | lora\.train: 'bn' is in the name of no parameter | run.json --dry-run | $lora | lora.train=["bn"]
2 1 | no expression | lora\.train: '\(' is no regular expression | run.json --dry-run | $lora | lora.train=["("]
2 1 | another key | lora\.alpah | run.json --dry-run | $lora | lora.alpah=3
2 1 | no linear layer | lora: adds to linear layers, and this model has none | run.json --dry-run | $lora | model={"type": "sequential", "layers": [{"type": "embedding", "num_embeddings": 256, "embedding_dim": 256}]}
2 1 | no blocks | lora\.targets: is needed, since this model has no blocks; its linear layers are 1 | run.json --dry-run | $lora | model={"type": "sequential", "layers": [{"type": "embedding", "num_embeddings": 256, "embedding_dim": 8}, {"type": "linear", "out_features": 256}]}
2 1 | left out | init\.skip: leaves out transformer\.wte\.weight, which is not trained | run.json --output skip | init.file=base | init.skip=["*wte*"] | lora.rank=2
2 1 | an adapter, no lora | init\.adapter: is for a run with lora | run.json --dry-run | init.file=base | init.adapter=tuned
2 1 | no adapter | init\.adapter: .*is no adapter | run.json --output none | init.file=base | init.adapter=other | lora.rank=2
2 1 | of another rank | lora\.rank: is 4, but .*tuned.* has 2 | run.json --output none | init=tuned | lora.rank=4
2 1 | of another factor | lora\.alpha: is 3.*, but .*tuned.* has 4 | run.json --output none | init=tuned | lora.alpha=3
2 1 | of other layers | tuned/model\.safetensors: has the tensor transformer\.h\.0\.attn\.c_attn\.lora_A\.weight, which this run does not train | run.json --output none | init=tuned | lora.targets=["c_fc"]
2 1 | of fewer layers | some/model\.safetensors: has no tensor transformer\.h\.0\.attn\.c_attn\.lora_A\.weight, which this run trains | run.json --output none | init=some | lora={}
2 1 | of another base | was trained on another base than | run.json --output none | init.file=other | init.adapter=tuned | lora.rank=2
2 1 | other targets at a resume | for lora.targets, the checkpoint was made with | run.json --output tuned --resume latest | $lora | lora.targets=["c_fc"]
copy other/model.safetensors base/model.safetensors
remove base/checkpoints
2 1 | the base is another now | was trained on another base than .*model\.safetensors is now: its digest is | run.json --evaluate tuned/model.safetensors
2 1 | at a resume | was trained on another base than | run.json --output tuned --resume latest | $lora | steps=8
remove base
2 1 | the base is gone | is an adapter of the base .*base/model\.safetensors, which is not here | run.json --evaluate tuned/model.safetensors
2 1 | to begin with | is .*tuned.*, an adapter of the base .*, which is not here | run.json --output none | init=tuned | lora.rank=2
)table");
}

TEST_CASE("lora: PEFT's folders are read, merged as PEFT does, and written") {
  const Program program;
  const std::string golden = program.root() + "/tests/golden/lora";
  std::filesystem::create_directories("golden");
  std::filesystem::create_directory_symlink(golden,
                                            "golden/lora");  // as adapter_config.json has it
  const SafetensorsFile merged = read_model(find_model("golden/lora/adapter").path),
                        wanted = read_safetensors(golden + "/merged/model.safetensors");
  CHECK(adapter_difference(merged, wanted) < 1e-6);
  write_lora_run(program);
  std::string tokens;
  for (int i = 0; i < 400; ++i) tokens += static_cast<char>(i * 7 % 11), tokens += '\0';
  std::filesystem::create_directories("tokens");
  program.write("tokens/train.bin", tokens);
  program.write("tokens/val.bin", tokens);
  program.play(R"table(
let tiny = data={"type": "tokens", "path": "tokens", "vocab": 11, "sequence_length": 8} | model={"type": "gpt2", "layers": 1, "heads": 2, "width": 8, "context": 8} | steps=1 | optimizer.lr=0
let peft = lora.targets=["c_attn", "mlp.c_proj"] | lora.train=["ln_f"]
0 1 | PEFT's adapter | done | run.json --output tuned | $tiny | $peft | init=golden/lora/adapter
0 1 | another base | done | run.json --output wide | $tiny | model.width=16
2 1 | of a base of another shape | golden/lora/adapter/adapter_model\.safetensors: tensor .*lora_A\.weight has shape 2×8, needed: 2×16 | run.json --output none | $tiny | $peft | init.file=wide | init.adapter=golden/lora/adapter | model.width=16
)table");
  // A rate of 0 changes nothing, so that what comes back is what went in
  export_to_hugging_face("tuned", "adapter");
  export_to_hugging_face("tuned", "whole", true);
  const SafetensorsFile adapter = read_safetensors("adapter/adapter_model.safetensors"),
                        theirs = read_safetensors(golden + "/adapter/adapter_model.safetensors");
  CHECK(adapter_difference(adapter, theirs) == 0.0);
  CHECK(adapter_difference(read_safetensors("whole/model.safetensors"), wanted) < 1e-6);
  CHECK(adapter_difference(read_model(find_model("adapter").path), wanted) < 1e-6);
  const auto config = nlohmann::json::parse(program.read("adapter/adapter_config.json"));
  CHECK(config["r"] == 2);
  CHECK(config["lora_alpha"] == 6.0);
  CHECK(config["fan_in_fan_out"] == true);
  CHECK(config["modules_to_save"] == nlohmann::json{"transformer.ln_f"});
  CHECK(config["target_modules"] ==
        nlohmann::json{"transformer.h.0.attn.c_attn", "transformer.h.0.mlp.c_proj"});
  CHECK(std::filesystem::is_regular_file(config["base_model_name_or_path"].get<std::string>() +
                                         "/config.json"));
}

TEST_CASE("lora: PEFT's form of a table that is the head, and of modules trained in part") {
  const Program program;
  write_lora_run(program);
  program.play(R"table(
0 1 | a base | done | run.json --output base
let lora = init=base | lora.rank=2 | steps=2
0 1 | its table, too | done | run.json --output tabled | $lora | lora.train=["wte"]
0 1 | biases of norms | done | run.json --output norms | $lora | lora.train=["ln_1.bias"]
0 1 | biases of what has adapters | done | run.json --output biases | $lora | lora.train=["c_attn.bias"]
)table");
  export_to_hugging_face("tabled", "peft");
  const std::string file = "peft/adapter_model.safetensors", front = "base_model.model.",
                    head = front + "lm_head.weight", table = front + "transformer.wte.weight";
  SafetensorsFile adapter = read_safetensors(file);
  CHECK(adapter.tensors.at(head).bytes == adapter.tensors.at(table).bytes);
  CHECK(nlohmann::json::parse(program.read("peft/adapter_config.json"))["modules_to_save"] ==
        nlohmann::json{"lm_head", "transformer.wte"});
  CHECK(adapter_difference(read_model(find_model("peft").path),
                           read_model(find_model("tabled").path)) == 0.0);
  program.check("goes on", 1, 0, "done", "run.json --output further",
                {R"(init={"file":"base","adapter":"peft"})", R"(lora={"train":["wte"]})"});
  // As PEFT leaves it: the head keeps the base's table
  SafetensorsFile theirs;
  theirs.tensors = adapter.tensors;
  theirs.tensors.erase(head);
  write_safetensors(file, theirs);
  const std::string unties = "but the base's head is its table of embeddings, transformer.wte";
  CHECK(test::fails(ExitCode::kUsage, "has a table of its own, " + unties,
                    [] { read_model(find_model("peft").path); }));
  theirs.tensors[head] = theirs.tensors.at(table);
  theirs.tensors[head].bytes[0] ^= std::byte{1};
  write_safetensors(file, theirs);
  CHECK(test::fails(ExitCode::kUsage, "has a head of its own, " + unties,
                    [] { read_model(find_model("peft").path); }));
  theirs.tensors[head] =
      theirs.tensors[table] = {DType::kFloat32, {1, 2}, std::vector<std::byte>(8)};
  write_safetensors(file, theirs);
  CHECK(test::fails(ExitCode::kUsage, "transformer.wte.weight has shape 1×2, and in the base, ",
                    [] { read_model(find_model("peft").path); }));

  export_to_hugging_face("norms", "whole-norms");
  const SafetensorsFile norms = read_safetensors("whole-norms/adapter_model.safetensors");
  CHECK(norms.tensors.at(front + "transformer.h.0.ln_1.weight").bytes ==
        read_safetensors("base/model.safetensors").tensors.at("transformer.h.0.ln_1.weight").bytes);
  CHECK(test::fails(ExitCode::kUsage,
                    "trains a part of transformer.h.0.attn.c_attn beside its adapter",
                    [] { export_to_hugging_face("biases", "none"); }));
}

TEST_CASE("lora: an adapter_config.json of what is not computed is refused by key") {
  const Program program;
  const std::string golden = program.root() + "/tests/golden/lora";
  std::filesystem::create_directories("adapter");
  std::filesystem::copy_file(golden + "/adapter/adapter_model.safetensors",
                             "adapter/adapter_model.safetensors");
  const auto refused = [&](const char* key, const nlohmann::json& value) {
    auto config = nlohmann::json::parse(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 6})");
    config["base_model_name_or_path"] = golden + "/base";
    config[key] = value;
    program.write("adapter/adapter_config.json", config.dump());
    return test::error_of(ExitCode::kUsage,
                          [] { read_model("adapter/adapter_model.safetensors"); });
  };
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, nlohmann::json>>{{"peft_type", "IA3"},
                                                           {"use_dora", true},
                                                           {"bias", "all"},
                                                           {"rank_pattern", {{"c_attn", 4}}},
                                                           {"init_lora_weights", "pissa"},
                                                           {"r", 0},
                                                           {"lora_alpha", "6"}})
    CHECK(contains(refused(key, value), std::string("adapter_config.json: ") + key + ": is "));
  CHECK(contains(refused("base_model_name_or_path", "nowhere"),
                 "is an adapter of the base nowhere, which is not here"));
  CHECK(contains(refused("base_model_name_or_path", "adapter"), "is an adapter of an adapter"));
  CHECK(contains(refused("base_model_name_or_path", nullptr), "does not name its base"));
}

}  // namespace starling
