#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/text/chat.h"
#include "apps/text/tokenizer.h"
#include "core/safetensors.h"

namespace starling {

/// Expands paths (files_of()): from folders *.jsonl, also packed (.gz, .zst).
std::vector<std::string> chat_files(const std::vector<std::string>& paths);
/// The tokenizer's file: `path` itself, or tokenizer.json or vocab.json in the folder `path`.
/// Error(kUsage) with data.tokenizer if that has none.
std::string tokenizer_file(const std::string& path);
/// What a tokenizer's folder says of conversations.
ChatSource chat_source_beside(const std::string& tokenizer_file);
/// What a model file says of them.
ChatSource chat_source_of(const SafetensorsFile& model, const std::string& source);

/// A template by name, or of `auto` that which `source`, found at `place`, has. `note`: a line on
/// what that would add; empty: nothing. Error(kUsage) with data.template.
ChatTemplate chat_template(const std::string& name,
                           const std::shared_ptr<const Tokenizer>& tokenizer,
                           const ChatSource& source, const std::string& place, std::string& note);

}  // namespace starling
