#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/data/files.h"
#include "apps/data/workers.h"
#include "apps/text/tokenizer.h"

namespace starling {

/// Expands paths (files_of()), folders recursively. From folders the following are left out: names
/// that begin with a dot, files that Starling has written (run folders, token files with their
/// meta.json, unfinished files), and `others`, files with another purpose. Error(kUsage) if one of
/// `others` is also given explicitly as a text.
std::vector<std::string> text_files(const std::vector<std::string>& paths,
                                    const std::vector<std::string>& others = {});
/// Error(kUsage): none of the files has a text.
[[noreturn]] void refuse_empty(const std::vector<std::string>& files);

/// The token of a separator. Error(kUsage) if it is not exactly one token.
std::int32_t separator_token(const Tokenizer& tokenizer, const std::string& separator);

/// Counts of what was read.
struct TextCount {
  std::int64_t texts = 0, empty = 0;  ///< empty ones are left out
  std::int64_t bytes = 0;             ///< of text
  std::string text() const;           ///< "; 2 empty texts are left out", or nothing
};

/// A line of a file, which is numbered from 1.
struct TextLine {
  std::string_view text;
  std::int64_t number;
};
/// Calls use(lines) with the lines of a file, plain or packed, that are not blank, some MB of them
/// at a time and in order.
void each_lines(const std::string& path, const std::function<void(std::span<const TextLine>)>& use);

using Texts = std::span<const std::string_view>;
/// Calls use(texts) with a file's non-empty texts, some at a time and in order: the whole file, or
/// with `field` that field of each line of JSON. note() gets lines for the user. Error(kUsage) with
/// file and line.
void each_texts(const std::string& path, const std::string& field, Workers& workers,
                TextCount& count, const std::function<void(const std::string&)>& note,
                const std::function<void(Texts)>& use);
/// Passes the texts' tokens to `sink` (Tokenizer::encode()), followed by `separator` after each
/// text; -1: none.
void encode_texts(const Tokenizer& tokenizer, Texts texts, std::int32_t separator, Workers& workers,
                  const Tokenizer::Sink& sink);

/// A Tokenizer::Loop that runs on these threads.
Tokenizer::Loop loop_of(Workers& workers);

}  // namespace starling
