#include "apps/text/chat.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/text/unicode.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {
namespace {

using nlohmann::json;
using Role = ChatMessage::Role;

using NamedRole = std::pair<const char*, Role>;
constexpr std::array<NamedRole, 3> kRoles{
    {{"system", Role::kSystem}, {"user", Role::kUser}, {"assistant", Role::kAssistant}}};

/// Without white space at both ends, as Python's strip() has it.
std::string_view stripped(std::string_view text) {
  text = text.substr(0, unicode::without_blanks(text));
  while (!text.empty() && unicode::is_blank(decode_utf8(text.data()).code))
    text.remove_prefix(decode_utf8(text.data()).bytes);
  return text;
}

/// Writes pieces of text and markers as tokens. Text between two markers is divided as one.
class Writer {
 public:
  Writer(const Tokenizer& tokenizer, ChatTokens& to) : tokenizer_(tokenizer), to_(to) {}
  void text(std::string_view piece, bool answer) {
    text_ += piece;
    pieces_.push_back({text_.size(), answer});
  }
  void marker(std::int32_t token, bool answer) {
    flush();
    if (token < 0) return;
    to_.tokens.push_back(token);
    to_.answer.push_back(answer);
  }
  void flush() {
    const std::size_t first = to_.tokens.size();
    tokenizer_.encode_plain(text_, to_.tokens);
    std::size_t bytes = 0;
    for (std::size_t t = first; t < to_.tokens.size(); ++t)
      bytes += tokenizer_.bytes_of(to_.tokens[t]).size();
    // Some tokenizers put a blank before a text
    const std::size_t added = bytes > text_.size() ? bytes - text_.size() : 0;
    std::size_t at = 0, piece = 0;
    for (std::size_t t = first; t < to_.tokens.size(); ++t) {
      const std::size_t begin = at > added ? at - added : 0;
      at += tokenizer_.bytes_of(to_.tokens[t]).size();
      while (piece + 1 < pieces_.size() && pieces_[piece].end <= begin) ++piece;
      to_.answer.push_back(pieces_[piece].answer && at <= pieces_[piece].end + added);
    }
    text_.clear();
    pieces_.clear();
  }

 private:
  struct Piece {
    std::size_t end;
    bool answer;
  };
  const Tokenizer& tokenizer_;
  ChatTokens& to_;
  std::string text_;
  std::vector<Piece> pieces_;
};

/// The text of a special token in a JSON file: itself, or an object's `content`.
std::string token_text(const json& value) {
  if (value.is_object()) return token_text(value.value("content", json()));
  return value.is_string() ? value.get<std::string>() : "";
}

}  // namespace

std::string no_json(std::string_view line, std::size_t byte) {
  constexpr std::size_t kBefore = 30;
  if (byte <= 2 * kBefore) return fmt::format("is no JSON: '{}'", shown(line, 2 * kBefore));
  std::size_t from = byte - kBefore;
  while (from < line.size() && (line[from] & 0xc0) == 0x80) ++from;  // a character's first byte
  return fmt::format("is no JSON at byte {}: '{}'", byte, shown(line.substr(from), 2 * kBefore));
}

const char* name_of(Role role) {
  for (const auto& [name, known] : kRoles)
    if (known == role) return name;
  return "";
}

std::vector<ChatMessage> parse_chat(std::string_view line, const std::string& file,
                                    std::int64_t number) {
  const auto refuse = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fail(ExitCode::kUsage, "data",
         {.file = shown(file, 200), .key = fmt::format("line {}", number)}, format,
         std::forward<Args>(args)...);
  };
  constexpr const char* kNeeded = R"({"messages": [{"role": "user", "content": "…"}, …]})";
  json value;
  try {
    value = json::parse(line);
  } catch (const json::parse_error& error) {
    refuse("{}; needed: {}", no_json(line, error.byte), kNeeded);
  } catch (const json::exception&) {
    refuse("{}; needed: {}", no_json(line, 0), kNeeded);
  }
  const bool pair = value.is_object() && (value.contains("prompt") || value.contains("completion"));
  if (!value.is_object() || (!value.contains("messages") && !pair))
    refuse("has no messages: '{}'; needed: {}, or prompt and completion", shown(line, 60), kNeeded);
  if (pair && value.contains("messages"))
    refuse("has messages and prompt or completion; needed: messages alone, or the two others");
  if (pair) {
    json messages = json::array();
    for (const auto& [key, role] : {std::pair{"prompt", "user"}, {"completion", "assistant"}}) {
      if (!value.contains(key) || !value[key].is_string())
        refuse("{} is {}; needed: a text", key,
               value.contains(key) ? shown(value[key].dump(), 60) : "missing");
      messages.push_back({{"role", role}, {"content", value[key]}});
    }
    value = {{"messages", std::move(messages)}};
  }
  const json& list = value["messages"];
  if (!list.is_array() || list.empty())
    refuse("messages is {}; needed: a list of one or more", shown(list.dump(), 60));
  std::vector<ChatMessage> messages;
  for (const json& one : list) {
    const std::size_t at = messages.size();
    const json role = one.is_object() ? one.value("role", json()) : json(),
               content = one.is_object() ? one.value("content", json()) : json();
    const auto* const known = std::find_if(
        kRoles.begin(), kRoles.end(), [&](const NamedRole& named) { return role == named.first; });
    if (known == kRoles.end())
      refuse("messages[{}].role is {}; known: system, user and assistant", at,
             role.is_null() ? "missing" : shown(role.dump(), 60));
    if (!content.is_string())
      refuse("messages[{}].content is {}; needed: a text", at,
             one.is_object() && one.contains("content") ? shown(content.dump(), 60) : "missing");
    for (const char* calls : {"tool_calls", "function_call"}) {
      if (const json call = one.value(calls, json()); !call.empty())
        refuse("messages[{}].{} is {}, which no template writes here; needed: texts alone", at,
               calls, shown(call.dump(), 60));
    }
    const json weight = one.value("weight", json(1));
    if (weight != 0 && weight != 1 && !weight.is_null())
      refuse("messages[{}].weight is {}; allowed: 0 and 1", at, shown(weight.dump(), 60));
    messages.push_back({known->second, content.get<std::string>(), weight != 0});
  }
  return messages;
}

ChatSource ChatSource::of(const std::map<std::string, std::string>& files) {
  const auto object = [&](const char* name) {
    const auto file = files.find(name);
    json value = file == files.end() ? json() : json::parse(file->second, nullptr, false);
    return value.is_object() ? value : json::object();
  };
  ChatSource source;
  const json config = object("tokenizer_config.json");
  // transformers prefers the file, and of several templates the one named default
  if (const auto file = files.find("chat_template.jinja"); file != files.end()) {
    source.jinja = file->second;
  } else if (const json given = config.value("chat_template", json()); given.is_array()) {
    for (const json& named : given)
      if (named.is_object() && named.value("name", json()) == "default")
        source.jinja = token_text(named.value("template", json()));
  } else {
    source.jinja = token_text(given);
  }
  source.eos = token_text(config.value("eos_token", json()));
  if (source.eos.empty())
    source.eos = token_text(object("special_tokens_map.json").value("eos_token", json()));
  return source;
}

std::string ChatSource::name() const {
  const auto has = [&](std::string_view text) { return jinja.find(text) != jinja.npos; };
  if (has("<|im_start|>") && has("<|im_end|>") && !has("<|im_sep|>")) return "chatml";
  if (has("<|start_header_id|>") && has("<|end_header_id|>") && has("<|eot_id|>")) return "llama3";
  return {};
}

std::string ChatSource::additions() const {
  const auto has = [&](std::string_view text) { return jinja.find(text) != jinja.npos; };
  std::vector<std::string> all;
  if (const std::size_t at = jinja.find("You are"); at != jinja.npos) {
    const std::size_t end = jinja.find_first_of("<{'\"\\\n", at);
    all.emplace_back(fmt::format("a system text ('{}')", shown(jinja.substr(at, end - at), 60)));
  } else if (has("[0]['role'] != 'system'") || has("[0].role != 'system'")) {
    all.emplace_back("a system text");
  }
  if (has("strftime_now") || has("date_string") || has("Today Date")) all.emplace_back("a date");
  if (has("<think>")) all.emplace_back("think blocks");
  if (name() == "chatml") {
    if (has("bos_token")) all.emplace_back("bos_token");
    if (has("eos_token")) all.emplace_back("eos_token");
    // Behind the first marker of an end, within the expression that writes it
    const std::size_t end = jinja.find("<|im_end|>") + std::string_view("<|im_end|>").size();
    const std::string_view behind = std::string_view(jinja).substr(end, 12);
    const bool breaks = behind.find("\\n") != behind.npos || behind.find('\n') != behind.npos;
    if (!breaks) all.emplace_back("no line's end behind <|im_end|>");
    if (has("| trim") || has("|trim")) all.emplace_back("contents without blanks around them");
  }
  return fmt::format("{}", fmt::join(all, all.size() > 2 ? ", " : " and "));
}

const std::vector<std::string>& ChatTemplate::names() {
  static const std::vector<std::string> names{"chatml", "llama3", "plain"};
  return names;
}

ChatTemplate::ChatTemplate(std::string name, std::shared_ptr<const Tokenizer> tokenizer,
                           std::string_view eos, const std::string& key)
    : name_(std::move(name)), tokenizer_(std::move(tokenizer)) {
  const auto marker = [&](std::string_view text) {
    std::vector<std::int32_t> tokens, plain;
    tokenizer_->encode(text, tokens);
    tokenizer_->encode_plain(text, plain);
    if (tokens.size() != 1 || tokenizer_->bytes_of(tokens[0]) != text || plain == tokens)
      fail(ExitCode::kUsage, "data", {.key = key},
           "{} needs the special token {}, which the tokenizer lacks; needed: a tokenizer that has "
           "it (starling-prepare tokenizer --special), or another template",
           name_, shown(text));
    return tokens[0];
  };
  if (name_ == "chatml") {
    start_ = marker("<|im_start|>"), end_ = marker("<|im_end|>");
  } else if (name_ == "llama3") {
    begin_ = marker("<|begin_of_text|>"), start_ = marker("<|start_header_id|>");
    header_end_ = marker("<|end_header_id|>"), end_ = marker("<|eot_id|>");
  } else if (eos.empty()) {
    fail(ExitCode::kUsage, "data", {.key = key},
         "plain ends answers with the tokenizer's eos token, and it names none; needed: a special "
         "token such as <|endoftext|>, or eos_token in tokenizer_config.json beside it");
  } else {
    end_ = marker(eos);
  }
}

ChatTokens ChatTemplate::write(std::span<const ChatMessage> messages, bool asks) const {
  ChatTokens result;
  Writer writer(*tokenizer_, result);
  writer.marker(begin_, false);
  const auto header = [&](Role role) {
    writer.marker(start_, false);
    writer.text(name_of(role), false);
    if (name_ == "llama3") writer.marker(header_end_, false);
    writer.text(name_ == "llama3" ? "\n\n" : "\n", false);
  };
  for (const ChatMessage& message : messages) {
    const bool answer = message.role == Role::kAssistant, trained = answer && message.trained;
    if (name_ == "plain") {
      writer.text(message.content, trained);
      if (answer) writer.marker(end_, trained);
      continue;
    }
    header(message.role);
    writer.text(name_ == "llama3" ? stripped(message.content) : message.content, trained);
    writer.marker(end_, trained);
    if (name_ == "chatml") writer.text("\n", false);
  }
  if (asks && name_ != "plain") header(Role::kAssistant);
  writer.flush();
  return result;
}

std::string ChatTemplate::jinja(const std::string& name) {
  if (name == "chatml")
    return R"({% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + )"
           R"(message['content'] + '<|im_end|>\n' }}{% endfor %})"
           R"({% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";
  if (name == "llama3")
    return R"({{ '<|begin_of_text|>' }}{% for message in messages %}{{ '<|start_header_id|>' + )"
           R"(message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + )"
           R"('<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %})"
           R"({{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %})";
  return R"({% for message in messages %}{{ message['content'] }})"
         R"({% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %})";
}

}  // namespace starling
