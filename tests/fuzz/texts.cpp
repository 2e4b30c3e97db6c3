// Folders of texts and of tokens, and tokenizers, drawn from a seed that the input gives, against a
// model of what docs/data.md says: which files are texts, which tokens they have, what is for
// tests, and what is refused. fuzz_texts --runs 10000 --seed 1 CORPUS: so many trials in one
// process.
#include <fmt/format.h>
#include <zlib.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <vector>

#include "apps/data/dataset.h"
#include "apps/data/tokens/prepare_tokens.h"
#include "apps/data/tokens/texts.h"
#include "apps/data/tokens/token_files.h"
#include "apps/text/train.h"
#include "apps/text/unicode.h"
#include "core/config.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace starling;
using nlohmann::json;
using Numbers = std::vector<std::int32_t>;
namespace fs = std::filesystem;

using fuzz::expect;

struct Draw : fuzz::Draw {
  std::string text(bool valid) {
    static const std::vector<std::string> kPieces{"the",   " ",     "\n",    "  ",  "It's", "12",
                                                  "naïve", "你好",  "<|e|>", "<a",  "<a>",  "\r\n",
                                                  "x",     "[PAD]", "\"",    "\\n", "\t",   "é"};
    std::string text;
    for (std::size_t k = one_in(6) ? 0 : below(40); k > 0; --k)
      text += !valid && one_in(30) ? std::string(1, static_cast<char>(0x80 + below(0x80)))
                                   : kPieces[below(kPieces.size())];
    return text;
  }
};

std::string put(const std::string& name, const std::string& content) {
  fs::create_directories(fs::path(fuzz::folder() + "/" + name).parent_path());
  return fuzz::file(name, content);
}
void put_packed(const std::string& name, const std::string& content) {
  const gzFile file = ::gzopen(put(name, "").c_str(), "wb");
  ::gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
  ::gzclose(file);
}

/// What a reader says in refusal, in one line with the exit status of bad input; empty: it reads.
template <class Read>
std::string refusal_of(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    const std::string message = error.what();
    expect(error.code() == ExitCode::kUsage, message);
    expect(!message.empty() && message.size() < 4096 && message.find('\n') == message.npos,
           message);
    return message;
  }
  return {};
}

/// The data set's windows must be those of these tokens, by the rule.
void check_windows(const Dataset& dataset, Dataset::Split split, const Numbers& tokens,
                   std::size_t length) {
  const DatasetInfo info = dataset.info();
  const auto samples = static_cast<std::size_t>(
      split == Dataset::Split::kTrain ? info.train_samples : info.test_samples);
  expect(samples == (tokens.empty() ? 0 : (tokens.size() - 1) / length), "count of samples");
  Numbers got(2 * length);
  std::byte* out[] = {reinterpret_cast<std::byte*>(got.data()),
                      reinterpret_cast<std::byte*>(got.data() + length)};
  for (std::size_t i = 0; i < samples; ++i) {
    dataset.read(split, static_cast<std::int64_t>(i), out);
    const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(i * length);
    const auto many = static_cast<std::ptrdiff_t>(length);
    expect(std::equal(from, from + many, got.begin()), "a window's tokens");
    expect(std::equal(from + 1, from + 1 + many, got.begin() + many), "a window's targets");
  }
}

/// Makes a data set of these keys, which must hold exactly these tokens, or be refused.
void check_dataset(const char* type, const json& keys, const Numbers& training,
                   const Numbers& tests, std::size_t length, bool refused) {
  static const bool once = (register_builtin_datasets(), true);
  (void)once;
  std::unique_ptr<Dataset> dataset;
  const std::string said = refusal_of([&] {
    ConfigSection section(keys, "trial.json");
    dataset = datasets().make(type, "data.type", section, 1);
    section.finish();
    dataset->open();
  });
  const bool has_tests = keys.contains("val_path") || !tests.empty();
  refused = refused || training.size() <= length || (has_tests && tests.size() <= length);
  expect(refused == !said.empty(),
         fmt::format("{} of {}: {}", refused ? "a refusal" : "no refusal", keys.dump(), said));
  if (refused) return;
  check_windows(*dataset, Dataset::Split::kTrain, training, length);
  check_windows(*dataset, Dataset::Split::kTest, tests, length);
  const std::string counts =
      fmt::format("tokens: {} for training + {} for tests,", training.size(), tests.size());
  expect(dataset->info().contents.starts_with(counts), dataset->info().contents);
}

/// A tokenizer trained on drawn texts with drawn special tokens; none: these are refused, rightly.
std::string draw_tokenizer(Draw& draw) {
  static const std::vector<std::string> kSpecial{
      "<|e|>", "<a>", "<a", "[PAD]", "the", " x", "你好", "a", " ", "", "é", "\xff", "Ġx", "<|e|>"};
  std::vector<std::string> special;
  bool wrong = false;
  for (std::size_t k = draw.below(4); k > 0; --k) {
    const std::size_t at = draw.one_in(8) ? draw.below(kSpecial.size()) : draw.below(7);
    wrong = wrong || (at >= 7 && at < 13) ||
            std::find(special.begin(), special.end(), kSpecial[at]) != special.end();
    special.push_back(kSpecial[at]);
  }
  std::shared_ptr<const Tokenizer> made;
  const std::string said = refusal_of([&] {
    check_special_tokens(special);
    Workers workers(1);
    BpeTrainer trainer(draw.one_in(2) ? "gpt2" : "cl100k");
    for (int k = 0; k < 3; ++k) trainer.add(draw.text(false), loop_of(workers));
    made = trainer.train(static_cast<std::int64_t>(256 + special.size() + draw.below(30)), special,
                         [](std::int64_t) { return true; });
  });
  expect(wrong == !said.empty(), "special tokens: " + said);
  if (wrong) return {};
  const auto again = Tokenizer::parse(made->huggingface(), "written");
  expect(again->vocab() == made->vocab() && agree(*again, *made), "a written tokenizer's tokens");
  const std::string text = draw.text(true);
  Numbers tokens, others;
  made->encode(text, tokens);
  again->encode(text, others);
  expect(tokens == others, "a written tokenizer's numbers");
  expect(made->decode(tokens) == text, "what is decoded: " + text);
  for (std::size_t s = 0; s < special.size(); ++s) {
    Numbers one;
    made->encode(special[s], one);
    expect(!one.empty() && made->decode(one) == special[s], "a special token");
  }
  return put("tokenizer.json", made->huggingface());
}

void try_texts(Draw& draw) {
  std::string path = draw.one_in(2) ? draw_tokenizer(draw) : "bytes";
  if (path.empty()) return;
  const auto tokenizer = Tokenizer::read(path);

  const std::string field = draw.one_in(3) ? "text" : "",
                    separator = draw.one_in(3) ? draw.one_in(4) ? "<none>" : "\n" : "";
  bool refused = false;
  Numbers separators;
  if (!separator.empty()) tokenizer->encode(separator, separators);
  if (!separator.empty() && separators.size() != 1) refused = true;
  const auto fill = [&](const std::string& folder) {
    Numbers tokens;
    std::size_t texts = 0;
    const std::size_t files = draw.below(4);
    for (std::size_t f = 0; f < files; ++f) {
      std::vector<std::string> documents(field.empty() ? 1 : draw.below(4));
      for (std::string& one : documents) one = draw.text(!field.empty());
      std::string content = field.empty() ? documents[0] : "";
      bool broken = false;
      if (!field.empty()) {
        for (const std::string& one : documents) {
          const std::size_t fault = draw.below(60);
          broken = broken || fault < 3;
          content += fault == 0   ? "{\"text\": 3}"
                     : fault == 1 ? "{\"other\": \"x\"}"
                     : fault == 2 ? "{\"text\": \"x"
                                  : json{{"id", 1}, {"text", one}, {"z", {{"text", "no"}}}}.dump();
          content += draw.one_in(5) ? "\r\n\n" : "\n";
        }
      }
      const std::string name = fmt::format("{}/{}{}", folder, f, draw.one_in(3) ? "/deep" : ".txt");
      if (draw.one_in(4))
        put_packed(name, content);
      else
        put(name, content);
      refused = refused || broken;
      for (const std::string& one : documents) {
        if (one.empty()) continue;
        ++texts;
        tokenizer->encode(one, tokens);
        if (!separator.empty()) tokens.insert(tokens.end(), separators.begin(), separators.end());
      }
    }
    // What is no text
    put(folder + "/.hidden", "no");
    if (draw.one_in(3)) put(folder + "/train.bin.0123abcd.tmp", "no");
    if (draw.one_in(3)) {
      put(folder + "/runs/a/config.json", "{}");
      put(folder + "/runs/a/metrics.jsonl", "{}");
    }
    refused = refused || texts == 0;
    return tokens;
  };
  Numbers training = fill("in"), tests;
  const std::size_t length = 1 + draw.below(5);
  json keys{{"path", fuzz::folder() + "/in"},
            {"tokenizer", path},
            {"sequence_length", length},
            {"field", field},
            {"separator", separator}};
  const double fraction = draw.one_in(2) ? 0.0 : 0.25;
  if (draw.one_in(3)) {
    tests = fill("tests");
    keys["val_path"] = fuzz::folder() + "/tests";
    if (draw.one_in(10)) keys["val_fraction"] = fraction, refused = refused || fraction > 0.0;
  } else {
    keys["val_fraction"] = fraction;
    const auto cut =
        static_cast<std::ptrdiff_t>(static_cast<double>(training.size()) * (1 - fraction));
    tests.assign(training.begin() + cut, training.end());
    training.resize(static_cast<std::size_t>(cut));
  }
  check_dataset("text", keys, training, tests, length, refused);
  if (keys.contains("val_path") || refused) return;

  // What is written is what training on the texts has; once more, with it among them
  const std::string out = fuzz::folder() + (draw.one_in(2) ? "/in/out" : "/in");
  const bool few = training.size() < 2 || tests.size() == 1;
  for (int call = 0; call < 2; ++call) {
    TokensOptions options{.texts = {keys["path"]},
                          .destination = out,
                          .tokenizer = path,
                          .field = field,
                          .separator = separator,
                          .val_fraction = fraction};
    const std::string said = refusal_of([&] {
      const TokensReport report = prepare_tokens(options, {});
      expect(report.train_tokens == static_cast<std::int64_t>(training.size()) &&
                 report.val_tokens == static_cast<std::int64_t>(tests.size()),
             "prepared tokens");
    });
    expect(few == !said.empty(), "to prepare: " + said);
    if (few) return;
  }
  expect(check_tokens(out, {}).faults == 0, "a check of what was written");
  check_dataset("tokens", {{"path", out}, {"sequence_length", length}}, training, tests, length,
                false);
}

template <class T>
std::string numbers_as(const Numbers& tokens) {
  std::string bytes;
  for (const std::int32_t token : tokens) {
    const T number = static_cast<T>(token);
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  return bytes;
}

void try_tokens(Draw& draw) {
  const std::size_t vocab = draw.one_in(2) ? 300 : draw.one_in(2) ? 50304 : 100'000;
  const std::size_t known = draw.one_in(2) ? 256 : 0, limit = known > 0 ? known : vocab;
  const std::size_t length = 1 + draw.below(4);
  const int right = vocab > 65536 ? 4 : 2;
  const std::size_t shards = draw.below(3);  // 0: train.bin and perhaps val.bin
  bool refused = false;
  Numbers training, tests;
  const auto file = [&](const std::string& name, Numbers& into) {
    Numbers tokens(40 + draw.below(60));
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(1 + draw.below(limit - 1));
    const std::size_t fault = draw.below(40);
    if (fault == 0) {
      tokens[draw.below(tokens.size())] = static_cast<std::int32_t>(limit + draw.below(100));
    }
    std::string content =
        right == 2 ? numbers_as<std::uint16_t>(tokens) : numbers_as<std::uint32_t>(tokens);
    if (fault == 1) content = numbers_as<std::int64_t>(tokens);
    if (fault == 2) content = numbers_as<float>(tokens);
    if (fault == 3) content = numbers_as<double>(tokens);
    if (fault == 4) content.pop_back();
    if (fault == 5) content.clear();
    if (fault == 6)
      content = right == 2 ? numbers_as<std::uint32_t>(tokens) : "\x93NUMPY\x01" + content;
    refused = refused || fault <= 6;
    if (fault >= 30) {  // llm.c's header
      const std::uint32_t wrong = fault == 39 ? 1 : 0;
      std::vector<std::uint32_t> header(256);
      header[0] = right == 2 ? 20240520 : 20240801;
      header[1] = right == 2 ? 1 : 7;
      header[2] = static_cast<std::uint32_t>(tokens.size()) + wrong;
      content.insert(0, std::string(reinterpret_cast<const char*>(header.data()), 1024));
      refused = refused || wrong > 0;
    }
    put(name, content);
    into.insert(into.end(), tokens.begin(), tokens.end());
  };
  for (std::size_t k = 0; k < shards; ++k) file(fmt::format("t/web_train_{}.bin", k), training);
  if (shards == 0) file("t/train.bin", training);
  const bool own = draw.one_in(3);
  if (own)
    file("v/more.bin", tests);
  else if (draw.one_in(2))
    file(shards == 0 ? "t/val.bin" : "t/web_val_0.bin", tests);
  put("t/notes.txt", "no");
  json keys{{"path", fuzz::folder() + (shards > 0 && own ? "/t/*_train_*.bin" : "/t")},
            {"vocab", vocab},
            {"sequence_length", length}};
  if (known > 0) keys["tokenizer"] = "bytes";
  if (own) keys["val_path"] = fuzz::folder() + "/v";
  check_dataset("tokens", keys, training, tests, length, refused);
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::uint64_t seed = 0xcbf29ce484222325;
  for (std::size_t i = 0; i < size; ++i) seed = (seed ^ data[i]) * 0x100000001b3;
  Draw draw{{std::mt19937_64(seed)}};
  for (const auto& entry : fs::directory_iterator(fuzz::folder())) fs::remove_all(entry.path());
  if (draw.one_in(2))
    try_texts(draw);
  else
    try_tokens(draw);
  return 0;
}
