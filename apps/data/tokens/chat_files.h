#pragma once

#include <cstdint>
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

struct ShowChatOptions {
  std::string path, tokenizer, chat_template = "auto";
  bool all = false;         ///< every token is trained on, not answers alone
  std::int64_t sample = 1;  ///< the conversation, counted from 1
  bool colour = false;      ///< what is trained on is green; else it stands in ⟦⟧
};
/// A conversation as its template writes it, in which one sees what is trained on. Error(kUsage)
/// with file and line.
std::string show_chat(const ShowChatOptions& options);

}  // namespace starling
