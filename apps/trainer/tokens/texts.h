#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/text/tokenizer.h"
#include "apps/trainer/data/files.h"
#include "apps/trainer/data/workers.h"

namespace starling {

/// The files that paths stand for: what lies in folders, at any depth, by name; names that begin
/// with a dot are left out. Error(kUsage) where there is none.
std::vector<std::string> text_files(const std::vector<std::string>& paths);

/// A file of text, mapped.
class TextFile {
 public:
  /// Error(kUsage) for an empty file.
  TextFile(const std::string& path, MappedFile::Pages pages);
  const MappedFile& map() const { return map_; }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(map_.bytes().data()), map_.bytes().size()};
  }
  /// Reads all of it. Error(kUsage) for UTF-16 and UTF-32; a line that tells of bytes that are no
  /// UTF-8, for which U+FFFD stands; empty: there are none.
  std::string note_on_encoding() const;

 private:
  MappedFile map_;
};

/// The loop of a tokenizer over these threads.
Tokenizer::Loop loop_of(Workers& workers);

}  // namespace starling
