// Forms in which texts and tokens come: JSON lines, packed files, separators, shards, test sets of
// their own; and what is no input at all.
#include <doctest/doctest.h>
#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/data/dataset.h"
#include "apps/data/tokens/prepare_tokens.h"
#include "apps/data/tokens/texts.h"
#include "apps/data/tokens/token_files.h"
#include "apps/inference/description.h"
#include "apps/text/train.h"
#include "core/config.h"
#include "tests/apps/data_test_support.h"
#include "tests/apps/token_test_support.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace starling::test {
namespace {

using nlohmann::json;
using Files = TextFiles;
using Numbers = std::vector<std::int32_t>;

/// All tokens of a split, as windows of one give them: all but the last.
Numbers all(const Dataset& dataset, Dataset::Split split) {
  Numbers numbers;
  const DatasetInfo info = dataset.info();
  const auto count = split == Dataset::Split::kTrain ? info.train_samples : info.test_samples;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int32_t token = 0, target = 0;
    std::byte* out[] = {reinterpret_cast<std::byte*>(&token),
                        reinterpret_cast<std::byte*>(&target)};
    dataset.read(split, i, out);
    if (i == 0) numbers.push_back(token);
    CHECK(token == numbers.back());
    numbers.push_back(target);
  }
  return numbers;
}
Numbers numbers_of(const std::string& text) {
  Numbers numbers;
  for (const char c : text) numbers.push_back(static_cast<unsigned char>(c));
  return numbers;
}

TEST_CASE(
    "apps/tokens: texts of all forms have the tokens of the plain ones, in file and training") {
  const Files files;
  files.text("in/a.txt", "plain");
  files.gzip("in/b.txt.gz", "packed");
  files.text("in/c.txt", "");
  files.gzip("in/d", "");
  json keys{{"path", files.at("in")}, {"sequence_length", 1}, {"val_fraction", 0.0}};
  auto dataset = opened("text", keys);
  CHECK(all(*dataset, kTraining) == numbers_of("plainpacked"));
  CHECK(contains(dataset->info().contents, "tokens: 11 for training + 0 for tests"));
  CHECK(contains(dataset->info().contents, "; 2 empty texts are left out"));
  keys["separator"] = "|";
  CHECK(all(*opened("text", keys), kTraining) == numbers_of("plain|packed|"));

  TokensOptions options{.texts = {files.at("in")},
                        .destination = files.at("out"),
                        .separator = "|",
                        .val_fraction = 0.0};
  const TokensReport report = prepare_tokens(options, {});
  CHECK(report.count.empty == 2);
  CHECK(report.count.bytes == 11);
  const json of_tokens{{"path", files.at("out")}, {"sequence_length", 1}};
  CHECK(all(*opened("tokens", of_tokens), kTraining) == numbers_of("plain|packed|"));

  // a token of several bytes: the tokenizer must have it
  keys["separator"] = "<e>";
  CHECK(contains(open_error("text", keys),
                 "the separator '<e>' is 3 tokens of this tokenizer (60 101"));
  Workers workers(1);
  const std::string tokenizer = files.text(
      "t.json",
      BpeTrainer("gpt2").train(257, {"<e>"}, [](std::int64_t) { return true; })->huggingface());
  keys["tokenizer"] = tokenizer;
  const Numbers with = all(*opened("text", keys), kTraining);
  CHECK(with.size() == 13);
  CHECK(with[5] == 0);
  CHECK(with[12] == 0);
}

TEST_CASE("apps/tokens: a field of JSON lines is a text each") {
  const Files files;
  const std::string lines =
      "{\"id\": 1, \"text\": \"one\", \"more\": {\"text\": \"no\"}}\n\n"
      "{\"text\": \"\"}\r\n{\"text\": \"tw\\u00f6\\n\"}";
  files.text("a.jsonl", lines);
  files.gzip("b.jsonl.gz", lines);
  for (const char* name : {"a.jsonl", "b.jsonl.gz"}) {
    json keys{{"path", files.at(name)},
              {"field", "text"},
              {"separator", "\n"},
              {"sequence_length", 1},
              {"val_fraction", 0.0}};
    const auto dataset = opened("text", keys);
    CHECK(all(*dataset, kTraining) == numbers_of("one\ntw\xc3\xb6\n\n"));
    CHECK(contains(dataset->info().contents, "; 1 empty text is left out"));
    keys["field"] = "id";
    CHECK(contains(open_error("text", keys),
                   std::string(name) + ": line 1: field id is 1; needed: a"));
    keys["field"] = "body";
    CHECK(
        contains(open_error("text", keys), std::string(name) + ": line 1: has no field body: '{"));
  }
  files.text("c.jsonl", "{\"text\": \"x\"}\n[1]\n");
  const json keys{{"path", files.at("c.jsonl")}, {"field", "text"}, {"sequence_length", 1}};
  CHECK(contains(open_error("text", keys), "c.jsonl: line 2: has no field text: '[1]'"));
  files.text("c.jsonl", "{\"text\": \"x\"}\n{\"text\": \"x\n");
  CHECK(contains(open_error("text", keys), "c.jsonl: line 2: is no JSON: "));
  // lines beyond what is read at once
  std::string many, expected;
  for (int k = 0; many.size() < 9'000'000; ++k) {
    many +=
        "{\"text\": \"" + std::to_string(k) + "\", \"pad\": \"" + std::string(900, 'p') + "\"}\n";
    expected += std::to_string(k);
  }
  files.text("d.jsonl", many);
  TokensOptions options{.texts = {files.at("d.jsonl")},
                        .destination = files.at("out"),
                        .field = "text",
                        .val_fraction = 0.0,
                        .threads = 2};
  prepare_tokens(options, {});
  CHECK(all(*opened("tokens", {{"path", files.at("out")}, {"sequence_length", 1}}), kTraining) ==
        numbers_of(expected));
}

TEST_CASE("apps/tokens: packed files that are damaged are named") {
  const Files files;
  files.gzip("a.gz", std::string(100'000, 'x') + "end");
  const std::string whole = test::read_text(files.at("a.gz"));
  const json keys{{"path", files.at("a.gz")}, {"sequence_length", 1}};
  CHECK(opened("text", keys)->info().train_samples > 0);
  files.text("a.gz", whole.substr(0, whole.size() / 2));
  CHECK(contains(open_error("text", keys), "a.gz is damaged or cut short (unexpected end"));
  files.text("a.gz", "just a text");
  CHECK(contains(open_error("text", keys),
                 "a.gz is not packed as its name says; name it without .gz"));
  // a frame of zstd of "plain text\n" twice, and a cut one
  const std::string frame("\x28\xb5\x2f\xfd\x04\x58\x59\x00\x00plain text\n\xf5\xb5\x05Q", 24);
  files.text("b.zst", frame + frame);
  const json zst{{"path", files.at("b.zst")}, {"sequence_length", 1}, {"val_fraction", 0.0}};
#if !__has_include(<zstd.h>)
  CHECK(
      contains(open_error("text", zst), "b.zst is packed by zstd, which this build is without; "));
  return;
#endif
  CHECK(all(*opened("text", zst), kTraining) == numbers_of("plain text\nplain text\n"));
  files.text("b.zst", frame.substr(0, 15));
  CHECK(contains(open_error("text", zst),
                 "b.zst is damaged or cut short (unexpected end of the zstd"));
}

TEST_CASE("apps/tokens: tests of files of their own are all of them") {
  const Files files;
  const std::string tokenizer = files.text(
      "t.json",
      BpeTrainer("gpt2").train(256, {}, [](std::int64_t) { return true; })->huggingface());
  files.text("train/a.txt", "training text");
  files.text("test/b.txt", "abcde");
  json keys{{"path", files.at("train")}, {"val_path", files.at("test")}, {"sequence_length", 2}};
  auto dataset = opened("text", keys);
  CHECK(dataset->info().train_samples == 6);
  CHECK(dataset->info().test_samples == 2);
  CHECK(dataset->info().test_bytes == 4.0);
  CHECK(contains(dataset->info().contents, "tokens: 13 for training + 5 for tests"));
  keys["val_fraction"] = 0.1;
  CHECK(contains(open_error("text", keys), "val_fraction: is given beside data.val_path"));
  keys.erase("val_fraction");
  keys["val_path"] = files.text("short.txt", "ab");
  CHECK(
      contains(open_error("text", keys), "short.txt: data.sequence_length: is 2, for which tests"));
  keys["val_path"] = files.at("test");
  std::filesystem::remove_all(files.at("train"));
  dataset = made("text", keys);
  dataset->use_only_tests();
  dataset->open();
  CHECK(dataset->info().train_samples == 0);
  CHECK(dataset->info().test_samples == 2);
  CHECK(contains(dataset->info().contents, "tokens: 5 for tests, of a vocabulary of 256"));

  files.tokens<std::uint16_t>("train.bin", {1, 2, 3, 4, 5, 6, 7});
  files.tokens<std::uint16_t>("val.bin", {7, 8, 9});
  files.tokens<std::uint16_t>("new/train.bin", {11, 12, 13, 14, 15});
  keys = {{"path", files.folder.path()},
          {"val_path", files.at("new")},
          {"vocab", 300},
          {"tokenizer", tokenizer},
          {"sequence_length", 1}};
  dataset = opened("tokens", keys);
  CHECK(all(*dataset, kTraining) == Numbers{1, 2, 3, 4, 5, 6, 7});
  CHECK(all(*dataset, kTests) == Numbers{11, 12, 13, 14, 15});
  // Without a val.bin others of such names are tests
  files.tokens<std::uint16_t>("named/train.bin", {1, 2, 3, 4, 5});
  files.tokens<std::uint16_t>("named/validation.bin", {6, 7, 8});
  CHECK(
      all(*opened("tokens", {{"path", files.at("named")}, {"vocab", 300}, {"sequence_length", 1}}),
          kTests) == Numbers{6, 7, 8});
  std::filesystem::remove(files.at("train.bin"));
  dataset = made("tokens", keys);
  dataset->use_only_tests();
  dataset->open();
  CHECK(dataset->info().test_samples == 4);
  // by another tokenizer
  TokensOptions other{.texts = {files.at("test")},
                      .destination = files.at("new"),
                      .tokenizer = tokenizer,
                      .val_fraction = 0.0};
  prepare_tokens(other, {});
  keys["tokenizer"] = "bytes";
  files.tokens<std::uint16_t>("train.bin", {1, 2, 3, 4, 5, 6, 7});
  CHECK(contains(open_error("tokens", keys),
                 "new/meta.json: tokenizer: has 256 tokens that are not"));
}

TEST_CASE("apps/tokens: what is a test is not trained on") {
  const Files files;
  files.text("d/a.txt", "aaaaaaa");
  files.text("d/b.txt", "bbbbb");
  files.text("d/val/c.txt", "ccc");
  json keys{{"path", files.at("d")}, {"sequence_length", 1}};
  const auto trains = [&](const char* type, const json& path, const json& val_path) {
    keys["path"] = path;
    keys["val_path"] = val_path;
    return opened(type, keys)->info().contents;
  };
  const auto refuses = [&](const char* type, const json& path, const json& val_path,
                           const std::string& file) {
    keys["path"] = path;
    keys["val_path"] = val_path;
    return contains(open_error(type, keys),
                    file + ": data.val_path: is trained on too; needed: other files for tests");
  };
  const std::string d = files.at("d"), a = d + "/a.txt", b = d + "/b.txt", c = d + "/val/c.txt";
  keys["path"] = {a, d};
  CHECK(contains(open_error("text", keys), a + ": data.path: is given twice"));
  CHECK(contains(trains("text", d, d + "/val"),
                 "12 for training + 3 for tests, of a vocabulary of 256; 1 file of val_path is "
                 "left out of training"));
  CHECK(contains(trains("text", d, d + "/val/../b.txt"), "10 for training + 5 for tests"));
  CHECK(contains(trains("text", d, {b, c}),
                 "7 for training + 8 for tests, of a vocabulary of 256; 2 files of val_path are"));
  CHECK(contains(trains("text", {a, b}, d + "/val"),
                 "12 for training + 3 for tests, of a vocabulary of 256\n"));
  CHECK(refuses("text", d, d, a));
  CHECK(refuses("text", a, a, a));
  CHECK(refuses("text", a, d + "/val/../a.txt", a));
  CHECK(refuses("text", {a, b}, b, b));
  CHECK(refuses("text", {d, b}, b, b));
  CHECK(refuses("text", d + "/val", d, c));
  CHECK(refuses("text", d, {a, b, c}, a));
  // by other names
  std::filesystem::create_symlink(b, files.at("soft.txt"));
  std::filesystem::create_hard_link(b, files.at("hard.txt"));
  for (const char* name : {"soft.txt", "hard.txt"}) {
    CHECK(contains(trains("text", d, files.at(name)), "10 for training + 5 for tests"));
    CHECK(refuses("text", b, files.at(name), b));
  }
  // a test of a trained model by what it was trained on is the user's wish
  keys["path"] = keys["val_path"] = a;
  auto dataset = made("text", keys);
  dataset->use_only_tests();
  dataset->open();
  CHECK(dataset->info().test_samples == 6);

  keys["vocab"] = 300;
  const std::string own = files.at("own"),
                    train = files.tokens<std::uint16_t>("own/train.bin", {1, 2, 3}),
                    val = files.tokens<std::uint16_t>("own/val.bin", {4, 5});
  CHECK(refuses("tokens", own, train, train));
  CHECK(refuses("tokens", own, own, train));
  CHECK(refuses("tokens", train, own, train));
  CHECK(contains(trains("tokens", own, val),
                 "3 for training + 2 for tests, of a vocabulary of "
                 "300; no tokenizer\n"));
  const std::string shard = files.tokens<std::uint16_t>("web/1.bin", {1, 2, 3, 4});
  const std::string last = files.tokens<std::uint16_t>("web/2.bin", {5, 6});
  for (const std::string& path : {files.at("web"), files.at("web/*.bin")}) {
    CHECK(contains(trains("tokens", path, last),
                   "4 for training + 2 for tests, of a vocabulary of "
                   "300; no tokenizer; 1 file of val_path is left"));
    CHECK(refuses("tokens", path, path, shard));
  }
  CHECK(refuses("tokens", {shard, last}, last, last));
}

TEST_CASE("apps/tokens: a path that is not there is said before a key that is missing") {
  const Files files;
  const std::string there = files.text("texts/a.txt", "some text"),
                    near = files.at("texts/b.txt") +
                           ": No such file or directory; did you mean "
                           "'a.txt'?";
  for (const char* type : {"text", "tokens"}) {
    const auto says = [&](const json& keys, const std::string& part) {
      return contains(open_error(type, keys), part);
    };
    CHECK(says({{"path", files.at("texts/b.txt")}}, "cannot open " + near));
    CHECK(says({{"path", {there, files.at("texts/b.txt")}}}, "cannot open " + near));
    CHECK(says({{"path", there}, {"val_path", files.at("texts/b.txt")}}, "cannot open " + near));
    CHECK(says({{"path", there}}, "sequence_length: is required"));
    json whole{{"path", there}, {"val_path", files.at("texts/b.txt")}, {"sequence_length", 2}};
    if (type == std::string("tokens")) whole["vocab"] = 300;
    CHECK(says(whole, "data.val_path: cannot open " + near));
    whole["path"] = files.at("texts/b.txt");
    whole["val_path"] = there;
    CHECK(says(whole, "data.path: cannot open " + near));
  }
  CHECK(contains(open_error("tokens", {{"path", files.at("*.bin")}}), "no file has such a name"));
}

TEST_CASE("apps/tokens: shards by pattern, by list and of a folder") {
  const Files files;
  files.tokens<std::uint16_t>("web_train_2.bin", {3, 4});
  files.tokens<std::uint16_t>("web_train_1.bin", {1, 2});
  files.tokens<std::uint16_t>("web_val_0.bin", {8, 9});
  files.tokens<std::uint16_t>("retrieval.bin", {5, 6});  // "val" is no word of it
  files.text("notes.txt", "no");
  json keys{{"path", files.folder.path()}, {"vocab", 10}, {"sequence_length", 1}};
  const auto check = [&](const Numbers& training, const Numbers& tests) {
    const auto dataset = opened("tokens", keys);
    CHECK(all(*dataset, kTraining) == training);
    CHECK(all(*dataset, kTests) == tests);
  };
  check({5, 6, 1, 2, 3, 4}, {8, 9});
  keys["path"] = files.at("web_train_*.bin");
  check({1, 2, 3, 4}, {});
  keys["val_path"] = files.at("web_val_?.bin");
  check({1, 2, 3, 4}, {8, 9});
  keys["path"] = {files.at("web_train_2.bin"), files.at("retrieval.bin")};
  check({3, 4, 5, 6}, {8, 9});
  keys["path"] = files.at("other_*.bin");
  CHECK(contains(open_error("tokens", keys), "other_*.bin: no file has such a name"));
  keys.erase("vocab");
  CHECK(contains(open_error("tokens", keys), "other_*.bin: no file has such a name"));
  // with a train.bin the others are something else, but for tests
  files.tokens<std::uint16_t>("train.bin", {7, 7, 7});
  keys = {{"path", files.folder.path()}, {"vocab", 10}, {"sequence_length", 1}};
  check({7, 7, 7}, {8, 9});
}

TEST_CASE("apps/tokens: files of other numbers than tokens are named by what they look like") {
  const Files files;
  json keys{{"path", files.folder.path()}, {"vocab", 500}, {"sequence_length", 2}};
  std::vector<int> tokens(100);
  for (std::size_t k = 0; k < tokens.size(); ++k) tokens[k] = static_cast<int>(k * 37 % 500);
  const auto says = [&]<class T>(const std::vector<int>& from, T, const std::string& what) {
    files.tokens<T>("train.bin", {from.begin(), from.end()});
    return contains(open_error("tokens", keys), "train.bin: looks like " + what);
  };
  CHECK(says(tokens, std::uint32_t{}, "32-bit integers; needed: uint16"));
  CHECK(says(tokens, std::int64_t{}, "64-bit integers; needed: uint16"));
  CHECK(says(tokens, float{}, "32-bit floating-point numbers"));
  CHECK(says(tokens, double{}, "64-bit floating-point numbers"));
  keys["vocab"] = 100'000;
  CHECK(says(tokens, std::int64_t{}, "64-bit integers; needed: uint32"));
  CHECK(says(tokens, std::uint16_t{}, "uint16, and above 65536 tokens (data.vocab has 100000)"));
  keys["vocab"] = 50'257;
  files.text("train.bin", std::string(100, 'a') + std::string(100, ' '));
  CHECK(contains(open_error("tokens", keys), "train.bin: looks like a text; needed"));
  for (const auto& [begin, what] : {std::pair("\x93NUMPY\x01", "is numpy's .npy"),
                                    {"\x1f\x8b\x08\x04", "is packed by gzip"},
                                    {"\x28\xb5\x2f\xfd", "is packed by zstd"},
                                    {"PK\x03\x04", "is a zip archive"}}) {
    files.text("train.bin", std::string(begin) + std::string(100, '\1'));
    CHECK(contains(open_error("tokens", keys), what));
  }
  // What is right stays so, with few different tokens, too
  files.tokens<std::uint16_t>("train.bin", std::vector<std::uint16_t>(100));
  CHECK(opened("tokens", keys)->info().train_samples == 49);
}

TEST_CASE("apps/tokens: what the tokenizer has not is refused, and stands for nothing") {
  const Files files;
  json whole = json::parse(Tokenizer::bytes()->huggingface());
  whole["added_tokens"] = {{{"id", 300}, {"content", "<e>"}, {"normalized", false}}};
  const std::string tokenizer = files.text("t.json", whole.dump());
  json keys{{"path", files.folder.path()},
            {"vocab", 512},
            {"tokenizer", tokenizer},
            {"sequence_length", 1}};
  for (const std::uint16_t token : {301, 511}) {
    files.tokens<std::uint16_t>("train.bin", {1, 2, token});
    CHECK(contains(
        open_error("tokens", keys),
        "train.bin: token number 2 is " + std::to_string(token) + ", the tokenizer has 0 to 300"));
  }
  files.tokens<std::uint16_t>("train.bin", {1, 2, 300});
  files.tokens<std::uint16_t>("val.bin", {1, 299});  // between those that it has
  CHECK(contains(open_error("tokens", keys), "val.bin: token number 1 is 299"));
  const auto read = Tokenizer::read(tokenizer);
  for (const std::int32_t token : {-1, 299, 301, 1 << 30}) CHECK(read->bytes_of(token).empty());
  for (const std::int32_t token : {-1, 256, 1 << 30})
    CHECK(Tokenizer::bytes()->bytes_of(token).empty());
}

TEST_CASE("apps/tokens: what was made of texts is no text") {
  const Files files;
  const std::string in = files.at("in");
  files.text("in/t.txt", "some text");
  for (const std::string& folder : {in, files.at("in/deeper")}) {
    for (int call = 0; call < 2; ++call) {
      TokensOptions options{.texts = {in}, .destination = folder, .val_fraction = 0.3};
      const TokensReport report = prepare_tokens(options, {});
      CHECK(report.train_tokens + report.val_tokens == 9);
    }
  }
  for (int call = 0; call < 2; ++call) {
    train_tokenizer({.texts = {in}, .out = files.at("in/tok.json"), .vocab = 257}, {});
    TokensOptions options{.texts = {in},
                          .destination = files.at("out"),
                          .tokenizer = files.at("in/tok.json"),
                          .val_fraction = 0.0};
    CHECK(prepare_tokens(options, {}).count.bytes == 9);
  }
  std::filesystem::remove(files.at("in/tok.json"));
  files.text("in/runs/a/config.json", "{}");
  files.text("in/runs/a/metrics.jsonl", "{}");
  files.text("in/runs/a/checkpoints/step-1/x", "{}");
  files.text("in/.train.bin.0123abcd.tmp", "x");
  files.text("in/train.bin.0123abcd.tmp", "x");
  files.text("in/project/config.json", "{}");  // of something else
  CHECK(text_files({in}) ==
        std::vector<std::string>{files.at("in/project/config.json"), files.at("in/t.txt")});
  // a text that is named is one, but where it would be overwritten
  CHECK(text_files({files.at("in/runs/a/metrics.jsonl")}).size() == 1);
  const TokenizerOptions onto{.texts = {in + "/t.txt"}, .out = files.at("in/../in/t.txt")};
  CHECK(fails(ExitCode::kUsage, "t.txt is given as a text and for something else",
              [&] { train_tokenizer(onto, {}); }));
  CHECK(test::read_text(in + "/t.txt") == "some text");
}

TEST_CASE("apps/tokens: special tokens that a file cannot keep apart are refused") {
  const auto says = [](std::vector<std::string> special, const std::string& part) {
    return contains(error_of(ExitCode::kUsage, [&] { check_special_tokens(special); }), part);
  };
  CHECK(says({"<a>", "<b>", "<a>"}, "the special token '<a>' is given twice"));
  CHECK(says({""}, "is empty"));
  CHECK(says({"\xff"}, "is not UTF-8"));
  for (const char* byte : {"a", " ", "\n", "é", "Ġ"})
    CHECK(says({byte}, "is a byte, or the letter"));
  CHECK(says({"Ġcd"}, "is written in letters that stand for other bytes"));
  CHECK(says({"<é>"}, "is written in letters that stand for other bytes"));
  CHECK_NOTHROW(check_special_tokens({"<|endoftext|>", "<s", "<s>", "a b", "日本", "[PAD]"}));
  // A token that pairs become, too, and one of the same bytes as another
  Workers workers(1);
  BpeTrainer trainer("gpt2");
  trainer.add("xy xy xy xy cd cd cd cd", loop_of(workers));
  const auto made = trainer.train(300, {"xy", " cd"}, [](std::int64_t) { return true; });
  const json vocab = json::parse(made->huggingface())["model"]["vocab"];
  CHECK(static_cast<std::int64_t>(vocab.size()) == made->vocab());
  CHECK(vocab["xy"] == 0);
  CHECK(vocab[" cd"] == 1);
  CHECK(vocab.contains("Ġcd"));
  Numbers tokens, again;
  made->encode("xy cd.", tokens);
  CHECK(tokens[0] == 0);
  CHECK(tokens[1] == 1);
  CHECK(made->decode(tokens) == "xy cd.");
  Tokenizer::parse(made->huggingface(), "again")->encode("xy cd.", again);
  CHECK(again == tokens);
}

TEST_CASE("apps/tokenizer: tokens that were added beside vocab.json and merges.txt") {
  const Files files;
  const json golden = read_json_file("golden/tokenizers.json")["tokenizer"]["model"];
  const std::string path = files.text("vocab.json", golden["vocab"].dump());
  std::string merges;
  for (const json& merge : golden["merges"])
    merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
  files.text("merges.txt", merges);
  const auto count = static_cast<std::int32_t>(golden["vocab"].size());
  const auto tokens = [&](const std::string& text) {
    Numbers numbers;
    Tokenizer::read(path)->encode(text, numbers);
    return numbers;
  };
  const auto says = [&](const std::string& part) {
    return contains(error_of(ExitCode::kUsage, [&] { Tokenizer::read(path); }), part);
  };
  files.text("added_tokens.json", json{{"<b>", count + 1}, {"<a>", count}}.dump());
  CHECK(Tokenizer::read(path)->vocab() == count + 2);
  CHECK(tokens("<a><b>") == Numbers{count, count + 1});
  files.text("added_tokens.json", json{{"<a>", count + 3}}.dump());  // transformers would number it
  CHECK(says("added_tokens.json: <a>: has the number 503; needed: 500"));
  files.text("added_tokens.json", "[]");
  CHECK(says("added_tokens.json: is no object"));
  // the other file's come first, with what they take
  files.text("tokenizer_config.json",
             json{{"added_tokens_decoder",
                   {{std::to_string(count), {{"content", "<c>"}, {"lstrip", true}}}}}}
                 .dump());
  CHECK(tokens(" <c>") == Numbers{count});
  files.text("tokenizer_config.json", json{{"tokenizer_class", "Qwen2Tokenizer"}}.dump());
  CHECK(says("tokenizer_config.json: tokenizer_class: is \"Qwen2Tokenizer\"; needed"));
  std::filesystem::remove(files.at("added_tokens.json"));
  files.text("tokenizer_config.json", json{{"tokenizer_class", "GPT2Tokenizer"}}.dump());
  files.text("special_tokens_map.json",
             json{{"eos_token", "<|endoftext|>"}, {"pad_token", {{"content", "<pad>"}}}}.dump());
  CHECK(says("special_tokens_map.json: pad_token: '<pad>' has no number"));
}

}  // namespace
}  // namespace starling::test
