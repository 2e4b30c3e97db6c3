#include "apps/data/tokens/texts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/text/chat.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/text.h"

namespace starling {

namespace fs = std::filesystem;

namespace {

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

/// Whether a folder is a training run's output: it has config.json and files that only training
/// writes.
bool is_run(const fs::path& folder) {
  return is_there(folder / "config.json") &&
         (is_there(folder / "metrics.jsonl") || is_there(folder / ".lock") ||
          is_there(folder / "checkpoints"));
}

/// Whether a file was written by `starling-prepare tokens`.
bool is_of_tokens(const fs::path& file) {
  const std::string name = file.filename().string();
  return (name == "train.bin" || name == "val.bin" || name == "meta.json" ||
          name == "tokenizer.json") &&
         is_there(file.parent_path() / "meta.json") && is_there(file.parent_path() / "train.bin");
}

bool is_one_of(const fs::path& file, const std::vector<std::string>& others) {
  return std::any_of(others.begin(), others.end(), [&](const std::string& other) {
    std::error_code error;
    return fs::equivalent(file, other, error) ||
           fs::weakly_canonical(file, error) == fs::weakly_canonical(other, error);
  });
}

std::string text_of_line(std::string_view line, const std::string& field, const std::string& path,
                         std::int64_t number) {
  const auto refuse = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fail(ExitCode::kUsage, "data",
         {.file = shown(path, 200), .key = fmt::format("line {}", number)}, format,
         std::forward<Args>(args)...);
  };
  // Skips the contents of other fields, however long they are
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(line, [&](int depth, auto event, const nlohmann::json& parsed) {
      return event != nlohmann::json::parse_event_t::key || depth > 1 || parsed == field;
    });
  } catch (const nlohmann::json::parse_error& error) {
    refuse("{}; needed: an object with the field {}", no_json(line, error.byte), field);
  } catch (const nlohmann::json::exception&) {
    refuse("{}; needed: an object with the field {}", no_json(line, 0), field);
  }
  const auto it = json.is_object() ? json.find(field) : json.end();
  if (!json.is_object() || it == json.end())
    refuse("has no field {}: '{}'; give the name of the text's field", shown(field),
           shown(line, 60));
  if (!it->is_string())
    refuse("field {} is {}; needed: a text", shown(field), shown(it->dump(), 60));
  return it->get<std::string>();
}

/// Checks the encoding of a text. Error(kUsage) for UTF-16 and UTF-32. Returns a warning if it has
/// a null byte, as binary files have, or invalid UTF-8, which is read as U+FFFD; otherwise empty.
std::string note_on_encoding(const std::string& path, std::string_view text) {
  for (const std::string_view mark : {"\xFF\xFE", "\xFE\xFF"}) {
    if (!text.starts_with(mark)) continue;
    fail(ExitCode::kUsage, "data", {.file = shown(path, 200)},
         "is UTF-16 or UTF-32; needed: UTF-8, as by iconv -f UTF-16 -t UTF-8");
  }
  if (const std::size_t zero = text.find('\0'); zero != text.npos)
    return fmt::format("{}: byte {} is 0, which texts do not have; is it a file of another kind?",
                       shown(path, 200), zero);
  const std::size_t valid = valid_utf8(text);
  if (valid == text.size()) return {};
  return fmt::format("{}: byte {} is not UTF-8; such bytes become U+FFFD", shown(path, 200), valid);
}

std::string_view text_of(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::vector<std::string> text_files(const std::vector<std::string>& paths,
                                    const std::vector<std::string>& others) {
  for (const std::string& path : paths) {
    if (file_exists(path) && is_one_of(path, others))
      fail(ExitCode::kUsage, "data",
           "{} is given as a text and for something else, which would overwrite it or is no text; "
           "needed: another file",
           shown(path, 200));
  }
  const auto is_text = [&](const fs::directory_entry& entry) {
    std::error_code error;
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".")) return false;
    if (entry.is_directory(error)) return !is_run(entry.path());
    return !is_temporary_name(name) && !is_of_tokens(entry.path()) &&
           !is_one_of(entry.path(), others);
  };
  return files_of(paths, is_text, "it has no files; needed: a text");
}

void refuse_empty(const std::vector<std::string>& files) {
  fail(ExitCode::kUsage, "data", {.file = shown(files[0], 200)}, "is empty{}; needed: a text",
       files.size() > 1 ? ", and so are all others" : "");
}

std::int32_t separator_token(const Tokenizer& tokenizer, const std::string& separator) {
  std::vector<std::int32_t> tokens;
  tokenizer.encode(separator, tokens);
  if (tokens.size() != 1)
    fail(ExitCode::kUsage, "data",
         "the separator '{}' is {} of this tokenizer ({}); needed: one, such as <|endoftext|> "
         "where it has that",
         shown(separator), counted(std::ssize(tokens), "token"),
         shown(fmt::format("{}", fmt::join(tokens, " "))));
  return tokens[0];
}

std::string TextCount::text() const {
  return empty == 0 ? ""
                    : fmt::format("; {} {} left out", counted(empty, "empty text"),
                                  empty == 1 ? "is" : "are");
}

void each_lines(const std::string& path,
                const std::function<void(std::span<const TextLine>)>& use) {
  PackedFile file(path);
  constexpr std::uint64_t kBlock = 8 << 20;
  std::string lines;  // complete lines, and the beginning of the next
  for (std::int64_t number = 1;;) {
    const std::vector<std::uint8_t> block = file.read(kBlock);
    lines.append(block.begin(), block.end());
    const bool last = block.size() < kBlock;
    const std::size_t end = last ? lines.size() : lines.rfind('\n') + 1;
    std::vector<TextLine> found;
    for (std::size_t at = 0; at < end; ++number) {
      const std::size_t to = std::min(lines.find('\n', at), end);
      const std::string_view line = std::string_view(lines).substr(at, to - at);
      if (line.find_first_not_of(" \t\r") != line.npos) found.push_back({line, number});
      at = to + 1;
    }
    use(found);
    if (last) return;
    lines.erase(0, end);
  }
}

void each_texts(const std::string& path, const std::string& field, Workers& workers,
                TextCount& count, const std::function<void(const std::string&)>& note,
                const std::function<void(Texts)>& use) {
  const auto give = [&](std::vector<std::string_view> texts) {
    count.texts += std::ssize(texts);
    count.empty += std::erase(texts, std::string_view());
    for (const std::string_view text : texts) count.bytes += std::ssize(text);
    use(texts);
  };
  if (field.empty()) {
    PackedFile file(path);
    const MappedFile map(path, MappedFile::Pages::kInOrder);
    std::vector<std::uint8_t> unpacked;
    if (file.packed()) unpacked = file.read(std::numeric_limits<std::uint64_t>::max());
    const std::string_view text = text_of(file.packed() ? unpacked : map.bytes());
    if (const std::string told = note_on_encoding(path, text); !told.empty()) note(told);
    if (path.find(".jsonl") != path.npos && text.starts_with("{"))
      note(
          fmt::format("{}: is used as it is, including the JSON syntax; to use only its texts, "
                      "name their field",
                      shown(path, 200)));
    return give({text});
  }
  each_lines(path, [&](std::span<const TextLine> found) {
    std::vector<std::string> texts(found.size());
    constexpr std::int64_t kAtOnce = 64;
    const auto lines_found = std::ssize(found);
    workers.run((lines_found + kAtOnce - 1) / kAtOnce, [&](std::int64_t item, int) {
      for (std::int64_t k = item * kAtOnce; k < std::min((item + 1) * kAtOnce, lines_found); ++k) {
        const auto at = static_cast<std::size_t>(k);
        texts[at] = text_of_line(found[at].text, field, path, found[at].number);
      }
    });
    give({texts.begin(), texts.end()});
  });
}

void encode_texts(const Tokenizer& tokenizer, Texts texts, std::int32_t separator, Workers& workers,
                  const Tokenizer::Sink& sink) {
  const auto separate = [&](const Tokenizer::Sink& to) {
    if (separator >= 0) to(std::span(&separator, 1), 0);
  };
  if (texts.size() == 1) {
    tokenizer.encode(texts[0], loop_of(workers), sink);
    return separate(sink);
  }
  constexpr std::size_t kGroup = std::size_t{1} << 18;
  struct Group {
    std::size_t begin, end, bytes;
    std::vector<std::int32_t> tokens = {};
  };
  std::vector<Group> groups;
  for (std::size_t k = 0; k < texts.size(); ++k) {
    if (groups.empty() || groups.back().bytes > kGroup) groups.push_back({k, k, 0});
    groups.back().end = k + 1;
    groups.back().bytes += texts[k].size();
  }
  workers.run(std::ssize(groups), [&](std::int64_t item, int) {
    Group& group = groups[static_cast<std::size_t>(item)];
    for (std::size_t k = group.begin; k < group.end; ++k) {
      tokenizer.encode(texts[k], group.tokens);
      separate([&](std::span<const std::int32_t> token, std::size_t) {
        group.tokens.push_back(token[0]);
      });
    }
  });
  for (const Group& group : groups) sink(group.tokens, group.bytes);
}

Tokenizer::Loop loop_of(Workers& workers) {
  return [&workers](std::int64_t count, const std::function<void(std::int64_t)>& work) {
    workers.run(count, [&](std::int64_t item, int) { work(item); });
  };
}

}  // namespace starling
