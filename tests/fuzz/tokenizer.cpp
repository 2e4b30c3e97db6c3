// Tokenizers and files of tokens. The first byte says what the rest is: tokenizer.json; vocab.json
// with merges beside it; merges beside a vocabulary; ranks; meta.json beside tokens; tokens; or a
// patch of a whole tokenizer.json, so that what lies behind its vocabulary is tried, too.
#include "apps/text/tokenizer.h"

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/data/dataset.h"
#include "core/config.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace starling;
using nlohmann::json;

const json& whole() {
  static const json made = json::parse(Tokenizer::bytes()->huggingface());
  return made;
}

/// What goes in must come out, by a tokenizer that divides texts and leaves nothing out, and it
/// must come out of its own file.
void use(const Tokenizer& tokenizer, std::string_view own_text, bool exact) {
  for (const std::string_view text : {std::string_view("It's 12 naïve\n  你 \xff<x>"), own_text}) {
    std::vector<std::int32_t> tokens, again;
    tokenizer.encode(text, tokens);
    for (const std::int32_t token : tokens) {
      if (token < 0 || token >= tokenizer.vocab()) std::abort();
    }
    const std::string decoded = tokenizer.decode(tokens);
    if (!exact) continue;
    Tokenizer::parse(tokenizer.text(), "again")->encode(text, again);
    if (tokenizer.decode(again) != decoded) std::abort();
  }
}

void open(const char* keys) {
  static const bool once = (register_builtin_datasets(), true);
  (void)once;
  json settings = json::parse(keys);
  settings["path"] = fuzz::folder();
  ConfigSection section(settings, "fuzz.json");
  const auto dataset = datasets().make("tokens", "data.type", section, 1);
  dataset->open();
  const DatasetInfo info = dataset->info();
  std::vector<std::int32_t> tokens(4), targets(4);
  const std::array<std::byte*, 2> out{reinterpret_cast<std::byte*>(tokens.data()),
                                      reinterpret_cast<std::byte*>(targets.data())};
  dataset->read(Dataset::Split::kTrain, info.train_samples - 1, out);
  for (const std::int32_t token : targets) {
    if (token < 0 || token >= info.tensors[0].classes) std::abort();
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::size_t which = size > 0 ? data[0] % 7 : 0;
  const std::string_view content = fuzz::text(data, size).substr(std::min<std::size_t>(size, 1));
  return fuzz::reads_or_refuses([&] {
    switch (which) {
      case 0: return use(*Tokenizer::parse(content, "tokenizer.json"), content, false);
      case 1:
        fuzz::file("merges.txt", "a b\n");
        return use(*Tokenizer::read(fuzz::file("vocab.json", content)), content, false);
      case 2: {
        static const std::string vocab = fuzz::file("vocab.json", [] {
          json tokens = whole()["model"]["vocab"];
          for (const char* more : {"ab", "abc", "Ġa", "Ġab", "<x>"}) tokens[more] = tokens.size();
          return tokens.dump();
        }());
        fuzz::file("merges.txt", content);
        return use(*Tokenizer::read(vocab), content, true);
      }
      case 3: return use(*Tokenizer::read(fuzz::file("ranks", content), "o200k"), content, false);
      case 4:
        fuzz::file("train.bin", std::string(20, '\1'));
        fuzz::file("meta.json", content);
        return open(R"({"sequence_length": 4})");
      case 5:
        std::filesystem::remove(fuzz::folder() + "/meta.json");
        fuzz::file("train.bin", content);
        return open(R"({"sequence_length": 4, "vocab": 300})");
      default: {
        json patched = whole();
        const json patch = json::parse(content, nullptr, false);
        if (!patch.is_object()) return;
        patched.merge_patch(patch);
        return use(*Tokenizer::parse(patched.dump(-1, ' ', false, json::error_handler_t::replace),
                                     "patched"),
                   content, false);
      }
    }
  });
}
