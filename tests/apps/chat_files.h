#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/config.h"

namespace starling::test {

/// golden/tokenizers.json's tokenizer, with these special tokens besides its <|endoftext|>, which
/// are numbered from 500 on. `tests`: the folder tests/.
inline nlohmann::json tokenizer_json(const std::vector<std::string>& specials,
                                     const std::string& division = "gpt2",
                                     const std::string& tests = ".") {
  const nlohmann::json golden = read_json_file(tests + "/golden/tokenizers.json");
  nlohmann::json whole = golden["tokenizer"];
  whole["pre_tokenizer"] = golden["cases"][division]["pre_tokenizer"];
  std::int32_t number = 500;
  for (const std::string& content : specials)
    whole["added_tokens"].push_back({{"id", number++},
                                     {"content", content},
                                     {"single_word", false},
                                     {"lstrip", false},
                                     {"rstrip", false},
                                     {"normalized", false},
                                     {"special", true}});
  return whole;
}

/// Lines of prompt and completion, of which number i has i mod 7 more words each.
inline std::string chat_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    std::string prompt = fmt::format("question {}", i), completion = "answer";
    for (int k = 0; k < i % 7; ++k) prompt += " and more", completion += fmt::format(" {}", i * k);
    text += nlohmann::json{{"prompt", prompt}, {"completion", completion}}.dump() + "\n";
  }
  return text;
}

}  // namespace starling::test
