#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "apps/text/chat.h"

namespace starling {

struct ModelDescription;

/// What a folder of Hugging Face's has besides a model's weights and tokenizer. A model file keeps
/// it as its metadata starling.companions, from `init` to the export.
struct Companions {
  /// By name: tokenizer_config.json, special_tokens_map.json, generation_config.json,
  /// chat_template.jinja, as they are
  std::map<std::string, std::string> files;
  /// Of config.json: eos_token_id, bos_token_id and pad_token_id, numbers or lists of such, and
  /// dtype, the name of the weights' type; null: nothing is known of them
  nlohmann::json ids;

  bool empty() const { return files.empty() && ids.is_null(); }
  std::string text() const;
  /// What text() gave; Error(kUsage) names `place`.
  static Companions parse(const std::string& text, const std::string& place);
  /// Of the folder that a model file lies in, whose config.json is of Hugging Face's form; nothing
  /// of another.
  static Companions of(const std::string& model_file);
};

/// The path of a file in the folder that a model file lies in.
std::string beside(const std::string& model_file, std::string_view name);
/// Companions::files of that folder; `component`: of errors.
std::map<std::string, std::string> files_beside(const std::string& model_file,
                                                const std::string& component);
/// The folder's config.json, where it is of Hugging Face's form; null elsewhere.
nlohmann::json config_beside(const std::string& model_file);

/// What stands before a prompt, and what ends a text.
struct TextBounds {
  std::vector<std::int32_t> begin, ends;
};
/// `begin`: what the tokenizer's post_processor puts before a text. `ends`: the eos tokens of
/// generation_config.json or, where it has none, of config.json; of a model whose folder names none
/// the tokenizer's special token of such a name: <|endoftext|>, <|end_of_text|>, </s>, <eos>,
/// <|eos|>, [EOS].
TextBounds text_bounds(const ModelDescription& description);

/// What a model's folder says of conversations; `source`: the model, for errors.
ChatSource chat_source_of(const ModelDescription& description, const std::string& source);
/// A template by name, or of `auto` that which `source`, found at `place`, has. `note`: a line on
/// what that would add; empty: nothing. Error(kUsage) with `key`.
ChatTemplate chat_template(const std::string& name,
                           const std::shared_ptr<const Tokenizer>& tokenizer,
                           const ChatSource& source, const std::string& place,
                           const std::string& key, std::string& note);

/// What a special token of a tokenizer (Tokenizer::text()) is written as; empty: it has none such.
std::string special_token(const std::string& tokenizer, std::int32_t token);

/// A number or a list of numbers; empty where it is neither.
std::vector<std::int32_t> token_ids(const nlohmann::json& value);

}  // namespace starling
