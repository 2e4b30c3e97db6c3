#pragma once

#include <cstdint>
#include <string>

namespace starling {

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
