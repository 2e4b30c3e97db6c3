#include "apps/data/tokens/chat_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include "apps/data/files.h"
#include "apps/inference/companions.h"
#include "apps/inference/description.h"
#include "apps/inference/hugging_face.h"
#include "core/error.h"
#include "core/file_io.h"
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
  std::map<std::string, std::string> files;
  for (const char* name :
       {"tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}) {
    const std::string path = beside(tokenizer_file, name);
    std::error_code error;
    if (tokenizer_file == "bytes" || !fs::is_regular_file(path, error)) continue;
    FileText file = read_file(path);
    if (!file.fault.empty())
      fail(ExitCode::kUsage, "data", {.file = path}, "cannot be read: {}", file.fault);
    files.emplace(name, std::move(file.text));
  }
  return ChatSource::of(files);
}

}  // namespace starling
