#include "apps/trainer/tokens/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "apps/text/unicode.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {

namespace fs = std::filesystem;

std::vector<std::string> text_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> found;
    fs::recursive_directory_iterator it(path, error);
    for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
      std::error_code ignored;
      if (it->path().filename().string().starts_with(".")) {
        it.disable_recursion_pending();
      } else if (it->is_regular_file(ignored)) {
        found.push_back(it->path().string());
      }
    }
    if (error)
      fail(ExitCode::kUsage, "data", "{} cannot be read: {}", shown(path), error.message());
    if (found.empty())
      fail(ExitCode::kUsage, "data", "{} has no files; needed: a text", shown(path));
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

TextFile::TextFile(const std::string& path, MappedFile::Pages pages) : map_(path, pages) {
  if (map_.bytes().empty())
    fail(ExitCode::kUsage, "data", {.file = shown(path, 200)}, "is empty; needed: a text");
}

std::string TextFile::note_on_encoding() const {
  for (const std::string_view mark : {"\xFF\xFE", "\xFE\xFF"}) {
    if (!text().starts_with(mark)) continue;
    fail(ExitCode::kUsage, "data", {.file = shown(map_.path(), 200)},
         "is UTF-16 or UTF-32; needed: UTF-8, as by iconv -f UTF-16 -t UTF-8");
  }
  const std::size_t valid = unicode::valid_bytes(text());
  if (valid == text().size()) return {};
  return fmt::format("{}: byte {} is not UTF-8; U+FFFD stands for such", shown(map_.path(), 200),
                     valid);
}

Tokenizer::Loop loop_of(Workers& workers) {
  return [&workers](std::int64_t count, const std::function<void(std::int64_t)>& work) {
    workers.run(count, [&](std::int64_t item, int) { work(item); });
  };
}

}  // namespace starling
