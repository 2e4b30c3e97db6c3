// The tokenizer of bytes, and files of others: Hugging Face's tokenizer.json, GPT-2's vocab.json
// and merges.txt, tiktoken's ranks.
#include "apps/text/tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "apps/text/bpe.h"
#include "apps/text/pattern.h"
#include "core/config.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/text.h"

namespace starling {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;
constexpr std::int64_t kMostTokens = 1 << 20;

template <class... Args>
[[noreturn]] void refuse(const std::string& source, const std::string& key,
                         fmt::format_string<Args...> format, Args&&... args) {
  fail(ExitCode::kUsage, "tokenizer", {.file = source, .key = key}, format,
       std::forward<Args>(args)...);
}

std::string whole_file(const std::string& path) {
  FileText file = read_file(path, kMostBytes);
  if (!file.fault.empty())
    fail(ExitCode::kUsage, "tokenizer", "cannot open {}: {}", shown(path), file.fault);
  return std::move(file.text);
}

/// Calls use(line, its number from 1) for the lines of a text that are not empty.
template <class Use>
void each_line(std::string_view text, const Use& use) {
  for (std::size_t at = 0, number = 1; at < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) use(line, number);
  }
}

using Numbers = std::unordered_map<std::string, std::int32_t>;

/// SentencePiece's letter for a blank.
const std::string kBlankLetter = "\xe2\x96\x81";

std::string with_blanks(std::string text) {
  for (std::size_t at = 0; (at = text.find(kBlankLetter, at)) != std::string::npos; ++at)
    text.replace(at, kBlankLetter.size(), " ");
  return text;
}

/// A vocabulary as JSON: an object of tokens in letters for bytes and their numbers.
Numbers read_vocab(const json& value, BpeParts& parts, const std::string& source,
                   const std::string& key, bool bytes = true) {
  if (!value.is_object() || value.empty())
    refuse(source, key, "is no object of tokens and their numbers; needed: one such as GPT-2's");
  Numbers numbers;
  for (const auto& [token, number] : value.items()) {
    if (!number.is_number_unsigned() || number >= kMostTokens)
      refuse(source, key, "token '{}' has the number {}; needed: 0 to {}", shown(token),
             shown(number.dump()), kMostTokens - 1);
    const auto at = number.get<std::size_t>();
    if (at >= parts.tokens.size()) parts.tokens.resize(at + 1);
    if (!parts.tokens[at].empty())
      refuse(source, key, "two tokens have the number {}; needed: one", at);
    if (token.empty()) continue;
    parts.tokens[at] = bytes ? bytes_of_letters(token) : with_blanks(token);
    numbers.emplace(token, static_cast<std::int32_t>(at));
  }
  return numbers;
}

void add_merge(const Numbers& numbers, const std::string& left, const std::string& right,
               BpeParts& parts, const std::string& source, const std::string& key) {
  const auto number = [&](const std::string& token) {
    const auto it = numbers.find(token);
    if (it == numbers.end())
      refuse(source, key, "merge number {}, '{}' and '{}': the vocabulary has no '{}'",
             parts.merges.size(), shown(left, 40), shown(right, 40), shown(token));
    return it->second;
  };
  parts.merges.push_back({number(left), number(right), number(left + right)});
}

void add_merge(const Numbers& numbers, const std::string& pair, BpeParts& parts,
               const std::string& source, const std::string& key) {
  const std::size_t blank = pair.find(' ');
  if (blank == std::string::npos || pair.find(' ', blank + 1) != std::string::npos)
    refuse(source, key, "merge number {} is '{}'; needed: two tokens and a blank between them",
           parts.merges.size(), shown(pair));
  add_merge(numbers, pair.substr(0, blank), pair.substr(blank + 1), parts, source, key);
}

/// An object of tokenizer.json, whose faults name file and key.
class Part {
 public:
  Part(const json& value, std::string source, std::string key)
      : value_(value), source_(std::move(source)), key_(std::move(key)) {
    if (!value_.is_object())
      refuse(source_, key_, "is {}; needed: an object", shown(value_.dump()));
  }
  const std::string& source() const { return source_; }
  std::string key(const std::string& name) const {
    return key_.empty() ? name : name.empty() ? key_ : key_ + "." + name;
  }
  const json& operator[](const char* name) const {
    static const json null;
    const auto it = value_.find(name);
    return it == value_.end() ? null : *it;
  }
  bool flag(const char* name, bool fallback) const {
    const json& value = (*this)[name];
    if (value.is_null()) return fallback;
    if (!value.is_boolean()) wrong(name, "true or false");
    return value.get<bool>();
  }
  std::string text(const char* name) const {
    if (!(*this)[name].is_string()) wrong(name, "a text");
    return (*this)[name].get<std::string>();
  }
  [[noreturn]] void wrong(const char* name, std::string_view needed) const {
    const json& value = (*this)[name];
    refuse(source_, key(name), "is {}; needed: {}",
           value.is_null() ? "missing" : shown(value.dump()), needed);
  }

 private:
  const json& value_;
  std::string source_, key_;
};

/// Calls use(part) for the parts of a Sequence.
template <class Use>
void each_inner(const Part& part, const char* name, const Use& use) {
  const json& inner = part[name];
  if (!inner.is_array()) part.wrong(name, "a list");
  for (std::size_t k = 0; k < inner.size(); ++k)
    use(Part(inner[k], part.source(), fmt::format("{}[{}]", part.key(name), k)));
}

/// One step of `pre_tokenizer`. Words are divided by it, or they get letters for bytes.
void read_division(const Part& part, BpeParts& parts, bool& letters, int depth) {
  const std::string type = part.text("type");
  if (letters) part.wrong("type", "nothing after ByteLevel");
  if (type == "Sequence") {
    if (depth > 4) part.wrong("pretokenizers", "a list");
    each_inner(part, "pretokenizers",
               [&](const Part& inner) { read_division(inner, parts, letters, depth + 1); });
  } else if (type == "ByteLevel") {
    letters = true;
    if (part.flag("add_prefix_space", true)) {
      if (!parts.divisions.empty()) part.wrong("add_prefix_space", "false after another step");
      parts.prefix = BpeParts::Prefix::kUnlessBlank;
    }
    if (part.flag("use_regex", true)) parts.divisions.push_back({known_pattern("gpt2"), true});
  } else if (type == "Digits") {
    parts.divisions.push_back(
        {part.flag("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)", true});
  } else if (type == "Split") {
    const Part pattern(part["pattern"], part.source(), part.key("pattern"));
    std::string expression;
    if (pattern["String"].is_string()) {
      for (const char c : pattern.text("String")) {
        if (std::string_view(R"(\^$.|?*+()[]{})").find(c) != std::string_view::npos)
          expression += '\\';
        expression += c;
      }
    } else {
      expression = pattern.text("Regex");
    }
    const std::string behavior = part.text("behavior");
    const bool inverted = part.flag("invert", false);
    if (behavior != "Isolated" && !(behavior == "Removed" && inverted))
      part.wrong("behavior", "Isolated, or Removed with invert");
    parts.divisions.push_back({expression, behavior == "Isolated"});
  } else {
    part.wrong("type", "ByteLevel, Split, Digits or a Sequence of these");
  }
}

void read_added(const Part& part, std::size_t at, bool late, BpeParts& parts) {
  BpeParts::Added added{.token = static_cast<std::int32_t>(at),
                        .content = part.text("content"),
                        .left_blanks = part.flag("lstrip", false),
                        .right_blanks = part.flag("rstrip", false),
                        .special = part.flag("special", false),
                        .late = part.flag("normalized", late)};
  if (part.flag("single_word", false)) part.wrong("single_word", "false");
  if (added.content.empty()) part.wrong("content", "a text of one character or more");
  if (at >= parts.tokens.size()) parts.tokens.resize(at + 1);
  parts.tokens[at] = added.content;
  std::erase_if(parts.added, [&](const auto& other) { return other.token == added.token; });
  parts.added.push_back(std::move(added));
}

void read_added(const json& list, BpeParts& parts, const std::string& source) {
  if (list.is_null()) return;
  if (!list.is_array()) refuse(source, "added_tokens", "is no list; needed: a list of objects");
  std::unordered_map<std::string, std::size_t> known;
  for (std::size_t id = 0; !list.empty() && id < parts.tokens.size(); ++id)
    known.emplace(parts.tokens[id], id);
  for (std::size_t k = 0; k < list.size(); ++k) {
    const Part part(list[k], source, fmt::format("added_tokens[{}]", k));
    const json& number = part["id"];
    if (!number.is_number_unsigned() || number >= kMostTokens)
      part.wrong("id", "the token's number");
    read_added(part, number.get<std::size_t>(), true, parts);
    const auto other = known.find(parts.added.back().content);
    if (other != known.end() && other->second != number.get<std::size_t>())
      part.wrong("id", fmt::format("{}, its number in model.vocab", other->second));
  }
}

/// Additional files next to vocab.json and merges.txt: added tokens, and how they are matched.
void read_beside(const std::string& folder, Numbers numbers, BpeParts& parts) {
  const auto find = [&](const char* name) {
    const RegularFile there(folder + name);
    return there.fault().empty() ? parse_json(whole_file(folder + name), folder + name) : json();
  };
  const std::string source = folder + "tokenizer_config.json", list = folder + "added_tokens.json";
  const json config = find("tokenizer_config.json"), added = find("added_tokens.json");
  const json none = json::object();
  const Part settings(config.is_null() ? none : config, source, "");
  const json& type = settings["tokenizer_class"];
  if (type.is_string()) {
    const auto name = type.get<std::string>();
    const auto same = {"GPT2", "Roberta", "Bart", "Longformer", "CodeGen", "PreTrainedTokenizer"};
    if (std::none_of(same.begin(), same.end(), [&](auto one) { return name.starts_with(one); }))
      settings.wrong("tokenizer_class",
                     "GPT2Tokenizer, as vocab.json does not say how others divide texts; give "
                     "their tokenizer.json");
  }
  if (settings.flag("add_prefix_space", false)) settings.wrong("add_prefix_space", "false");
  // Where both are there, transformers takes the first of these
  std::vector<std::pair<std::size_t, json>> tokens;
  const json& decoder = settings["added_tokens_decoder"];
  const bool decodes = decoder.is_object();
  const json& given = decodes ? decoder : added.is_object() ? added : none;
  const std::string& file = decodes ? source : list;
  if (!decodes && !added.is_null() && !added.is_object())
    refuse(list, "", "is no object of tokens and their numbers; needed: one");
  for (const auto& [key, value] : given.items()) {
    const std::string& name = key;
    const json number = decodes ? json::parse(name, nullptr, false) : value;
    if (!number.is_number_unsigned() || number >= kMostTokens)
      refuse(file, shown(name), "has no number; needed: 0 to {}", kMostTokens - 1);
    tokens.emplace_back(number.get<std::size_t>(), decodes ? value : json{{"content", name}});
  }
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [number, value] : tokens) {
    const Part part(value, file, std::to_string(number));
    const std::string content = part.text("content");
    const auto known = numbers.find(content);
    // transformers assigns consecutive numbers, ignoring the file's
    const std::size_t right =
        known != numbers.end() ? static_cast<std::size_t>(known->second) : parts.tokens.size();
    if (number != right)
      refuse(file, shown(content), "has the number {}; needed: {}", number, right);
    read_added(part, number, false, parts);
    numbers.emplace(content, static_cast<std::int32_t>(number));
  }
  const json map = find("special_tokens_map.json");
  for (const auto& [name, specials] :
       {std::pair("special_tokens_map.json", &map), {"tokenizer_config.json", &config}}) {
    if (!specials->is_object()) continue;
    for (const auto& [key, value] : specials->items()) {
      if (!key.ends_with("_token") && key != "additional_special_tokens") continue;
      for (const json& one : value.is_array() ? value : json::array({value})) {
        const json content = one.is_object() ? one.value("content", json()) : one;
        if (!content.is_string() || numbers.contains(content.get<std::string>())) continue;
        refuse(folder + name, key, "'{}' has no number; needed: one in added_tokens.json",
               shown(content.get<std::string>()));
      }
    }
  }
}

/// What texts become before they are divided.
void read_normalizer(const Part& part, bool characters, BpeParts& parts, bool& marks) {
  const std::string type = part.text("type");
  if (type == "Sequence") {
    each_inner(part, "normalizers",
               [&](const Part& inner) { read_normalizer(inner, characters, parts, marks); });
  } else if (type == "NFC" && !characters) {
    parts.composed = true;
  } else if (type == "Prepend" && characters && !marks) {
    if (part["prepend"] != kBlankLetter) part.wrong("prepend", "\"" + kBlankLetter + "\"");
    parts.prefix = BpeParts::Prefix::kAlways;
  } else if (type == "Replace" && characters) {
    if (part["pattern"] != json{{"String", " "}}) part.wrong("pattern", R"({"String": " "})");
    if (part["content"] != kBlankLetter) part.wrong("content", "\"" + kBlankLetter + "\"");
    marks = true;
  } else {
    part.wrong("type", characters ? "Prepend and Replace of SentencePiece's blanks, or none"
                                  : "NFC, or none: texts are taken as they are");
  }
}

/// A model of characters: its single ones, its bytes, and how texts are divided into words.
void read_characters(const Part& whole, const Numbers& numbers, bool marks, BpeParts& parts) {
  for (const auto& [token, number] : numbers) {
    const Decoded first = decode_utf8(token.data());
    if (is_utf8(token) && first.bytes == token.size())
      parts.characters.emplace_back(first.code, number);
  }
  for (std::size_t byte = 0; byte < parts.fallback.size(); ++byte) {
    const std::string name = fmt::format("<0x{:02X}>", byte);
    const auto it = numbers.find(name);
    if (it == numbers.end())
      refuse(whole.source(), "model.byte_fallback",
             "is true, and the vocabulary has no {}; needed: one for each of the 256 bytes", name);
    parts.fallback[byte] = it->second;
    parts.tokens[static_cast<std::size_t>(it->second)] = std::string(1, static_cast<char>(byte));
  }
  bool each = false;  // each blank begins a word
  if (!whole["pre_tokenizer"].is_null()) {
    const Part pre(whole["pre_tokenizer"], whole.source(), "pre_tokenizer");
    if (pre["type"] != "Metaspace") pre.wrong("type", "Metaspace, or none");
    if (pre["replacement"] != kBlankLetter) pre.wrong("replacement", "\"" + kBlankLetter + "\"");
    const json& scheme = pre["prepend_scheme"];
    using Prefix = BpeParts::Prefix;
    if (scheme == "first") {
      parts.prefix = Prefix::kFirstUnlessBlank;
    } else if (scheme == "always" || (scheme.is_null() && pre.flag("add_prefix_space", true))) {
      parts.prefix = Prefix::kUnlessBlank;
    } else if (!scheme.is_null() && scheme != "never") {
      pre.wrong("prepend_scheme", "first, always or never");
    }
    marks = true;
    each = pre.flag("split", true);
  }
  if (!marks)
    refuse(whole.source(), "normalizer", "writes no blanks as {}; needed: Replace, or Metaspace",
           kBlankLetter);
  // A word begins at its blanks, unless some token goes on over them
  const bool crosses = std::any_of(numbers.begin(), numbers.end(), [](const auto& entry) {
    const std::size_t letter = entry.first.find_first_not_of(kBlankLetter);
    return letter != std::string::npos &&
           entry.first.find(kBlankLetter, letter) != std::string::npos;
  });
  if (each) {
    parts.divisions.push_back(
        {"[ " + kBlankLetter + "][^ " + kBlankLetter + "]*|[^ " + kBlankLetter + "]+", true});
  } else if (!crosses) {
    parts.divisions.push_back(
        {"[ " + kBlankLetter + "]*[^ " + kBlankLetter + "]+|[ " + kBlankLetter + "]+", true});
  }
}

BpeParts read_huggingface(const json& root, const std::string& source) {
  BpeParts parts;
  const Part whole(root, source, "");
  const Part model(whole["model"], source, "model");
  // Older files of BPE do not say the type
  if (!model["type"].is_null() && model["type"] != "BPE")
    model.wrong("type", "BPE, such as GPT-2's and Llama's");
  const bool characters = model.flag("byte_fallback", false);
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model[key].is_null() && model[key] != json("")) model.wrong(key, "nothing");
  }
  if (!model["dropout"].is_null() && model["dropout"] != 0.0) model.wrong("dropout", "nothing");
  parts.whole_words = model.flag("ignore_merges", false);
  if (characters && parts.whole_words)
    model.wrong("ignore_merges", "false beside byte_fallback true");
  const Numbers numbers = read_vocab(model["vocab"], parts, source, "model.vocab", !characters);
  const json& merges = model["merges"];
  if (!merges.is_array()) model.wrong("merges", "a list");
  for (const json& merge : merges) {
    if (merge.is_string()) {
      add_merge(numbers, merge.get<std::string>(), parts, source, "model.merges");
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      add_merge(numbers, merge[0].get<std::string>(), merge[1].get<std::string>(), parts, source,
                "model.merges");
    } else {
      refuse(source, "model.merges", "merge number {} is {}; needed: two tokens",
             parts.merges.size(), shown(merge.dump()));
    }
  }
  bool marks = false;
  if (!whole["normalizer"].is_null())
    read_normalizer({whole["normalizer"], source, "normalizer"}, characters, parts, marks);
  if (characters) {
    read_characters(whole, numbers, marks, parts);
    read_added(whole["added_tokens"], parts, source);
    for (std::size_t k = 0; k < parts.added.size(); ++k) {
      if (parts.added[k].late)
        refuse(source, fmt::format("added_tokens[{}].normalized", k),
               "is true; needed: false beside byte_fallback true");
    }
    return parts;
  }
  bool letters = false;
  if (whole["pre_tokenizer"].is_null())
    refuse(source, "pre_tokenizer", "is missing; needed: ByteLevel, or a Sequence that ends so");
  read_division({whole["pre_tokenizer"], source, "pre_tokenizer"}, parts, letters, 0);
  if (!letters) refuse(source, "pre_tokenizer", "has no ByteLevel; needed: a tokenizer of bytes");
  read_added(whole["added_tokens"], parts, source);
  return parts;
}

/// GPT-2's two files. Tokens that are no byte and that no merge makes are special ones.
BpeParts read_vocab_and_merges(const json& vocab, const std::string& path) {
  BpeParts parts;
  const Numbers numbers = read_vocab(vocab, parts, path, "");
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1),
                    name = path.substr(folder.size());
  const std::string merges_path = folder + (name == "encoder.json" ? "vocab.bpe" : "merges.txt");
  const RegularFile there(merges_path);
  if (!there.fault().empty())
    refuse(path, "", "is a vocabulary, and {} beside it cannot be opened ({}); needed: both",
           shown(merges_path), there.fault());
  each_line(whole_file(merges_path), [&](std::string_view pair, std::size_t line) {
    if (line > 1 || !pair.starts_with("#version"))
      add_merge(numbers, std::string(pair), parts, merges_path, fmt::format("line {}", line));
  });
  std::vector<bool> made(parts.tokens.size());
  for (const BpeParts::Merge& merge : parts.merges)
    made[static_cast<std::size_t>(merge.result)] = true;
  for (std::size_t t = 0; t < made.size(); ++t) {
    if (made[t] || parts.tokens[t].size() < 2) continue;
    parts.added.push_back({.token = static_cast<std::int32_t>(t), .content = parts.tokens[t]});
  }
  parts.divisions.push_back({known_pattern("gpt2"), true});
  read_beside(folder, numbers, parts);
  return parts;
}

/// The bytes of base64; empty where it is none.
std::string base64_bytes(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::size_t value = kDigits.find(c);
    if (value == kDigits.npos) return {};
    bits = (bits << 6 | static_cast<std::uint32_t>(value)) & 0xffff;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xff);
  }
  return bytes;
}

/// Special tokens of OpenAI's encodings, which rank files do not have, by how many ranks these do.
struct Special {
  std::size_t ranks;
  std::int32_t token;
  const char* content;
};
constexpr std::array kSpecials = {
    Special{50256, 50256, "<|endoftext|>"},    Special{100256, 100257, "<|endoftext|>"},
    Special{100256, 100258, "<|fim_prefix|>"}, Special{100256, 100259, "<|fim_middle|>"},
    Special{100256, 100260, "<|fim_suffix|>"}, Special{100256, 100276, "<|endofprompt|>"},
    Special{199998, 199999, "<|endoftext|>"},  Special{199998, 200018, "<|endofprompt|>"}};

BpeParts read_ranks(std::string_view text, const std::string& source, const std::string& pattern) {
  BpeParts parts;
  parts.ranked_by_result = parts.whole_words = true;
  std::unordered_map<std::string_view, std::int32_t> numbers;
  std::size_t count = 0;
  each_line(text, [&](std::string_view pair, std::size_t line) {
    const std::size_t blank = std::min(pair.find(' '), pair.size());
    const std::string bytes = base64_bytes(pair.substr(0, blank));
    std::int64_t rank = blank + 1 < pair.size() ? 0 : -1;
    for (const char c : pair.substr(std::min(blank + 1, pair.size()))) {
      rank = rank < 0 || rank >= kMostTokens || c < '0' || c > '9' ? -1 : 10 * rank + (c - '0');
      if (rank < 0) break;
    }
    if (bytes.empty() || rank < 0 || rank >= kMostTokens)
      refuse(source, fmt::format("line {}", line),
             "is '{}'; needed: a token in base64, a blank and its rank, or tokenizer.json",
             shown(pair));
    const auto place = static_cast<std::size_t>(rank);
    if (place >= parts.tokens.size()) parts.tokens.resize(place + 1);
    if (!parts.tokens[place].empty())
      refuse(source, fmt::format("line {}", line), "has a second token of rank {}", rank);
    parts.tokens[place] = bytes;
    ++count;
  });
  for (std::size_t t = 0; t < parts.tokens.size(); ++t) {
    const std::string& bytes = parts.tokens[t];
    if (bytes.empty()) continue;
    if (!numbers.emplace(bytes, static_cast<std::int32_t>(t)).second)
      refuse(source, "", "has one token twice, as rank {} and {}", numbers[bytes], t);
  }
  // All ways in which a token can come about of two
  for (std::size_t t = 0; t < parts.tokens.size(); ++t) {
    const std::string_view bytes = parts.tokens[t];
    const std::size_t first = parts.merges.size();
    for (std::size_t left = 1; left < bytes.size(); ++left) {
      const auto a = numbers.find(bytes.substr(0, left)), b = numbers.find(bytes.substr(left));
      if (a != numbers.end() && b != numbers.end())
        parts.merges.push_back({a->second, b->second, static_cast<std::int32_t>(t)});
    }
    std::sort(parts.merges.begin() + static_cast<std::ptrdiff_t>(first), parts.merges.end(),
              [](const auto& a, const auto& b) {
                return std::pair(a.left, a.right) < std::pair(b.left, b.right);
              });
  }
  for (const Special& special : kSpecials) {
    if (special.ranks != count || parts.tokens.size() != count) continue;
    parts.added.push_back({.token = special.token, .content = special.content});
  }
  for (const BpeParts::Added& added : parts.added) {
    const auto place = static_cast<std::size_t>(added.token);
    if (place >= parts.tokens.size()) parts.tokens.resize(place + 1);
    parts.tokens[place] = added.content;
  }
  parts.divisions.push_back({known_pattern(pattern), false});
  return parts;
}

/// The pattern of OpenAI's rank files by their names.
std::string pattern_of_name(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  for (const KnownPattern& known : known_patterns()) {
    for (const std::string& begin : known.files) {
      if (name.starts_with(begin)) return known.name;
    }
  }
  return {};
}

/// transformers adds tokens of tokenizer_config.json that tokenizer.json lacks; here they would be
/// text.
void check_tokens_beside(const Tokenizer& tokenizer, const std::string& path) {
  const std::string source = path.substr(0, path.rfind('/') + 1) + "tokenizer_config.json";
  if (!RegularFile(source).fault().empty()) return;
  const json config = parse_json(whole_file(source), source);
  const Part settings(config, source, "");
  const auto lacks = [&](const json& token) {
    const json text = token.is_object() ? token.value("content", json()) : token;
    if (!text.is_string()) return;
    std::vector<std::int32_t> tokens;
    tokenizer.encode(text.get_ref<const std::string&>(), tokens);
    if (tokens.size() > 1)
      refuse(source, "",
             "has the token {}, which {} lacks, so that it would be text; needed: both by one call "
             "of transformers' save_pretrained",
             shown(text.dump(), 60), path);
  };
  if (const json& decoder = settings["added_tokens_decoder"]; decoder.is_object()) {
    for (const auto& [number, token] : decoder.items())
      if (std::atoll(number.c_str()) >= tokenizer.vocab()) lacks(token);
  }
  if (const json& special = settings["additional_special_tokens"]; special.is_array())
    for (const json& token : special) lacks(token);
}

/// Of tokenizer.json, or if `vocab` is true perhaps of vocab.json.
std::shared_ptr<const Tokenizer> parse_json_text(std::string_view text, const std::string& source,
                                                 bool vocab) {
  const json root = parse_json(text, source);
  if (vocab && !(root.is_object() && root.value("model", json()).is_object()))
    return make_bpe(read_vocab_and_merges(root, source), source);
  BpeParts parts = read_huggingface(root, source);
  parts.huggingface = text;
  auto tokenizer = make_bpe(std::move(parts), source);
  if (vocab) check_tokens_beside(*tokenizer, source);
  return tokenizer;
}

class Bytes final : public Tokenizer {
 public:
  Bytes() {
    for (std::size_t byte = 0; byte < all_.size(); ++byte) all_[byte] = static_cast<char>(byte);
  }
  std::int64_t vocab() const override { return 256; }
  void encode(std::string_view text, std::vector<std::int32_t>& tokens) const override {
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  }
  void encode_plain(std::string_view text, std::vector<std::int32_t>& tokens) const override {
    encode(text, tokens);
  }
  void encode(std::string_view text, const Loop&, const Sink& sink) const override {
    constexpr std::size_t kPart = 1 << 16;
    std::vector<std::int32_t> tokens;
    for (std::size_t at = 0; at < text.size(); at += kPart) {
      tokens.clear();
      encode(text.substr(at, kPart), tokens);
      sink(tokens, tokens.size());
    }
  }
  std::string_view bytes_of(std::int32_t token) const override {
    const auto at = static_cast<std::size_t>(token);
    return at < all_.size() ? std::string_view(&all_[at], 1) : std::string_view();
  }
  std::string text() const override { return "bytes"; }
  std::string huggingface() const override {
    BpeParts parts;
    for (const char byte : all_) parts.tokens.emplace_back(1, byte);
    return huggingface_text(parts);
  }

 private:
  std::array<char, 256> all_{};
};

}  // namespace

std::shared_ptr<const Tokenizer> Tokenizer::bytes() { return std::make_shared<Bytes>(); }

std::string Tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) text += bytes_of(token);
  return text;
}

bool agree(const Tokenizer& a, const Tokenizer& b) {
  bool same = true;
  for (std::int32_t token = 0; same && token < std::min(a.vocab(), b.vocab()); ++token)
    same = a.bytes_of(token) == b.bytes_of(token);
  return same;
}

std::shared_ptr<const Tokenizer> Tokenizer::parse(std::string_view text,
                                                  const std::string& source) {
  return text == "bytes" ? bytes() : parse_json_text(text, source, false);
}

std::shared_ptr<const Tokenizer> Tokenizer::read(const std::string& path,
                                                 const std::string& pattern) {
  if (path == "bytes") return bytes();
  const std::string text = whole_file(path);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) refuse(path, "", "is empty; needed: a tokenizer");
  if (text[first] == '{') {
    if (!pattern.empty())
      refuse(path, "", "is JSON, which says its pattern itself; leave out --pattern");
    return parse_json_text(text, path, true);
  }
  if (path.ends_with(".model"))
    refuse(path, "", "is SentencePiece's; needed: tokenizer.json, as transformers writes it");
  const std::string name = pattern.empty() ? pattern_of_name(path) : pattern;
  if (name.empty()) {
    read_ranks(text, path, "gpt2");  // names a line that is no rank, if there is one
    refuse(path, "",
           "is a file of ranks, which does not say how texts are divided; give --pattern {} to "
           "starling-prepare tokens",
           either(pattern_names()));
  }
  if (known_pattern(name).empty())
    refuse(path, "", "pattern '{}' is not known; known: {}", shown(name),
           fmt::join(pattern_names(), ", "));
  return make_bpe(read_ranks(text, path, name), path);
}

std::string huggingface_text(const BpeParts& parts) {
  using Json = nlohmann::ordered_json;
  const auto byte_level = [](bool divides) {
    return Json{{"type", "ByteLevel"},
                {"add_prefix_space", false},
                {"trim_offsets", true},
                {"use_regex", divides}};
  };
  Json added = Json::array(), vocab = Json::object(), merges = Json::array();
  std::vector<std::string> names;
  for (const std::string& token : parts.tokens) names.push_back(letters_of_bytes(token));
  for (const BpeParts::Added& token : parts.added) {
    names[static_cast<std::size_t>(token.token)] = token.content;
    added.push_back({{"id", token.token},
                     {"content", token.content},
                     {"single_word", false},
                     {"lstrip", token.left_blanks},
                     {"rstrip", token.right_blanks},
                     {"normalized", token.late},
                     {"special", token.special}});
  }
  for (std::size_t t = 0; t < names.size(); ++t) {
    if (!names[t].empty()) vocab[names[t]] = t;
  }
  for (const BpeParts::Merge& merge : parts.merges)
    merges.push_back(names[static_cast<std::size_t>(merge.left)] + " " +
                     names[static_cast<std::size_t>(merge.right)]);
  Json division = byte_level(!parts.divisions.empty());
  if (!parts.divisions.empty() && parts.divisions[0].pattern != known_pattern("gpt2")) {
    division = {{"type", "Sequence"},
                {"pretokenizers",
                 {{{"type", "Split"},
                   {"pattern", {{"Regex", parts.divisions[0].pattern}}},
                   {"behavior", "Isolated"},
                   {"invert", false}},
                  byte_level(false)}}};
  }
  return Json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", std::move(added)},
              {"normalizer", nullptr},
              {"pre_tokenizer", std::move(division)},
              {"post_processor", nullptr},
              {"decoder", byte_level(true)},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", parts.whole_words},
                {"vocab", std::move(vocab)},
                {"merges", std::move(merges)}}}}
      .dump(1);
}

const std::string& letter_of_byte(unsigned char byte) {
  static const std::array<std::string, 256> letters = [] {
    std::array<std::string, 256> all;
    std::uint32_t others = 256;
    for (std::uint32_t code = 0; code < 256; ++code) {
      const bool seen =
          (code >= '!' && code <= '~') || (code >= 0xa1 && code <= 0xac) || code >= 0xae;
      append_utf8(all[code], seen ? code : others++);
    }
    return all;
  }();
  return letters[byte];
}

std::string letters_of_bytes(std::string_view bytes) {
  std::string letters;
  for (const char byte : bytes) letters += letter_of_byte(static_cast<unsigned char>(byte));
  return letters;
}

std::string bytes_of_letters(std::string_view letters) {
  static const auto bytes = [] {
    std::unordered_map<std::uint32_t, char> all;
    for (int byte = 0; byte < 256; ++byte)
      all[decode_utf8(letter_of_byte(static_cast<unsigned char>(byte)).data()).code] =
          static_cast<char>(byte);
    return all;
  }();
  std::string result;
  for (std::size_t at = 0; at < letters.size();) {
    const Decoded decoded = decode_utf8(letters.data() + at);
    const auto it = bytes.find(decoded.code);
    if (it == bytes.end()) return std::string(letters);
    result += it->second;
    at += decoded.bytes;
  }
  return result;
}

}  // namespace starling
