// Tokenizers: against the numbers of Hugging Face's tokenizers and tiktoken, and what is refused.
#include "apps/text/tokenizer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/data/tokens/texts.h"
#include "apps/data/workers.h"
#include "apps/text/pattern.h"
#include "apps/text/train.h"
#include "core/config.h"
#include "core/text.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"
#include "tests/support/rows.h"

namespace starling {
namespace {

using nlohmann::json;
using test::contains;
using test::error_of;
using test::fails;
using Numbers = std::vector<std::int32_t>;

const json& golden() {
  static const json numbers = read_json_file("golden/tokenizers.json");
  return numbers;
}

Numbers encoded(const Tokenizer& tokenizer, std::string_view text) {
  Numbers tokens;
  tokenizer.encode(text, tokens);
  return tokens;
}
Numbers encoded(const Tokenizer& tokenizer, std::string_view text, int threads) {
  Numbers tokens;
  std::size_t bytes = 0;
  Workers workers(threads);
  tokenizer.encode(text, loop_of(workers), [&](std::span<const std::int32_t> part, std::size_t of) {
    tokens.insert(tokens.end(), part.begin(), part.end());
    bytes += of;
  });
  CHECK(bytes <= text.size() + text.size() / 50 + 1000);  // normal form C is seldom longer
  return tokens;
}
std::shared_ptr<const Tokenizer> parsed(const json& whole) {
  return Tokenizer::parse(whole.dump(), "tokenizer.json");
}

void check_texts(const Tokenizer& tokenizer, const json& expected, bool comes_back = true) {
  const json& texts = golden()["texts"];
  for (std::size_t k = 0; k < texts.size(); ++k) {
    const auto text = texts[k].get<std::string>();
    CAPTURE(texts[k].dump(-1, ' ', true));
    const Numbers tokens = encoded(tokenizer, text);
    CHECK(tokens == expected[k].get<Numbers>());
    if (comes_back) CHECK(tokenizer.decode(tokens) == text);
  }
}

TEST_CASE("apps/tokenizer: tokens are those of Hugging Face's tokenizers") {
  for (const auto& [name, form] : golden()["cases"].items()) {
    CAPTURE(name);
    json whole = golden()[form["base"].get<std::string>()];
    whole["normalizer"] = form["normalizer"];
    whole["pre_tokenizer"] = form["pre_tokenizer"];
    whole["added_tokens"] = form["added_tokens"];
    whole["model"]["ignore_merges"] = form["ignore_merges"];
    const auto tokenizer = parsed(whole);
    const bool adds = form["base"] == "characters" || name == "prefix_space";  // blanks
    check_texts(*tokenizer, form["tokens"], !adds && name != "removed" && name != "qwen2");
    CHECK(tokenizer->text() == whole.dump());  // as it was read
  }
}

TEST_CASE("apps/tokenizer: tokens of rank files are tiktoken's, also written as tokenizer.json") {
  const test::Folder folder;
  const std::string path = folder.path() + "/ours.tiktoken";
  std::ofstream file(path, std::ios::binary);
  std::size_t rank = 0;
  for (const json& token : golden()["ranks"])
    file << token.get<std::string>() << ' ' << rank++ << '\n';
  file.close();
  for (const auto& [pattern, tokens] : golden()["tiktoken"].items()) {
    CAPTURE(pattern);
    const auto tokenizer = Tokenizer::read(path, pattern);
    CHECK(tokenizer->vocab() == static_cast<std::int64_t>(rank));
    check_texts(*tokenizer, tokens);
    check_texts(*Tokenizer::parse(tokenizer->huggingface(), "written"), tokens);
  }
  CHECK(fails(ExitCode::kUsage,
              "ours.tiktoken: is a file of ranks, which does not say how texts are divided; "
              "give --pattern gpt2, cl100k or o200k",
              [&] { Tokenizer::read(path); }));
  std::filesystem::rename(path, folder.path() + "/cl100k_base.tiktoken");
  check_texts(*Tokenizer::read(folder.path() + "/cl100k_base.tiktoken"),
              golden()["tiktoken"]["cl100k"]);
}

TEST_CASE("apps/tokenizer: vocab.json takes merges.txt beside it") {
  const test::Folder folder;
  const std::string path = folder.path() + "/vocab.json";
  const json& model = golden()["tokenizer"]["model"];
  std::ofstream(path) << model["vocab"].dump();
  CHECK(fails(ExitCode::kUsage, "merges.txt beside it cannot be opened",
              [&] { Tokenizer::read(path); }));
  std::ofstream merges(folder.path() + "/merges.txt");
  merges << "#version: 0.2\n";
  for (const json& merge : model["merges"])
    merges << merge[0].get<std::string>() << ' ' << merge[1].get<std::string>() << '\n';
  merges.close();
  const auto tokenizer = Tokenizer::read(path);
  check_texts(*tokenizer, golden()["cases"]["gpt2"]["tokens"]);  // <|endoftext|>, too
  check_texts(*Tokenizer::parse(tokenizer->huggingface(), "written"),
              golden()["cases"]["gpt2"]["tokens"]);
}

TEST_CASE("apps/tokenizer: training makes what Hugging Face's trainer makes") {
  const auto text = golden()["trained_on"].get<std::string>();
  const auto train = [&](int threads, int copies, std::int64_t vocab = 500) {
    Workers workers(threads);
    BpeTrainer trainer("gpt2");
    std::string longer;
    for (int k = 0; k < copies; ++k) longer += text;
    trainer.add(longer, loop_of(workers));
    return trainer.train(vocab, {"<|endoftext|>"}, [](std::int64_t) { return true; });
  };
  const json made = json::parse(train(1, 1)->huggingface()), &known = golden()["tokenizer"];
  CHECK(made["model"]["vocab"] == known["model"]["vocab"]);
  json merges = json::array();
  for (const json& merge : known["model"]["merges"])
    merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  CHECK(made["model"]["merges"] == merges);
  CHECK(made["added_tokens"] == known["added_tokens"]);
  CHECK(train(3, 400)->huggingface() == train(1, 400)->huggingface());
  CHECK(train(1, 1, 1 << 20)->vocab() < 10000);  // no pair comes twice any more
}

TEST_CASE("apps/tokenizer: a long text has the same tokens on any number of threads") {
  std::string words, dense, blanks(2'200'000, ' ');
  const json& texts = golden()["texts"];
  for (std::size_t k = 0; words.size() < 2'200'000; ++k)
    words += texts[k * k % texts.size()].get<std::string>();
  for (std::size_t at = words.find('<'); at != words.npos; at = words.find('<', at))
    words[at] = '.';
  while (dense.size() < 100'000) dense += "字";
  const std::string several = words + "<|endoftext|>" + blanks + "x<|endoftext|>" + dense + "\xff";
  for (const char* name :
       {"removed", "several", "prefix_space", "qwen2", "llama2", "mistral", "metaspace"}) {
    CAPTURE(name);
    const json& form = golden()["cases"][name];
    json whole = golden()[form["base"].get<std::string>()];
    for (const char* key : {"normalizer", "pre_tokenizer"}) whole[key] = form[key];
    const auto tokenizer = parsed(whole);
    const Numbers alone = encoded(*tokenizer, several);
    CHECK(encoded(*tokenizer, several, 1) == alone);
    CHECK(encoded(*tokenizer, several, 3) == alone);
  }
}

TEST_CASE("apps/tokenizer: what is no UTF-8 becomes U+FFFD as Python's errors=\"replace\"") {
  const std::string r = "\uFFFD";
  const std::pair<std::string, std::string> cases[] = {
      {"a\xff"
       "b",
       "a" + r + "b"},
      {"\xe4\xbd", r},
      {"\xe4\xbd"
       "a",
       r + "a"},
      {"\xf0\x9f\x91", r},
      {"\xf0\x9f\x91\xe4", r + r},
      {"\xed\xa0\x80", r + r + r},  // a surrogate
      {"\xc0\xaf", r + r},          // overlong
      {"\xe0\x80\x80", r + r + r},
      {"\xf4\x90\x80\x80", r + r + r + r},  // above U+10FFFF
      {"\x80\x80", r + r},
      {"\xf5\xff", r + r},
      {"\xc3\xa9\xc3", "é" + r}};
  const auto tokenizer = parsed(golden()["tokenizer"]);
  for (const auto& [bytes, text] : cases) {
    CHECK(repaired_utf8(bytes) == text);
    CHECK(tokenizer->decode(encoded(*tokenizer, bytes)) == text);
    CHECK(is_utf8(text));
    CHECK(Tokenizer::bytes()->decode(encoded(*Tokenizer::bytes(), bytes)) == bytes);
  }
}

TEST_CASE("apps/tokenizer: bytes are tokens of their own, and a tokenizer.json") {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const auto bytes = Tokenizer::read("bytes");
  CHECK(bytes->vocab() == 256);
  CHECK(bytes->text() == "bytes");
  CHECK(Tokenizer::parse(bytes->text(), "")->vocab() == 256);
  Numbers numbers(256);
  for (int byte = 0; byte < 256; ++byte) numbers[static_cast<std::size_t>(byte)] = byte;
  CHECK(encoded(*bytes, all) == numbers);
  CHECK(encoded(*bytes, all, 2) == numbers);
  const auto written = Tokenizer::parse(bytes->huggingface(), "written");
  const std::string text = "naïve 你 \n";
  CHECK(encoded(*written, text) == encoded(*bytes, text));
  CHECK(written->decode(numbers) == all);
}

TEST_CASE("apps/tokenizer: what tokenizer.json is refused for names file and key") {
  // Words of the error, and what is otherwise than in a file that is taken; then in one whose
  // tokens are characters.
  const char* const of_bytes = R"table(
model.type: is "WordPiece"; needed: BPE | {"model": {"type": "WordPiece"}}
model.type: is "Unigram" | {"model": {"type": "Unigram"}}
model.dropout: is 0.1 | {"model": {"dropout": 0.1}}
model.byte_fallback: is true, and the vocabulary has no <0x00> | {"model": {"byte_fallback": true}, "pre_tokenizer": null}
model.end_of_word_suffix: is | {"model": {"end_of_word_suffix": "</w>"}}
model.merges: merge number 0 is 'a b c' | {"model": {"merges": ["a b c"]}}
the vocabulary has no 'zq' | {"model": {"merges": [["a", "zq"]]}}
merge number 0 is 3; needed: two tokens | {"model": {"merges": [3]}}
model.vocab: two tokens have the number 1 | {"model": {"vocab": {"a": 1}}}
token 'a' has the number -1 | {"model": {"vocab": {"a": -1}}}
the vocabulary has no 'a' | {"model": {"vocab": {"a": null}}}
has no token for the byte 0x22 | {"model": {"vocab": {"\"": null}, "merges": []}}
normalizer.type: is "NFKC"; needed: NFC | {"normalizer": {"type": "NFKC"}}
pre_tokenizer: is missing | {"pre_tokenizer": null}
pre_tokenizer.type: is "Metaspace"; needed: ByteLevel, Split, Digits | {"pre_tokenizer": {"type": "Metaspace"}}
pre_tokenizer: has no ByteLevel | {"pre_tokenizer": {"type": "Digits"}}
pre_tokenizer.pretokenizers[0].behavior: is "MergedWithNext" | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "a"}, "behavior": "MergedWithNext", "invert": false}]}}
the pattern (?<=a)b has a group that is not (?:, (?i:, (?= or (?! at character 2 | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "(?<=a)b"}, "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "use_regex": false, "add_prefix_space": false}]}}
added_tokens[0].single_word: is true | {"added_tokens": [{"id": 1, "content": "x", "single_word": true}]}
added_tokens[0].content | {"added_tokens": [{"id": 1, "content": ""}]}
added_tokens[0].id: is missing | {"added_tokens": [{"content": "x"}]}
its number in model.vocab | {"added_tokens": [{"id": 9000, "content": "a"}]}
)table";
  const char* const of_characters = R"table(
normalizer: writes no blanks as | {"normalizer": null}
normalizer.type: is "NFC"; needed | {"normalizer": {"type": "NFC"}}
normalizer.prepend: is "x" | {"normalizer": {"type": "Prepend", "prepend": "x"}}
pre_tokenizer.replacement: is "_" | {"pre_tokenizer": {"type": "Metaspace", "replacement": "_"}}
pre_tokenizer.prepend_scheme: is "last" | {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "last"}}
pre_tokenizer.type: is "ByteLevel"; needed: Metaspace, or none | {"pre_tokenizer": {"type": "ByteLevel"}}
model.ignore_merges: is true | {"model": {"ignore_merges": true}}
added_tokens[0].normalized: is true | {"added_tokens": [{"id": 1, "content": "<x>", "special": false, "normalized": true}]}
)table";
  json characters = golden()["characters"];
  characters["normalizer"] = golden()["cases"]["llama2"]["normalizer"];
  const std::vector<std::pair<json, const char*>> tables{{golden()["tokenizer"], of_bytes},
                                                         {characters, of_characters}};
  for (const auto& [good, table] : tables) {
    for (const auto& row : test::rows_of(table)) {
      json whole = good;
      whole.merge_patch(json::parse(row.at(1)));
      const std::string text = error_of(ExitCode::kUsage, [&] { parsed(whole); });
      CHECK(text.starts_with("[tokenizer] tokenizer.json: "));
      CHECK(contains(text, row.at(0)));
    }
  }
  CHECK(fails(ExitCode::kUsage, "t.json", [] { Tokenizer::parse("[]", "t.json"); }));
}

/// The words that a pattern divides a text into, with | between them.
std::string divided(const std::string& pattern, const std::string& text) {
  const Pattern made(pattern, "test");
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = made.match(text.data() + at, text.data() + text.size());
    if (bytes == 0) {
      result += "_";
      ++at;
      continue;
    }
    result += (result.empty() ? "" : "|") + text.substr(at, bytes);
    at += bytes;
  }
  return result;
}

TEST_CASE("apps/tokenizer: patterns are those of Perl, as far as they go") {
  CHECK(divided("ab|a", "abaab") == "ab|a|ab");
  CHECK(divided("a|ab", "abaab") == "a_|a|a_");
  CHECK(divided("a{2,3}", "aaaaaa") == "aaa|aaa");
  CHECK(divided("a{2}", "aaa") == "aa_");
  CHECK(divided("a{2,}b", "aaab") == "aaab");
  CHECK(divided("a+ab", "aaab") == "aaab");   // gives back
  CHECK(divided("a++ab", "aaab") == "____");  // gives nothing back
  CHECK(divided("[ab]+b", "abab") == "abab");
  CHECK(divided("a(?:bc)?d", "abcdad") == "abcd|ad");
  CHECK(divided("a(?:b|bc)d", "abcd") == "abcd");
  CHECK(divided("a(?!b)", "abac") ==
        "_"
        "_|a_");
  CHECK(divided("a(?=b).", "abac") == "ab__");
  CHECK(divided("(?i:ks)", "KSkſ\u212as") == "KS|kſ|\u212as");
  CHECK(divided("[^a-c]", "adb") == "_|d_");
  CHECK(divided(R"([\]\-x])", "]-x") == "]|-|x");
  CHECK(divided("[x-]", "-x") == "-|x");
  CHECK(divided(R"(\x41\u0042\x{43}\n)", "ABC\n") == "ABC\n");
  CHECK(divided(R"(\d+|\D)", "12a") == "12|a");
  CHECK(divided(R"(\pL|\P{L})", "a1") == "a|1");
  CHECK(divided(R"([^\S\n]+)", " \t\n ") == " \t_| ");
  CHECK(divided(R"(\p{Lu}\p{Ll}+)", "ÉaÀ") == "Éa__");
  for (const char* pattern :
       {"a**",       "(a",     "a)",    "[a",          "a{",     "a{3,2}",
        "[]",        "a*",     "",      "a|",          "(?:a)*", "(?<n>a)",
        "(?s:a)",    "^a",     "a$",    R"(\w)",       R"(\b)",  R"(\p{Han})",
        R"(\p{L)",   R"(a*?)", "[b-a]", "[[:alpha:]]", "[a&&b]", R"(\x{110000})",
        "a{200000}", "(?i:é)", "\xff"}) {
    CAPTURE(pattern);
    CHECK(fails(ExitCode::kUsage, "[tokenizer] file: the pattern ",
                [&] { Pattern(pattern, "file"); }));
  }
  CHECK(fails(ExitCode::kUsage, "its pattern takes too long",
              [] { divided("[ab]*[ab]*[ab]*[ab]*[ab]*[ab]*[ab]*[ab]*c", std::string(100, 'a')); }));
}

}  // namespace
}  // namespace starling
