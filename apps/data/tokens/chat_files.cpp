#include "apps/data/tokens/chat_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <system_error>

#include "apps/data/files.h"
#include "apps/data/tokens/texts.h"
#include "apps/inference/companions.h"
#include "apps/inference/hugging_face.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {

namespace fs = std::filesystem;

std::vector<std::string> chat_files(const std::vector<std::string>& paths) {
  const auto is_chat = [](const fs::directory_entry& entry) {
    std::error_code error;
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".")) return false;
    if (entry.is_directory(error)) return true;
    const auto ends = {".jsonl", ".jsonl.gz", ".jsonl.zst"};
    return std::any_of(ends.begin(), ends.end(), [&](auto end) { return name.ends_with(end); });
  };
  return files_of(paths, is_chat, "it has no files *.jsonl; needed: conversations, one a line");
}

std::string tokenizer_file(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return path;
  std::string file = tokenizer_beside((fs::path(path) / "model.safetensors").string());
  if (file.empty())
    fail(ExitCode::kUsage, "data", {.file = shown(path, 200), .key = "data.tokenizer"},
         "has no tokenizer; needed: tokenizer.json, or vocab.json and merges.txt");
  return file;
}

ChatSource chat_source_beside(const std::string& tokenizer_file) {
  return tokenizer_file == "bytes" ? ChatSource::of({})
                                   : ChatSource::of(files_beside(tokenizer_file, "data"));
}

std::string show_chat(const ShowChatOptions& options) {
  const std::string tokenizer_path = tokenizer_file(options.tokenizer);
  const auto tokenizer = Tokenizer::read(tokenizer_path);
  std::string note;
  const ChatTemplate chat =
      chat_template(options.chat_template, tokenizer, chat_source_beside(tokenizer_path),
                    tokenizer_path, "data.template", note);
  std::int64_t seen = 0;
  std::optional<ChatTokens> found;
  std::string place;
  for (const std::string& file : chat_files({options.path})) {
    each_lines(file, [&](std::span<const TextLine> lines) {
      for (const TextLine& line : lines) {
        if (++seen != options.sample) continue;
        place = fmt::format("{}, line {}", file, line.number);
        found = chat.encode(parse_chat(line.text, file, line.number));
      }
    });
    if (found) break;
  }
  if (!found)
    fail(ExitCode::kUsage, "show", {.file = shown(options.path, 200), .key = "--sample"},
         "is {}, and there {}; needed: 1 to {}", options.sample,
         seen == 1 ? "is 1 conversation" : fmt::format("are {} conversations", seen), seen);
  // The first token is nobody's target
  const auto counts = [&](std::size_t t) { return t > 0 && (options.all || found->answer[t]); };
  const char *begin = options.colour ? "\033[32m" : "⟦", *end = options.colour ? "\033[0m" : "⟧";
  std::string text;
  std::int64_t targets = 0;
  for (std::size_t t = 0; t < found->tokens.size(); ++t) {
    const bool now = counts(t), next = t + 1 < found->tokens.size() && counts(t + 1);
    if (now && !(t > 0 && counts(t - 1))) text += begin;
    text += tokenizer->bytes_of(found->tokens[t]);
    if (now && !next) text += end;
    targets += now ? 1 : 0;
  }
  return fmt::format("{}, as {}: {}, of which {} are trained on{}\n{}\n{}", place, chat.name(),
                     counted(std::ssize(found->tokens), "token"), targets,
                     options.colour ? " (green)" : "", note.empty() ? "" : note + "\n", text) +
         (text.ends_with('\n') ? "" : "\n");
}

}  // namespace starling
