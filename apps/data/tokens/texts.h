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

/// The files that paths stand for, see files_of(): what lies in folders, at any depth. Left out of
/// these are names that begin with a dot, what Starling has written itself (the folders of runs,
/// token files beside their meta.json, unfinished files), and `others`, which are there for
/// something else. Error(kUsage) where one of `others` is given as a text by its name, too.
std::vector<std::string> text_files(const std::vector<std::string>& paths,
                                    const std::vector<std::string>& others = {});
/// Says that none of the files has a text.
[[noreturn]] void refuse_empty(const std::vector<std::string>& files);

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
