// Windows of texts and of token files: what samples hold, and what is refused.
#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "apps/data/dataset.h"
#include "apps/data/tokens/prepare_tokens.h"
#include "apps/data/tokens/token_files.h"
#include "apps/inference/description.h"
#include "apps/text/tokenizer.h"
#include "core/config.h"
#include "tests/apps/data_test_support.h"
#include "tests/apps/token_test_support.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace starling::test {
namespace {

using Files = TextFiles;
using Numbers = std::vector<std::int32_t>;
using nlohmann::json;

/// A sample's tokens, and its targets behind them.
Numbers sample(const Dataset& dataset, Dataset::Split split, std::int64_t index) {
  const auto length = static_cast<std::size_t>(dataset.info().tensors[0].shape[0]);
  Numbers numbers(2 * length);
  std::byte* out[] = {reinterpret_cast<std::byte*>(numbers.data()),
                      reinterpret_cast<std::byte*>(numbers.data() + length)};
  dataset.read(split, index, out);
  return numbers;
}

TEST_CASE("apps/tokens: windows of bytes go over the borders of files") {
  const Files files;
  files.text("b/second.txt", "fgh");
  files.text("b/first.txt", "cde");
  files.text("b/deeper/x.txt", "");
  files.text("a.txt", "ab");
  const json keys{{"path", {files.at("a.txt"), files.at("b")}},
                  {"sequence_length", 2},
                  {"val_fraction", 0.375}};
  CHECK(contains(opened("text", keys)->info().contents, "; 1 empty text is left out"));
  std::filesystem::remove_all(files.at("b/deeper"));
  files.text("b/.hidden", "no");
  const auto dataset = opened("text", keys);
  const DatasetInfo info = dataset->info();
  CHECK(info.task == "language_model");
  CHECK(info.tensors[0] == TensorInfo{"tokens", Shape{2}, DType::kInt32, 256});
  CHECK(info.tensors[1] == TensorInfo{"targets", Shape{2}, DType::kInt32, 256});
  CHECK(info.train_samples == 2);
  CHECK(info.test_samples == 1);
  CHECK(info.test_bytes == 2.0);
  CHECK(sample(*dataset, kTraining, 0) == Numbers{'a', 'b', 'b', 'c'});
  CHECK(sample(*dataset, kTraining, 1) == Numbers{'c', 'd', 'd', 'e'});
  CHECK(sample(*dataset, kTests, 0) == Numbers{'f', 'g', 'g', 'h'});
  CHECK(dataset->name(kTraining, 1) == files.at("b/first.txt") + ": tokens 0 to 1");
  ModelDescription description;
  info.collate().describe(info, description);
  CHECK(description.tokenizer == "bytes");
  // a pattern, whose files follow each other by name
  const auto by_pattern =
      opened("text", {{"path", files.at("b/*.txt")}, {"sequence_length", 2}, {"val_fraction", 0}});
  CHECK(by_pattern->info().train_samples == 2);
  CHECK(sample(*by_pattern, kTraining, 1) == Numbers{'e', 'f', 'f', 'g'});
  // another text of as many bytes
  const auto sums = info.checksums;
  files.text("a.txt", "aB");
  CHECK(opened("text", keys)->info().checksums != sums);
}

TEST_CASE("apps/tokens: a number of tokens gives (N - 1) / T samples") {
  const Files files;
  for (const int count : {5, 8, 9, 10, 12, 13}) {
    const json keys{{"path", files.text("t", std::string(static_cast<std::size_t>(count), 'x'))},
                    {"sequence_length", 4},
                    {"val_fraction", 0.0}};
    const DatasetInfo info = opened("text", keys)->info();
    CHECK(info.train_samples == (count - 1) / 4);
    CHECK(info.test_samples == 0);
  }
  // nanoGPT's division: the first int(n * 0.9) are for training
  const json keys{{"path", files.text("t", std::string(1115394, 'x'))}, {"sequence_length", 1}};
  const DatasetInfo info = opened("text", keys)->info();
  CHECK(info.train_samples == 1003854 - 1);
  CHECK(info.test_samples == 111540 - 1);
}

TEST_CASE("apps/tokens: files of tokens, plain and with llm.c's header") {
  const Files files;
  files.tokens<std::uint16_t>("train.bin", {0, 1, 2, 3, 40000, 5, 6});
  files.tokens<std::uint16_t>("val.bin", {7, 8, 9});
  json keys{{"path", files.folder.path()}, {"sequence_length", 2}, {"vocab", 50257}};
  auto dataset = opened("tokens", keys);
  CHECK(dataset->info().train_samples == 3);
  CHECK(dataset->info().test_samples == 1);
  CHECK(!dataset->info().test_bytes);
  CHECK(sample(*dataset, kTraining, 1) == Numbers{2, 3, 3, 40000});
  CHECK(sample(*dataset, kTests, 0) == Numbers{7, 8, 8, 9});
  ModelDescription description;
  dataset->info().collate().describe(dataset->info(), description);
  CHECK(description.tokenizer.empty());

  files.tokens<std::uint16_t>("train.bin", {0, 1, 2, 3, 40000}, {20240520, 1, 5});
  CHECK(sample(*opened("tokens", keys), kTraining, 1) == Numbers{2, 3, 3, 40000});
  files.tokens<std::uint32_t>("train.bin", {0, 1, 2, 3, 100000}, {20240801, 7, 5});
  keys["vocab"] = 128256;
  files.tokens<std::uint32_t>("val.bin", {7, 8, 9});  // 4 bytes, by the vocabulary
  dataset = opened("tokens", keys);
  CHECK(sample(*dataset, kTraining, 1) == Numbers{2, 3, 3, 100000});
  CHECK(sample(*dataset, kTests, 0) == Numbers{7, 8, 8, 9});
}

TEST_CASE("apps/tokens: what files of tokens are refused for") {
  const Files files;
  json keys{{"path", files.folder.path()}, {"sequence_length", 2}, {"vocab", 100}};
  const auto says = [&](const std::string& part) {
    return contains(open_error("tokens", keys), part);
  };
  CHECK(says("cannot open"));
  files.text("train.bin", "");
  CHECK(says("train.bin: is empty; needed: tokens"));
  files.text("train.bin", "abc");
  CHECK(says("train.bin: has 3 bytes of tokens, which is no multiple of 2"));
  files.tokens<std::uint16_t>("train.bin", {1, 2});
  CHECK(says("data.sequence_length: is 2, for which training must have 3 tokens or more"));
  files.tokens<std::uint16_t>("train.bin", {1, 2, 3, 100, 5});
  CHECK(says("train.bin: token number 3 is 100, data.vocab has 0 to 99"));
  files.tokens<std::uint16_t>("train.bin", {1, 2, 3}, {20240520, 2, 3});
  CHECK(says("train.bin: has the header of llm.c's files (magic 20240520) with version 2; needed"));
  files.tokens<std::uint16_t>("train.bin", {1, 2, 3}, {20240520, 1, 4});
  CHECK(says("train.bin: its header says 4 tokens, 3 follow"));
  files.tokens<std::uint32_t>("train.bin", {20240520, 1, 3});
  CHECK(says("train.bin: ends after 12 bytes, within llm.c's header"));
  files.tokens<std::uint16_t>("train.bin", {1, 2, 3});
  files.tokens<std::uint16_t>("val.bin", {1});
  CHECK(says("for which tests must have 3 tokens or more, and 1 is there"));
  files.tokens<std::uint16_t>("val.bin", {1, 2, 3});
  CHECK(opened("tokens", keys)->info().train_samples == 1);
  keys.erase("vocab");
  CHECK(says("vocab: is needed, as there is no"));

  TokenMeta meta{.vocab = 256, .tokenizer = "bytes", .train_tokens = 3, .val_tokens = 3};
  files.text("meta.json", meta.text());
  auto dataset = opened("tokens", keys);
  CHECK(dataset->info().tensors[0].classes == 256);
  CHECK(dataset->info().test_bytes == 2.0);
  keys["vocab"] = 255;
  CHECK(says("vocab: is 255, bytes has 256 tokens; allowed: as many or more"));
  keys["vocab"] = 300;  // models may have more than are used
  CHECK(opened("tokens", keys)->info().tensors[1].classes == 300);
  meta.vocab = 512;
  files.text("meta.json", meta.text());
  CHECK(says("meta.json: vocab: is 512, bytes has 256 tokens"));
  meta.vocab = 256;
  meta.val_tokens = 4;
  files.text("meta.json", meta.text());
  CHECK(says("val.bin: has 3 tokens, "));
  std::filesystem::remove(files.at("val.bin"));
  CHECK(says("val.bin: is missing"));
  files.text("meta.json", R"({"vocab": 256, "train_tokens": 3, "val_tokens": 3, "dtype": "int8"})");
  CHECK(says("meta.json: dtype: is \"int8\"; needed: uint16 or uint32"));
  files.text("meta.json", "[]");
  CHECK(says("meta.json: vocab: is missing"));
}

TEST_CASE("apps/tokens: a token beyond those that are looked at first is told when it is read") {
  const Files files;
  std::vector<std::uint16_t> tokens((1 << 25) + 8);
  tokens[tokens.size() - 5] = 300;
  files.tokens("train.bin", tokens);
  const auto dataset =
      opened("tokens", {{"path", files.folder.path()}, {"sequence_length", 4}, {"vocab", 256}});
  const std::int64_t last = dataset->info().train_samples - 1;
  sample(*dataset, kTraining, last - 1);
  CHECK(fails(ExitCode::kUsage, "train.bin: token number 33554435 is 300, data.vocab has 0 to 255",
              [&] { sample(*dataset, kTraining, last); }));
}

TEST_CASE("apps/tokens: what texts are refused for") {
  const Files files;
  json keys{{"sequence_length", 4}};
  const auto says = [&](const std::string& part) {
    return contains(open_error("text", keys), part);
  };
  CHECK(says("path: is required and missing"));
  keys["path"] = 3;
  CHECK(says("path: has 3; needed: the name of a file or folder"));
  keys["path"] = files.at("none.txt");
  CHECK(says("none.txt: No such file"));
  keys["path"] = files.folder.path();
  CHECK(says("has no files; needed: a text"));
  files.text("t.txt", "abcdefghijklmnop");
  CHECK(says("for which tests must have 5 tokens or more, and 2 are there"));
}

TEST_CASE("apps/tokens: what is prepared is what a text itself gives") {
  const Files files;
  const json numbers = read_json_file("golden/tokenizers.json");
  const std::string tokenizer = files.text("t.json", numbers["tokenizer"].dump());
  std::string text;
  for (const json& part : numbers["texts"]) text += part.get<std::string>();
  files.text("texts/a.txt", text);
  files.text("texts/b/b.txt",
             "the\xff"
             " end" +
                 text);  // no UTF-8
  for (const std::string& name : {std::string("bytes"), tokenizer}) {
    CAPTURE(name);
    const std::string folder = files.at("made");
    TokensOptions options{.texts = {files.at("texts")}, .destination = folder, .tokenizer = name};
    std::vector<std::string> notes;
    const PrepareWatch watch{.bad = [&](const Error& e) { notes.emplace_back(e.message()); }};
    const TokensReport report = prepare_tokens(options, watch);
    REQUIRE(notes.size() == 1);
    CHECK(contains(notes[0], "b/b.txt: byte 3 is not UTF-8"));
    std::map<std::string, std::string> alone;
    for (const char* file : {"train.bin", "val.bin", "meta.json"})
      alone[file] = test::read_text(folder + "/" + file);
    options.threads = 3;
    prepare_tokens(options, {});
    for (const auto& [file, content] : alone)
      CHECK(test::read_text(folder + "/" + file) == content);
    CHECK(check_tokens(folder, {}).faults == 0);

    const json keys{{"path", files.at("texts")}, {"tokenizer", name}, {"sequence_length", 7}};
    const auto of_text = opened("text", keys);
    const auto of_tokens = opened("tokens", {{"path", folder}, {"sequence_length", 7}});
    const DatasetInfo info = of_text->info(), other = of_tokens->info();
    CHECK(info.train_samples == other.train_samples);
    CHECK(info.test_samples == other.test_samples);
    CHECK(info.tensors == other.tensors);
    CHECK(info.test_bytes == other.test_bytes);
    CHECK(info.train_samples == (report.train_tokens - 1) / 7);
    for (std::int64_t i = 0; i < info.train_samples; ++i)
      REQUIRE(sample(*of_text, kTraining, i) == sample(*of_tokens, kTraining, i));
    for (std::int64_t i = 0; i < info.test_samples; ++i)
      REQUIRE(sample(*of_text, kTests, i) == sample(*of_tokens, kTests, i));
    ModelDescription description, of_other;
    info.collate().describe(info, description);
    other.collate().describe(other, of_other);
    CHECK(description.tokenizer == of_other.tokenizer);
    CHECK(description.tokenizer == (name == "bytes" ? name : numbers["tokenizer"].dump()));
  }
}

TEST_CASE("apps/tokens: tests are of the tokens that the model was trained with") {
  const Files files;
  const json numbers = read_json_file("golden/tokenizers.json");
  json other = numbers["tokenizer"];
  other["added_tokens"][0]["content"] = "<|end|>";
  const auto dataset = made("text", {{"path", files.text("t.txt", "some text")},
                                     {"tokenizer", files.text("t.json", other.dump())},
                                     {"sequence_length", 1}});
  const auto use = [&](const json& tokenizer) {
    ModelDescription description{.config = R"({"model": {}})", .image = Shape{1}};
    description.tokenizer = tokenizer.dump();
    SafetensorsFile file;
    describe(description, file);
    dataset->use_model(file, "m.safetensors");
  };
  CHECK_NOTHROW(use(other));
  other["model"]["fuse_unk"] = true;  // a text of its own, and the same tokens
  CHECK_NOTHROW(use(other));
  CHECK(fails(ExitCode::kUsage,
              "data.tokenizer: has 500 tokens that are not those (500) that the model of "
              "m.safetensors was trained with",
              [&] { use(numbers["tokenizer"]); }));
}

TEST_CASE("apps/tokens: many tokens take 4 bytes each") {
  const Files files;
  json whole = read_json_file("golden/tokenizers.json")["tokenizer"];
  json far = whole["added_tokens"][0];
  far.update({{"id", 70000}, {"content", "<|far|>"}});
  whole["added_tokens"].push_back(far);
  TokensOptions options{.texts = {files.text("t.txt", "a<|far|>the end")},
                        .destination = files.at("made"),
                        .tokenizer = files.text("t.json", whole.dump()),
                        .val_fraction = 0.0};
  CHECK(prepare_tokens(options, {}).vocab == 70001);
  const auto dataset = opened("tokens", {{"path", files.at("made")}, {"sequence_length", 3}});
  CHECK(dataset->info().tensors[0].classes == 70001);
  CHECK(sample(*dataset, kTraining, 0)[1] == 70000);
  CHECK(check_tokens(files.at("made"), {}).faults == 0);
}

TEST_CASE("apps/tokens: a damaged, stopped or refused preparation") {
  const Files files;
  TokensOptions options{.texts = {files.text("t.txt", std::string(100, 'x'))},
                        .destination = files.at("made")};
  const auto entries = [&] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(files.at("made")))
      names.insert(entry.path().filename());
    return names;
  };
  CHECK(prepare_tokens(options, {.stop = [] { return true; }}).stopped);
  CHECK(entries().empty());
  const std::string whole = options.texts[0];
  options.texts = {whole, files.at("none.txt")};
  CHECK(fails(ExitCode::kUsage, "cannot open " + files.at("none.txt"),
              [&] { prepare_tokens(options, {}); }));
  options.texts = {whole, files.text("u.txt",
                                     "\xff\xfe"
                                     "a")};
  options.tokenizer = files.text("t.json", Tokenizer::bytes()->huggingface());
  CHECK(fails(ExitCode::kUsage, "u.txt: is UTF-16 or UTF-32; needed: UTF-8",
              [&] { prepare_tokens(options, {}); }));
  CHECK(entries().empty());
  options.texts = {files.text("one.txt", "x")};
  CHECK(fails(ExitCode::kUsage,
              "the texts have 1 token, of which --val-fraction 0.1 leaves 0 and 1",
              [&] { prepare_tokens(options, {}); }));
  options.texts = {whole};
  prepare_tokens(options, {});
  CHECK(entries() == std::set<std::string>{"meta.json", "tokenizer.json", "train.bin", "val.bin"});
  options.val_fraction = 0.0;
  options.tokenizer = "bytes";
  prepare_tokens(options, {});  // over it: no tests now
  CHECK(!entries().contains("val.bin"));
  options.val_fraction = 0.1;
  options.tokenizer = files.at("t.json");
  prepare_tokens(options, {});

  const auto faults = [&](const std::string& part) {
    std::string told;
    const CheckReport report =
        check_tokens(files.at("made"), {.bad = [&](const Error& error) { told += error.what(); }});
    return report.faults > 0 && contains(told, part);
  };
  CHECK(check_tokens(files.at("made"), {}).records == 100);
  const std::string train = test::read_text(files.at("made/train.bin"));
  files.text("made/train.bin", "y" + train.substr(1));
  CHECK(faults("train.bin: its checksum is"));
  files.text("made/train.bin", train);
  std::string tokenizer = test::read_text(files.at("t.json"));
  tokenizer.replace(tokenizer.find("\"!\": 33"), 7, "\"!\":33 ");
  files.text("made/tokenizer.json", tokenizer);
  CHECK(faults("tokenizer.json: its checksum is"));
  CHECK(contains(open_error("tokens", {{"path", files.at("made")}, {"sequence_length", 3}}),
                 "tokenizer.json: is not what "));
  std::filesystem::remove(files.at("made/meta.json"));
  CHECK(fails(ExitCode::kUsage, "has token files and no meta.json",
              [&] { check_tokens(files.at("made"), {}); }));
}

}  // namespace
}  // namespace starling::test
