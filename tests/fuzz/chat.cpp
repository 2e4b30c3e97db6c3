// Conversations: the input is a line of JSON lines. What is read is written by each template, comes
// back as text, and has as many markers as messages: none comes of a content.
#include "apps/text/chat.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  using nlohmann::json;
  static const auto tokenizer = [] {
    json whole = json::parse(Tokenizer::bytes()->huggingface());
    int id = 256;
    for (const char* marker : {"<|im_start|>", "<|im_end|>", "<|begin_of_text|>",
                               "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "</s>"})
      whole["added_tokens"].push_back(
          {{"id", id++}, {"content", marker}, {"special", true}, {"normalized", false}});
    return Tokenizer::parse(whole.dump(), "tokenizer.json");
  }();
  return fuzz::reads_or_refuses([&] {
    const std::vector<ChatMessage> messages = parse_chat(fuzz::text(data, size), "fuzz.jsonl", 1);
    std::size_t answers = 0;
    for (const ChatMessage& message : messages)
      answers += message.role == ChatMessage::Role::kAssistant ? 1 : 0;
    for (const auto& [name, expected] : {std::pair{"chatml", 2 * messages.size()},
                                         {"llama3", 1 + 3 * messages.size()},
                                         {"plain", answers}}) {
      const ChatTokens found = ChatTemplate(name, tokenizer, "</s>", "key").encode(messages);
      std::size_t markers = 0, ends = 0;
      for (std::size_t t = 0; t < found.tokens.size(); ++t) {
        const bool marker = found.tokens[t] >= 256;
        markers += marker ? 1 : 0;
        ends += marker && found.answer[t] ? 1 : 0;
      }
      fuzz::expect(found.answer.size() == found.tokens.size(), "an answer's flag a token");
      fuzz::expect(markers == expected, fmt::format("{} markers of {}", expected, name));
      fuzz::expect(ends == answers, "a marker trained on for each answer");
      const std::string text = tokenizer->decode(found.tokens);
      for (const ChatMessage& message : messages)
        fuzz::expect(name == std::string("llama3") || text.find(message.content) != text.npos,
                     "contents come back");
    }
  });
}
