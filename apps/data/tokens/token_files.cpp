#include "apps/data/tokens/token_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <span>
#include <utility>

#include "core/config.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {
namespace {

template <class T>
std::int64_t read_tokens(const std::uint8_t* from, std::int64_t count, std::int64_t vocab,
                         std::int32_t* out) {
  std::int64_t wrong = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    T token = 0;
    std::memcpy(&token, from + static_cast<std::size_t>(i) * sizeof token, sizeof token);
    if (wrong < 0 && token >= vocab) wrong = i;
    out[i] = static_cast<std::int32_t>(token);
  }
  return wrong;
}

/// The header of llm.c's files: 256 32-bit integers, of which the third is the number of tokens.
struct LlmcHeader {
  std::uint32_t magic, version;
  int width;
};
constexpr std::array kLlmcHeaders = {LlmcHeader{20240520, 1, 2}, LlmcHeader{20240801, 7, 4}};
constexpr std::size_t kLlmcHeaderBytes = 1024;

std::uint32_t word(std::span<const std::uint8_t> bytes, std::size_t at) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data() + at * sizeof value, sizeof value);
  return value;
}

/// Whether the bytes are integers of type T in [0, vocab).
template <class T>
bool are_numbers(std::span<const std::uint8_t> bytes, std::int64_t vocab) {
  constexpr std::size_t kLeast = 8;
  const std::size_t count = bytes.size() / sizeof(T);
  bool any = false;
  for (std::size_t i = 0; i < count; ++i) {
    T number{};
    std::memcpy(&number, bytes.data() + i * sizeof number, sizeof number);
    if (!(number >= T{0} && static_cast<double>(number) < static_cast<double>(vocab)) ||
        static_cast<double>(number) != std::floor(static_cast<double>(number)))
      return false;
    any = any || number != T{0};
  }
  return any && count >= kLeast;
}

/// Detects data of another type, by patterns that tokens of `width` bytes cannot have; empty: none.
std::string other_type(std::span<const std::uint8_t> bytes, std::int64_t vocab, int width) {
  if (are_numbers<double>(bytes, vocab)) return "64-bit floating-point numbers";
  if (are_numbers<std::uint64_t>(bytes, vocab)) return "64-bit integers";
  if (are_numbers<float>(bytes, vocab)) return "32-bit floating-point numbers";
  if (width < 4 && are_numbers<std::uint32_t>(bytes, vocab)) return "32-bit integers";
  const bool letters = bytes.size() >= 64 && std::all_of(bytes.begin(), bytes.end(), [](auto c) {
                         return (c >= ' ' && c < 0x7f) || c == '\n' || c == '\r' || c == '\t';
                       });
  return letters ? "a text" : "";
}

/// File signatures of formats other than plain numbers.
struct Beginning {
  std::string_view bytes, what;
};
constexpr std::array kBeginnings = {
    Beginning{"\x93NUMPY",
              "numpy's .npy; needed: the numbers alone, as array.tofile() writes them"},
    Beginning{"\x1f\x8b\x08", "packed by gzip; unpack it: gunzip"},
    Beginning{"\x28\xb5\x2f\xfd", "packed by zstd; unpack it: zstd -d"},
    Beginning{"PK\x03\x04", "a zip archive, as .npz and .pt are; needed: numbers alone"},
    Beginning{"PAR1", "Parquet; needed: numbers alone"}};

}  // namespace

std::uint32_t TokenSpan::operator[](std::int64_t at) const {
  std::uint32_t token = 0;
  std::memcpy(&token, data + at * width, static_cast<std::size_t>(width));
  return token;
}

std::int64_t TokenSpan::read(std::int64_t begin, std::int64_t many, std::int64_t vocab,
                             std::int32_t* out) const {
  const std::uint8_t* const from = data + begin * width;
  if (width == 1) return read_tokens<std::uint8_t>(from, many, vocab, out);
  if (width == 2) return read_tokens<std::uint16_t>(from, many, vocab, out);
  return read_tokens<std::uint32_t>(from, many, vocab, out);
}

std::string TokenMeta::text() const {
  return nlohmann::ordered_json{{"vocab", vocab},
                                {"tokenizer", tokenizer},
                                {"dtype", width == 2 ? "uint16" : "uint32"},
                                {"train_tokens", train_tokens},
                                {"val_tokens", val_tokens},
                                {"checksums", checksums}}
             .dump(2) +
         "\n";
}

TokenMeta TokenMeta::parse(std::string_view text, const std::string& source) {
  const nlohmann::json json = parse_json(text, source);
  const auto value = [&](const char* key, const char* needed, const auto& fits) {
    const nlohmann::json found = json.is_object() ? json.value(key, nlohmann::json()) : nullptr;
    if (!fits(found))
      fail(ExitCode::kUsage, "data", {.file = source, .key = key}, "{}; needed: {}",
           found.is_null() ? "is missing" : "is " + shown(found.dump()), needed);
    return found;
  };
  const auto number = [&](const char* key, std::int64_t least, std::int64_t most,
                          const char* needed) {
    const auto fits = [&](const nlohmann::json& found) {
      return found.is_number_unsigned() && found >= least && found <= most;
    };
    return value(key, needed, fits).template get<std::int64_t>();
  };
  constexpr std::int64_t kMost = std::int64_t{1} << 48;
  TokenMeta meta;
  meta.vocab = number("vocab", 1, std::int64_t{1} << 31, "how many tokens there are");
  meta.train_tokens = number("train_tokens", 0, kMost, "how many tokens train.bin has");
  meta.val_tokens = number("val_tokens", 0, kMost, "how many tokens val.bin has");
  const auto is_type = [](const auto& found) { return found == "uint16" || found == "uint32"; };
  meta.width = value("dtype", "uint16 or uint32", is_type) == "uint16" ? 2 : 4;
  const auto is_name = [](const auto& found) {
    return found.is_string() && found != "" &&
           found.template get<std::string>().find('/') == std::string::npos;
  };
  meta.tokenizer = value("tokenizer", "bytes, or the name of a file beside this one", is_name)
                       .get<std::string>();
  const auto are_texts = [](const auto& found) {
    return found.is_object() &&
           std::all_of(found.begin(), found.end(), [](const auto& one) { return one.is_string(); });
  };
  meta.checksums = value("checksums", "an object with a text for each file", are_texts)
                       .get<std::map<std::string, std::string>>();
  return meta;
}

std::optional<TokenMeta> TokenMeta::find(const std::string& folder) {
  const std::string path = folder + "/meta.json";
  if (!file_exists(path)) return std::nullopt;
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (bytes.size() > 1 << 20)
    fail(ExitCode::kUsage, "data", {.file = path}, "has {} bytes; needed: at most 1 MiB",
         bytes.size());
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

TokenFile::TokenFile(const std::string& path, std::int64_t vocab, int width)
    : map_(path, MappedFile::Pages::kNamed) {
  std::span<const std::uint8_t> bytes = map_.bytes();
  const auto refuse = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fail(ExitCode::kUsage, "data", {.file = path}, format, std::forward<Args>(args)...);
  };
  if (bytes.empty()) refuse("is empty; needed: tokens");
  map_.bring(0, std::min(bytes.size(), kLlmcHeaderBytes));
  for (const Beginning& beginning : kBeginnings) {
    if (std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())
            .starts_with(beginning.bytes))
      refuse("is {}", beginning.what);
  }
  std::optional<std::uint32_t> count;
  for (const LlmcHeader& header : kLlmcHeaders) {
    if (bytes.size() < 3 * sizeof(std::uint32_t) || word(bytes, 0) != header.magic) continue;
    if (word(bytes, 1) != header.version)
      refuse("has the header of llm.c's files (magic {}) with version {}; needed: version {}",
             header.magic, word(bytes, 1), header.version);
    if (bytes.size() < kLlmcHeaderBytes)
      refuse("ends after {} bytes, within llm.c's header of {}; fetch the file again", bytes.size(),
             kLlmcHeaderBytes);
    if (width != 0 && width != header.width)
      refuse("has llm.c's header of tokens of {} bytes, meta.json says {}; delete meta.json",
             header.width, width);
    count = word(bytes, 2);
    width = header.width;
    bytes = bytes.subspan(kLlmcHeaderBytes);
    break;
  }
  assumed_ = width == 0;
  if (assumed_) width = vocab > 65536 ? 4 : 2;
  if (bytes.size() % static_cast<std::size_t>(width) != 0)
    refuse(
        "has {} bytes of tokens, which is no multiple of {}, the bytes of a uint{}; is it cut "
        "short?",
        bytes.size(), width, 8 * width);
  tokens_ = {bytes.data(), width,
             static_cast<std::int64_t>(bytes.size() / static_cast<std::size_t>(width))};
  if (count && tokens_.count != *count)
    refuse("its header says {} tokens, {} follow; fetch the file again", *count, tokens_.count);
}

void TokenFile::check(std::int64_t vocab, std::int64_t most, std::string_view whose) const {
  std::vector<std::int32_t> read(1 << 16);
  most = std::min(most, tokens_.count);
  const auto room = std::ssize(read);
  for (std::int64_t at = 0; at < most; at += room) {
    const std::int64_t count = std::min(room, most - at);
    map_.bring(static_cast<std::size_t>(tokens_.data - map_.bytes().data() + at * tokens_.width),
               static_cast<std::size_t>(count * tokens_.width));
    const std::int64_t wrong = tokens_.read(at, count, vocab, read.data());
    const std::span first{tokens_.data, static_cast<std::size_t>(count * tokens_.width)};
    if (at == 0 && assumed_) {
      const std::string type = other_type(first, vocab, tokens_.width);
      if (!type.empty())
        fail(ExitCode::kUsage, "data", {.file = map_.path()},
             "looks like {}; needed: uint{}, as array.astype(\"uint{}\").tofile() writes them, or "
             "the folder that starling-prepare tokens makes",
             type, 8 * tokens_.width, 8 * tokens_.width);
      if (wrong >= 0 && wrong < 4 && tokens_.width == 4 && are_numbers<std::uint16_t>(first, vocab))
        fail(ExitCode::kUsage, "data", {.file = map_.path()},
             "looks like uint16, and above 65536 tokens ({} has {}) a file is of uint32; write it "
             "so, or give the vocabulary that it was made with",
             whose, vocab);
    }
    if (wrong >= 0) refuse_token(map_.path(), at + wrong, tokens_[at + wrong], vocab, whose);
  }
}

void refuse_token(const std::string& path, std::int64_t place, std::uint32_t token,
                  std::int64_t vocab, std::string_view whose) {
  fail(ExitCode::kUsage, "data", {.file = path},
       "token number {} is {}, {} has 0 to {}; give the vocabulary that it was made with", place,
       token, whose, vocab - 1);
}

std::vector<std::string> token_files(const std::vector<std::string>& paths) {
  const auto is_token_file = [](const std::filesystem::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    std::error_code error;
    if (name.starts_with(".") || !name.ends_with(".bin") || entry.is_directory(error)) return false;
    const auto beside = [&](const char* other) {
      return file_exists(entry.path().parent_path() / other);
    };
    return name == "train.bin" || name == "val.bin" || !beside("train.bin") ||
           (!beside("val.bin") && is_named_for_tests(name));
  };
  return files_of(paths, is_token_file, "it has no train.bin, nor other files of tokens (*.bin)");
}

bool is_named_for_tests(const std::string& path) {
  static const std::regex word("(^|[^a-z])(val|valid|validation|eval|test)([^a-z]|$)",
                               std::regex::icase);
  return std::regex_search(std::filesystem::path(path).stem().string(), word);
}

void append_tokens(std::span<const std::int32_t> tokens, int width,
                   std::vector<std::uint8_t>& bytes) {
  for (const std::int32_t token : tokens) {
    for (int byte = 0; byte < width; ++byte)
      bytes.push_back(static_cast<std::uint8_t>(token >> 8 * byte));
  }
}

}  // namespace starling
