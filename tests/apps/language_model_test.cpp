// The task language_model as a user meets it: one loss however its tokens are cut, and what tests
// measure.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "apps/inference/hugging_face.h"
#include "apps/inference/inference.h"
#include "apps/inference/model_source.h"
#include "apps/text/tokenizer.h"
#include "apps/training/config/plugins.h"
#include "layers/functions.h"
#include "tests/apps/program.h"
#include "tests/apps/trainer_run.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/errors.h"

namespace starling {
namespace {

using test::Program;

constexpr std::int64_t kWindow = 6, kSymbols = 11, kTexts = 50, kTestTexts = 7;
constexpr double kTestBytes = 100.0;

/// Tokens that follow each other by a rule with exceptions; of some samples few targets count, of
/// some none.
class Letters final : public Dataset {
 public:
  explicit Letters(ConfigSection& section)
      : ignores_(section.boolean("ignores", true, "")),
        says_so_(section.boolean("all_count", false, "")) {}
  DatasetInfo info() const override {
    DatasetInfo info{.tensors = {{"tokens", Shape{kWindow}, DType::kInt32, kSymbols},
                                 {"targets", Shape{kWindow}, DType::kInt32, kSymbols}},
                     .task = "language_model",
                     .train_samples = kTexts,
                     .test_samples = kTestTexts};
    info.all_count = says_so_;
    info.test_bytes = kTestBytes;
    return info;
  }
  void open() override {}
  void read(Split split, std::int64_t index, std::span<std::byte* const> out) const override {
    auto *tokens = reinterpret_cast<std::int32_t*>(out[0]),
         *targets = reinterpret_cast<std::int32_t*>(out[1]);
    const auto draw = [&](std::int64_t i) {
      const std::int64_t of = index * 8 + i + (split == Split::kTest ? 100000 : 0);
      return static_cast<std::int32_t>((static_cast<std::uint32_t>(of) * 2654435761u) >> 16);
    };
    for (std::int64_t i = 0; i < kWindow; ++i) {
      tokens[i] = draw(i) % kSymbols;
      const bool counts = !ignores_ || (index % 5 != 3 && draw(i + 3) % 7 > index % 6);
      targets[i] = counts ? (2 * tokens[i] + 1) % kSymbols : functions::kIgnoreIndex;
    }
  }

 private:
  bool ignores_, says_so_;
};

void register_letters() {
  register_builtins();
  static const bool once = [] {
    datasets().add("test_letters", [](ConfigSection& section, std::uint64_t) {
      return std::make_unique<Letters>(section);
    });
    return true;
  }();
  static_cast<void>(once);
}

/// A table of tokens, attention, and a linear layer, in fp64.
std::string text_config(const std::string& keys, const std::string& data = "") {
  register_letters();
  return R"({"data": {"type": "test_letters", "shuffle": false)" + data +
         R"(}, "model": {"type": "sequential", "layers": [
           {"type": "embedding", "num_embeddings": 11, "embedding_dim": 8},
           {"type": "multi_head_attention", "num_heads": 2, "causal": true},
           {"type": "linear", "out_features": 11}]},
         "optimizer": {"type": "sgd", "lr": 0.5}, "precision": "fp64", "steps": 5, "log_every": 1,
         "threads": 1, "tensorboard": false)" +
         keys + "}";
}

std::vector<double> losses_of(const Program& program, const std::string& run) {
  std::vector<double> losses;
  for (const nlohmann::json& line : program.metrics(run, "loss")) losses.push_back(line["loss"]);
  return losses;
}

/// Two runs whose losses, models and tests differ by rounding alone.
void check_equal_runs(const Program& program, const std::string& a, const std::string& b) {
  const std::vector<double> of_a = losses_of(program, a), of_b = losses_of(program, b);
  REQUIRE(of_a.size() == of_b.size());
  for (std::size_t i = 0; i < of_a.size(); ++i) CHECK(std::abs(of_a[i] - of_b[i]) < 1e-12);
  CHECK(test::farthest_in(read_safetensors(a + "/model.safetensors"),
                          read_safetensors(b + "/model.safetensors")) < 1e-12);
  for (const char* key : {"test_loss", "test_perplexity", "test_bits_per_byte"})
    CHECK(program.summary(a)[key].get<double>() ==
          doctest::Approx(program.summary(b)[key].get<double>()).epsilon(1e-12));
  CHECK(program.summary(a)["test_token_accuracy"] == program.summary(b)["test_token_accuracy"]);
}

TEST_CASE("language_model: an update's loss does not depend on how its tokens are cut") {
  const Program program;
  program.write("run.json", text_config(R"(, "sync": {"algorithm": "allreduce"})"));
  const auto train = [&](const std::string& name, int ranks, int batch, int accumulate,
                         const std::vector<std::string>& more = {}) {
    std::vector<std::string> settings{"batch_size=" + std::to_string(batch),
                                      "accumulate=" + std::to_string(accumulate)};
    settings.insert(settings.end(), more.begin(), more.end());
    program.check(name, ranks, 0, "", "run.json --output " + name, settings);
  };
  train("whole", 1, 8, 1);
  train("cut", 1, 2, 4);
  train("ranks", 2, 2, 2);
  check_equal_runs(program, "whole", "cut");
  check_equal_runs(program, "whole", "ranks");
  // A head that keeps no logits
  const std::string gpt2 =
      R"(model={"type":"gpt2","layers":1,"heads":2,"width":8,"context":6,"tie":false})";
  train("gpt2", 1, 8, 1, {gpt2});
  train("cut_gpt2", 1, 2, 4, {gpt2});
  train("ranks_gpt2", 2, 2, 2, {gpt2});
  check_equal_runs(program, "gpt2", "cut_gpt2");
  check_equal_runs(program, "gpt2", "ranks_gpt2");
  // Where each rank has a gradient of its own, its own update is what counts
  train("gossip", 2, 4, 1, {"sync.algorithm=gossip"});
  train("cut_gossip", 2, 1, 4, {"sync.algorithm=gossip"});
  check_equal_runs(program, "gossip", "cut_gossip");
  // Some steps of the one and then of the other
  train("switched", 2, 4, 1, {R"(sync.switch=[{"step":2,"algorithm":"gossip"}])"});
  train("cut_switched", 2, 1, 4, {R"(sync.switch=[{"step":2,"algorithm":"gossip"}])"});
  check_equal_runs(program, "switched", "cut_switched");
  CHECK(losses_of(program, "switched")[1] == losses_of(program, "ranks")[1]);
  // Fewer ranks share what others left of an epoch, in updates as large
  train("straight", 2, 4, 1);
  train("left", 2, 4, 1, {"steps=2"});
  program.check("one rank goes on", 1, 0, "on 1 rank in place of 2, batch_size 8 in place of 4",
                "run.json --output left --resume latest --elastic",
                {"batch_size=4", "accumulate=1"});
  check_equal_runs(program, "straight", "left");
  // What data says of itself spares the count, and changes no bit
  train("counted", 2, 4, 1, {"data.ignores=false"});
  train("not_counted", 2, 4, 1, {"data.ignores=false", "data.all_count=true"});
  check_equal_runs(program, "counted", "not_counted");
}

void check_tests(Transport& transport) {
  test::TrainerRun run(nlohmann::json::parse(text_config(R"(, "batch_size": 4)")), transport);
  run.config.task->know_sizes(run.config.data.info);
  run.steps(2);
  const EvaluationResult result = run.test();
  // The same by hand
  double loss = 0.0, right = 0.0, count = 0.0;
  for (std::int64_t sample = 0; sample < kTestTexts; ++sample) {
    const Tensor tokens(*run.backend, Shape{1, kWindow}, DType::kInt32),
        targets(*run.backend, Shape{1, kWindow}, DType::kInt32);
    std::byte* const out[] = {tokens.raw(), targets.raw()};
    run.config.data.dataset->read(Dataset::Split::kTest, sample, out);
    Pass pass{*run.backend};
    const Tensor logits = run.config.model->forward(Variable(tokens), pass).value();
    for (std::int64_t i = 0; i < kWindow; ++i) {
      const std::int32_t target = targets.data<std::int32_t>()[i];
      if (target == functions::kIgnoreIndex) continue;
      const double* row = logits.data<double>() + i * kSymbols;
      double sum = 0.0;
      for (std::int64_t c = 0; c < kSymbols; ++c) sum += std::exp(row[c]);
      loss += std::log(sum) - row[target];
      right += std::max_element(row, row + kSymbols) - row == target ? 1.0 : 0.0;
      count += 1.0;
    }
  }
  REQUIRE(count > 0.0);
  CHECK(count < kTestTexts * kWindow);
  CHECK(test::value_of(result, "loss") == doctest::Approx(loss / count).epsilon(1e-12));
  CHECK(test::value_of(result, "perplexity") ==
        doctest::Approx(std::exp(loss / count)).epsilon(1e-12));
  CHECK(test::value_of(result, "bits_per_byte") ==
        doctest::Approx(loss / std::numbers::ln2 / kTestBytes).epsilon(1e-12));
  CHECK(test::value_of(result, "token_accuracy") == doctest::Approx(right / count).epsilon(1e-12));
  CHECK(decisive(result.values).name == "loss");
}

TEST_CASE("language_model: what tests measure") {
  FakeWorld(1).run([&](Transport& transport) { check_tests(transport); });
}

TEST_CASE("language_model: what does not fit is refused by name") {
  const Program program;
  program.write("run.json", text_config(R"(, "batch_size": 4)"));
  program.play(R"table(
0 1 | 6 for each of 344 parameters of products, 12 for each of 8 numbers of 3.5 tokens looked at | ^FLOP a token: 2400, of products forward and backward$ | run.json --dry-run
0 1 | which no recomputation adds to | ^FLOP a token: 2400, | run.json --dry-run | model.layers=[{"type":"embedding","num_embeddings":11,"embedding_dim":8},{"type":"checkpoint","layers":[{"type":"multi_head_attention","num_heads":2,"causal":true},{"type":"linear","out_features":11}]}]
0 1 | of the peak | tokens/s  MFU [0-9.]+% | run.json --output used | steps=1
2 1 | weights of classes | loss\.class_weights: is not for targets that may count for nothing | run.json --dry-run | loss={"class_weights":[1,1,1,1,1,1,1,1,1,1,1]}
2 1 | a loss of numbers | loss\.type: is mse, which leaves no target out.*-100.*cross_entropy, focal | run.json --dry-run | loss.type=mse
0 1 | one metric | test perplexity [0-9.]+, consensus | run.json --output one | task.metrics=["perplexity"]
0 1 | smoothing | loss 2 | run.json --output smooth | loss={"label_smoothing":0.1} | steps=1
2 1 | fewer scores than tokens | the model has scores for 7 tokens, the data has 11; allowed: as many or more | run.json --dry-run | model.layers=[{"type":"embedding","num_embeddings":11,"embedding_dim":8},{"type":"linear","out_features":7}]
2 1 | scores of whole samples | a score for each token of the vocabulary is needed at each of 6 places: 6×11 | run.json --dry-run | model.layers=[{"type":"flatten"},{"type":"embedding","num_embeddings":11,"embedding_dim":8},{"type":"flatten"},{"type":"linear","out_features":11}]
2 1 | views of images | evaluate\.tta: is mirror, which is for images | run.json --dry-run | evaluate.tta=mirror
2 1 | skewed labels | partition\.type: is dirichlet, but the samples of test_letters have no class | run.json --dry-run | data.partition={"type":"dirichlet"}
)table");
}

/// A tiny GPT-2 of bytes.
void write_gpt2(const Program& program) {
  std::string words;
  for (int i = 0; i < 120; ++i) words += "fox " + std::to_string(i * i % 97) + " and dog\n";
  program.write("words.txt", words);
  program.write("run.json", R"({"data": {"type": "text", "path": "words.txt",
      "sequence_length": 16},
    "model": {"type": "gpt2", "layers": 1, "heads": 2, "width": 16, "context": 16},
    "optimizer": {"type": "adamw", "lr": 0.01}, "batch_size": 2, "steps": 8, "log_every": 1,
    "threads": 1, "tensorboard": false, "evaluate": {"every_steps": 4}})");
}

TEST_CASE("language_model: what training has besides goes with it") {
  const Program program;
  write_gpt2(program);
  nlohmann::json tokenizer = nlohmann::json::parse(Tokenizer::bytes()->huggingface());
  program.write("bytes.json", tokenizer.dump());
  std::swap(tokenizer["model"]["vocab"]["a"], tokenizer["model"]["vocab"]["b"]);
  program.write("others.json", tokenizer.dump());
  program.play(R"table(
0 1 | a plan | FLOP a token: 4\.464e\+04, of products forward and backward | run.json --dry-run
0 1 | a rate | tokens a second expected, a rank with 1 thread: about [0-9]+, at most [0-9]+ by arithmetic | run.json --dry-run
0 1 | as it is | tokens/s  MFU [0-9.]+%  | run.json --output straight
0 1 | metrics that know of no head | done | run.json --output scores | task.metrics=["classification","perplexity","token_accuracy"]
0 2 | in bf16 where it is fast, clipped, with averages | test ema_loss | run.json --output many | precision=auto | accumulate=2 | clip_norm=1 | ema={"decay":0.9} | optimizer.groups=[{"match":"wpe","lr_scale":0.5}]
0 2 | whose ranks are compared | done | run.json --output verified | sync={"algorithm":"allreduce","verify":2}
0 2 | int8 gossip | done | run.json --output int8 | sync.exchange=int8
0 2 | outer steps | done | run.json --output diloco | sync.algorithm={"type":"diloco","period":2}
0 2 | then with other ranks | done | run.json --output other | checkpoint.every_steps=4 | steps=4
0 1 | go on | from step 4 on 1 rank in place of 2 | run.json --output other --resume latest --elastic
0 1 | muon | done | run.json --output muon | optimizer={"type":"muon","lr":0.01}
0 1 | whose tables are a group | ^  tables and head, not orthogonal: 2 parameters: transformer\.wte\.weight, transformer\.wpe\.weight$ | run.json --dry-run | optimizer={"type":"muon","lr":0.01}
0 1 | groups by name | ^  ln_\[12\]: [48] parameters: transformer\.h\.\*\.ln_1\.weight.*, transformer\.h\.\*\.ln_2\.bias | run.json --dry-run | optimizer.groups=[{"match":"ln_[12]","lr_scale":0.5}]
0 1 | and the rest | ^  in no group: [0-9]+ parameters: transformer\.wte\.weight, | run.json --dry-run | optimizer.groups=[{"match":"ln_[12]","lr_scale":0.5}]
0 1 | which leaves tables alone | done | run.json --output named | optimizer={"type":"muon","lr":0.01,"groups":[{"match":"^transformer.w[tp]e","orthogonal":false}]}
same muon named
0 1 | an early end by the loss | done | run.json --output early | early_stopping={"patience":2}
0 1 | or by another number | done | run.json --output bits | early_stopping={"metric":"test_bits_per_byte","min_delta":9} | evaluate.every_steps=2
2 1 | that a test does not have | early_stopping\.metric: .*allowed: test_loss, test_perplexity, test_token_accuracy$ | run.json --dry-run | data={"type":"tokens","path":".","vocab":256,"sequence_length":16} | early_stopping={"metric":"test_bits_per_byte"}
2 1 | nor knows | run\.json: task\.metrics: has bits_per_byte, but nobody knows .*data\.tokenizer | run.json --dry-run | data={"type":"tokens","path":".","vocab":256,"sequence_length":16} | task.metrics=["bits_per_byte"]
0 1 | the best by it too | done | run.json --output best | checkpoint={"best":true}
0 1 | a rate | ^suggested|^the loss does not fall | run.json --lr-find rates.csv
0 1 | right gradients | gradients agree with central differences | run.json --check-gradients
0 1 | measured anew | "test_bits_per_byte" | --evaluate straight
0 1 | from a model of the same tokens | done | run.json --output same | init=straight | data.tokenizer=bytes.json | steps=1
2 1 | from one of others | \[init\] straight/model\.safetensors: has 256 tokens whose numbers mean other text .*"skip": \["transformer\.wte\.weight"\] | run.json --output others | init=straight | data.tokenizer=others.json
0 1 | but for its table | done | run.json --output others | init={"file":"straight","skip":["transformer.wte.weight"]} | data.tokenizer=others.json | steps=1
2 1 | longer than the context | run\.json: model\.context: is 16, but a sample has 17 tokens \(data\.sequence_length\) | run.json --dry-run | data.sequence_length=17
2 1 | samples of the wrong kind | run\.json: task\.type: classification needs samples with a tensor 'label' | run.json --dry-run | task.type=classification
2 1 | fewer tokens than the data has | run\.json: model\.vocab: the model has scores for 100 tokens, the data has 256 | run.json --dry-run | model.vocab=100
)table");
  CHECK(program.summary("best")["best"].contains("test_loss"));
  CHECK(program.summary("bits")["early_stopping"]["metric"] == "test_bits_per_byte");
  const auto scores = program.summary("scores");
  CHECK(scores["test_accuracy"] == scores["test_token_accuracy"]);
  CHECK(std::exp(scores["test_loss"].get<double>()) ==
        doctest::Approx(scores["test_perplexity"].get<double>()));
  const std::string line = program.read("straight/metrics.jsonl");
  for (const char* key : {"tokens_per_second", "test_perplexity"})
    CHECK(line.find(key) != std::string::npos);
  const auto summary = program.summary("straight");
  CHECK(summary["tokens_per_second"].get<double>() ==
        doctest::Approx(16 * summary["samples_per_second"].get<double>()));
  CHECK(summary.contains("model_flop_utilization"));  // null on a machine that others keep busy
  CHECK(summary["peak"]["of"].get<std::string>().find("measured here") != std::string::npos);
}

TEST_CASE("language_model: programs have its file go on with a text") {
  const Program program;
  write_gpt2(program);
  program.check("a run", 1, 0, "done", "run.json --output run");
  const auto model = load_model("run", {.threads = 1});
  CHECK(model->is_language_model());
  std::string pieces;
  const Generated made = model->generate("fox 1", {.tokens = 40, .seed = 5},
                                         [&](std::string_view piece) { pieces += piece; });
  CHECK(made.tokens.size() == 40);
  CHECK(made.text == pieces);
  CHECK(!pieces.empty());
  const std::vector<std::int32_t> prompt{'f', 'o', 'x', ' ', '1'};
  CHECK(model->generate(prompt, {.tokens = 40, .seed = 5}).tokens == made.tokens);
  const std::vector<std::int32_t> beyond{1, 256};
  CHECK(test::fails(ExitCode::kUsage, "prompt: is empty", [&] { model->generate(""); }));
  CHECK(test::fails(ExitCode::kUsage, "prompt: has token 256; allowed: 0 to 255",
                    [&] { model->generate(beyond); }));
  CHECK(test::fails(ExitCode::kUsage, "call generate()",
                    [&] { model->logits(std::vector<float>(16)); }));
  // Without its tokenizer a file has tokens alone
  SafetensorsFile file = read_safetensors("run/model.safetensors");
  for (const char* key : {"starling.tokenizer", "starling.checksums"}) file.metadata.erase(key);
  write_safetensors("bare.safetensors", file);
  const auto bare = load_model("bare.safetensors", {.threads = 1});
  const Generated tokens = bare->generate(prompt, {.tokens = 40, .seed = 5});
  CHECK(tokens.tokens == made.tokens);
  CHECK(tokens.text.empty());
  CHECK(test::fails(ExitCode::kUsage, "no metadata starling.tokenizer",
                    [&] { bare->generate("fox"); }));
}

TEST_CASE("language_model: a model of one's own writes, is tested, exported and gone on with") {
  const Program program;
  register_letters();
  write_gpt2(program);
  const std::string own =
      R"(model={"type":"sequential","layers":[{"type":"embedding","num_embeddings":256,"embedding_dim":8},{"type":"multi_head_attention","num_heads":2,"causal":true},{"type":"linear","out_features":256}]})";
  program.check("a run", 1, 0, "^sample: fox ", "run.json --output own",
                {own, "evaluate.prompt=fox ", "evaluate.prompt_tokens=20"});
  std::vector<std::string> samples;
  for (const nlohmann::json& line : program.metrics("own", "sample"))
    samples.push_back(line["sample"]);
  CHECK(samples.size() == 2);  // a test after 4 steps, and one at the end
  const auto model = load_model("own", {.threads = 1});
  CHECK(model->is_language_model());
  const Generated made = model->generate("fox ", {.tokens = 20});
  CHECK(samples.back() == "fox " + made.text);
  program.check("measured anew", 1, 0, "\"test_bits_per_byte\"", "--evaluate own");
  export_to_hugging_face("own", "exported");
  const auto config = nlohmann::json::parse(program.read("exported/config.json"));
  CHECK(config["model_type"] == "sequential");
  CHECK(config["layers"].size() == 3);
  CHECK(nlohmann::json::parse(program.read("exported/tokenizer.json"))["model"]["type"] == "BPE");
  CHECK(load_model("exported", {.threads = 1})->generate("fox ", {.tokens = 20}).tokens ==
        made.tokens);
  program.check("begins another run", 1, 0, "done", "run.json --output more",
                {own, "init=exported", "optimizer.lr=0", "steps=1"});
  program.check(
      "of the same model alone", 1, 2,
      R"(exported/config\.json: layers: is .*, but model\.layers is )", "run.json --output other",
      {R"(model={"type":"sequential","layers":[{"type":"embedding","num_embeddings":256,"embedding_dim":8},{"type":"linear","out_features":256}]})",
       "init=exported"});
  for (const std::string option : {"--output letters", "--dry-run"})
    program.check("a text for numbers", 1, 2,
                  R"(evaluate\.prompt: is a text, and nobody knows the tokens of this data)",
                  "run.json " + option,
                  {R"(data={"type":"test_letters"})", "evaluate.prompt=fox",
                   R"(model={"type":"gpt2","layers":1,"heads":2,"width":8,"context":6})"});
}

TEST_CASE("language_model: a folder of Hugging Face's in place of a run") {
  const Program program;
  write_gpt2(program);
  program.check("a run", 1, 0, "done", "run.json --output run");
  export_to_hugging_face("run", "folder");
  // As transformers saves it: no metadata of ours, names without their front, a buffer
  SafetensorsFile file = read_safetensors("folder/model.safetensors"), bare;
  for (auto& [name, tensor] : file.tensors)
    bare.tensors[name.substr(std::string("transformer.").size())] = tensor;
  bare.tensors["h.0.attn.bias"] = {DType::kUInt8, {1, 1, 16, 16}, std::vector<std::byte>(256)};
  bare.metadata["format"] = "pt";
  write_safetensors("folder/model.safetensors", bare);
  const Generated made = load_model("run", {.threads = 1})->generate("fox", {.tokens = 30});
  CHECK(load_model("folder", {.threads = 1})->generate("fox", {.tokens = 30}).tokens ==
        made.tokens);
  const auto tested = [&](const std::string& command) {
    return test::last_line(program.check(command, 1, 0, "test_loss", command))["test_loss"]
        .get<double>();
  };
  CHECK(tested("run.json --evaluate folder") == tested("run.json --evaluate run"));
  auto data = nlohmann::json::parse(program.read("run.json"));
  data.erase("model");
  program.write("data.json", data.dump());
  CHECK(tested("data.json --evaluate folder") == tested("run.json --evaluate run"));
  CHECK(tested("--evaluate folder --test words.txt") > 0.0);
  program.play(R"table(
2 1 | no data | --evaluate folder/model.safetensors: it names no data; give a text to test, --test PATH | --evaluate folder
2 1 | another model | folder/config\.json: n_head: is 2, but model\.heads is 4 | run.json --evaluate folder | model.heads=4
)table");

  // What it has beside goes through a run
  const std::string tokenizer = program.read("folder/tokenizer.json");
  program.write("folder/generation_config.json", R"({"eos_token_id": [10, 11], "top_k": 5})");
  program.write("folder/chat_template.jinja", "{{ messages }}");
  program.write("folder/special_tokens_map.json", R"({"eos_token": "\n"})");
  program.play(R"table(
0 1 | from it | done | run.json --output tuned | init=folder | steps=4 | data.tokenizer=folder/tokenizer.json
0 1 | goes on | continuing after step 4 | run.json --output tuned --resume latest | init=folder | data.tokenizer=folder/tokenizer.json
)table");
  export_to_hugging_face("tuned", "again");
  for (const char* name : {"generation_config.json", "chat_template.jinja",
                           "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"})
    CHECK(program.read(std::string("again/") + name) ==
          program.read(std::string("folder/") + name));
  const Generated ended =
      load_model("tuned", {.threads = 1})->generate("fox", {.tokens = 400, .temperature = 3.0});
  CHECK((ended.tokens.back() == 10 || ended.tokens.back() == 11));
  CHECK(ended.tokens.size() < 400);
  CHECK(ended.text.find('\n') == std::string::npos);
  // Other tokens have no use for it
  program.check("another table", 1, 0, "done", "run.json --output others",
                {R"(init={"file":"folder","skip":["transformer.wte.weight"]})", "steps=1"});
  CHECK(read_safetensors("others/model.safetensors").metadata.count("starling.companions") == 0);

  // Tokens of another tokenizer, and of one that nobody has
  auto odd = nlohmann::json::parse(tokenizer);
  std::swap(odd["model"]["vocab"]["a"], odd["model"]["vocab"]["b"]);
  program.play("copy folder odd\ncopy folder bare\nremove bare/tokenizer.json");
  program.write("odd/tokenizer.json", odd.dump());
  program.play(R"table(
2 1 | a test cut by another | data\.tokenizer: has 256 tokens that are not those | run.json --evaluate odd
0 1 | a model without one | ^warning: init: bare/model\.safetensors has no tokenizer beside it | run.json --output unsure | init=bare | steps=1
2 1 | that says itself what it is | data\.tokenizer: is not given, and bare has no tokenizer\.json to take | run.json --dry-run | model={"type":"pretrained","path":"bare"}
)table");
  program.write("odd/tokenizer.json", tokenizer);
  program.write("odd/tokenizer_config.json", R"({"additional_special_tokens": ["<new>"]})");
  CHECK(test::fails(
      ExitCode::kUsage,
      "odd/tokenizer_config.json: has the token \"<new>\", which odd/tokenizer.json lacks",
      [] { load_model("odd", {.threads = 1}); }));

  // As a model that says itself what it is
  program.play(R"table(
0 1 | as it is | done | run.json --output born | model={"type":"pretrained","path":"folder"} | steps=1 | optimizer.lr=0
0 1 | of fewer tokens | done | run.json --output short | model={"type":"pretrained","path":"folder","context":8,"dropout":0.1} | data.sequence_length=8 | steps=1
2 1 | of more | model\.context: is 99, but the model has learned 16 positions \(folder/config\.json: n_positions\) | run.json --dry-run | model={"type":"pretrained","path":"folder","context":99}
2 1 | of other sizes | model\.layers: is given beside path, whose folder/config\.json says what the model is; leave it out | run.json --dry-run | model={"type":"pretrained","path":"folder","layers":3}
2 1 | from nowhere | model\.path: is missing; needed: a folder | run.json --dry-run | model={"type":"pretrained"}
2 1 | with other weights | init: names another file than model\.path | run.json --dry-run | model={"type":"pretrained","path":"folder"} | init=run
2 1 | of a run | model\.path: is run, which has no config\.json of Hugging Face's form | run.json --dry-run | model={"type":"pretrained","path":"run"}
)table");
  const auto born = nlohmann::json::parse(program.read("born/config.json"));
  CHECK(born["model"]["type"] == "gpt2");
  CHECK(born["data"]["tokenizer"] == "folder/tokenizer.json");
  export_to_hugging_face("born", "parts", false, 1000);
  const SafetensorsFile parts = read_model(find_model("parts").path);
  CHECK(parts.tensors.size() == file.tensors.size());
  for (const auto& [name, tensor] : file.tensors)
    CHECK(parts.tensors.at(name).bytes == tensor.bytes);
  const auto text_of = [](const char* model) {
    return load_model(model, {.threads = 1})->generate("fox", {.tokens = 30}).text;
  };
  CHECK(text_of("parts") == text_of("folder"));
  // In a type of fewer bits it goes back as it came
  auto config = nlohmann::json::parse(program.read("folder/config.json"));
  config["dtype"] = "bfloat16";
  program.write("folder/config.json", config.dump());
  SafetensorsFile low;
  for (const auto& [name, tensor] : file.tensors) {
    FileTensor& own = low.tensors[name] = {DType::kBFloat16, tensor.shape, {}};
    for (std::size_t at = 0; at < tensor.bytes.size(); at += 4)
      own.bytes.insert(own.bytes.end(), {tensor.bytes[at + 2], tensor.bytes[at + 3]});
  }
  write_safetensors("folder/model.safetensors", low);
  program.check("of bf16", 1, 0, "done", "run.json --output born16",
                {R"(model={"type":"pretrained","path":"folder"})", "steps=1", "optimizer.lr=0"});
  export_to_hugging_face("born16", "back");
  const SafetensorsFile back = read_safetensors("back/model.safetensors");
  for (const auto& [name, tensor] : low.tensors) {
    CHECK(back.tensors.at(name).dtype == DType::kBFloat16);
    CHECK(back.tensors.at(name).bytes == tensor.bytes);
  }
  auto larger = nlohmann::json::parse(tokenizer);
  larger["added_tokens"].push_back({{"id", 256}, {"content", "<more>"}, {"special", true}});
  program.write("folder/tokenizer.json", larger.dump());
  program.check("more tokens than rows", 1, 2,
                R"(folder/tokenizer\.json: vocab: has 257 tokens, and the model's table 256 rows)",
                "run.json --dry-run", {R"(model={"type":"pretrained","path":"folder"})"});
}

}  // namespace
}  // namespace starling
