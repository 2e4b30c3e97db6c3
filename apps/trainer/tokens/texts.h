#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/text/tokenizer.h"
#include "apps/trainer/data/files.h"
#include "apps/trainer/data/workers.h"

namespace starling {

/// The files that paths stand for: what lies in folders, at any depth, by name. Left out are names
/// that begin with a dot, what Starling has written itself (the folders of runs, token files beside
/// their meta.json, unfinished files), and `others`, which are there for something else.
/// Error(kUsage) where a folder has none, and where one of `others` is given as a text by its name.
std::vector<std::string> text_files(const std::vector<std::string>& paths,
                                    const std::vector<std::string>& others = {});

/// A file of text, mapped, or unpacked where it is of gzip or zstd.
class TextFile {
 public:
  TextFile(const std::string& path, MappedFile::Pages pages);
  const MappedFile& map() const { return map_; }
  bool packed() const { return packed_; }
  std::string_view text() const {
    const std::span<const std::uint8_t> bytes = packed_ ? unpacked_ : map_.bytes();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  /// Reads all of it. Error(kUsage) for UTF-16 and UTF-32; a line that tells of bytes that are no
  /// UTF-8, for which U+FFFD stands; empty: there are none.
  std::string note_on_encoding() const;

 private:
  MappedFile map_;
  bool packed_ = false;
  std::vector<std::uint8_t> unpacked_;
};

/// The token that a separator is written as. Error(kUsage) where it is none, or several.
std::int32_t separator_token(const Tokenizer& tokenizer, const std::string& separator);

/// What texts had to be told of.
struct TextCount {
  std::int64_t texts = 0, empty = 0;  ///< the latter are left out
  std::int64_t bytes = 0;             ///< of the texts themselves
  std::string text() const;           ///< "; 2 empty texts are left out", or nothing
};

using Texts = std::span<const std::string_view>;
/// Calls use(texts) with a file's texts that are not empty, some at a time and in their order: the
/// file itself, or with a `field` that of each of its JSON lines. note() gets lines for the user.
/// Error(kUsage) names file and line.
void each_texts(const std::string& path, const std::string& field, Workers& workers,
                TextCount& count, const std::function<void(const std::string&)>& note,
                const std::function<void(Texts)>& use);
/// Their tokens, as Tokenizer::encode() gives them to `sink`, `separator` behind each text; -1:
/// none.
void encode_texts(const Tokenizer& tokenizer, Texts texts, std::int32_t separator, Workers& workers,
                  const Tokenizer::Sink& sink);

/// The loop of a tokenizer over these threads.
Tokenizer::Loop loop_of(Workers& workers);

}  // namespace starling
