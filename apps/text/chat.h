#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/text/tokenizer.h"

namespace starling {

/// A message of a conversation.
struct ChatMessage {
  enum class Role : std::uint8_t { kSystem, kUser, kAssistant } role = Role::kUser;
  std::string content;
  bool trained = true;  ///< an assistant's: false by "weight": 0
};

/// The conversation in a line of JSON: `messages`, a list of objects with `role`, `content` and
/// perhaps `weight`, or `prompt` and `completion`, a user's and an assistant's message. Other
/// fields are not read. Error(kUsage) with `file` and the line's number for anything else, and for
/// calls of tools, which are not written.
std::vector<ChatMessage> parse_chat(std::string_view line, const std::string& file,
                                    std::int64_t number);

/// That a line is no JSON, with the text around the byte where that shows.
std::string no_json(std::string_view line, std::size_t byte);

/// What the files next to a tokenizer say about conversations.
struct ChatSource {
  std::string jinja;  ///< the chat template; empty: there is none
  std::string eos;    ///< the token that ends a text; empty: not said

  /// `files`: texts by name; tokenizer_config.json, special_tokens_map.json and chat_template.jinja
  /// are looked at.
  static ChatSource of(const std::map<std::string, std::string>& files);
  /// chatml or llama3; empty: neither.
  std::string name() const;
  /// What `jinja` would add to the messages, such as "a date and think blocks"; empty: nothing that
  /// is known.
  std::string additions() const;
};

/// Tokens of a conversation.
struct ChatTokens {
  std::vector<std::int32_t> tokens;
  std::vector<bool> answer;  ///< of an assistant's content, or the marker behind it
};

/// How a conversation is written as tokens. With messages of `role` and `content`:
///
///     chatml  <|im_start|>role\ncontent<|im_end|>\n
///     llama3  <|begin_of_text|>, and
///     <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>,
///             of contents without the white space around them
///     plain   content, and eos behind an assistant's
///
/// Markers are special tokens; written in a content they are text, as transformers'
/// split_special_tokens has it. A token that lies in a content and before it is none of the answer.
/// Thread-safe.
class ChatTemplate {
 public:
  static const std::vector<std::string>& names();
  /// Error(kUsage) with `key` if the tokenizer lacks a marker. `eos`: of `plain`.
  ChatTemplate(std::string name, std::shared_ptr<const Tokenizer> tokenizer, std::string_view eos,
               const std::string& key);
  const std::string& name() const { return name_; }
  ChatTokens encode(std::span<const ChatMessage> messages) const { return write(messages, false); }
  /// The same, up to where an assistant's next content begins.
  std::vector<std::int32_t> ask(std::span<const ChatMessage> messages) const {
    return write(messages, true).tokens;
  }
  /// The marker behind an assistant's content.
  std::int32_t end() const { return end_; }
  /// A template by name as transformers has it, in Jinja.
  static std::string jinja(const std::string& name);

 private:
  ChatTokens write(std::span<const ChatMessage> messages, bool asks) const;

  std::string name_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  /// Markers before a role, behind it, behind a content and before all; -1: none
  std::int32_t start_ = -1, header_end_ = -1, end_ = -1, begin_ = -1;
};

const char* name_of(ChatMessage::Role role);

}  // namespace starling
