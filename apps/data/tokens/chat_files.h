#pragma once

#include <string>
#include <vector>

#include "apps/text/chat.h"

namespace starling {

/// Expands paths (files_of()): from folders *.jsonl, also packed (.gz, .zst).
std::vector<std::string> chat_files(const std::vector<std::string>& paths);
/// The tokenizer's file: `path` itself, or tokenizer.json or vocab.json in the folder `path`.
/// Error(kUsage) with data.tokenizer if that has none.
std::string tokenizer_file(const std::string& path);
/// What a tokenizer's folder says of conversations.
ChatSource chat_source_beside(const std::string& tokenizer_file);
}  // namespace starling
