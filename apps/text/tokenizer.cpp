#include "apps/text/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "apps/text/bpe.h"

namespace starling {
namespace {

class Bytes final : public Tokenizer {
 public:
  Bytes() {
    for (std::size_t byte = 0; byte < all_.size(); ++byte) all_[byte] = static_cast<char>(byte);
  }
  std::int64_t vocab() const override { return 256; }
  void encode(std::string_view text, std::vector<std::int32_t>& tokens) const override {
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  }
  void encode_plain(std::string_view text, std::vector<std::int32_t>& tokens) const override {
    encode(text, tokens);
  }
  void encode(std::string_view text, const Loop&, const Sink& sink) const override {
    constexpr std::size_t kPart = 1 << 16;
    std::vector<std::int32_t> tokens;
    for (std::size_t at = 0; at < text.size(); at += kPart) {
      tokens.clear();
      encode(text.substr(at, kPart), tokens);
      sink(tokens, tokens.size());
    }
  }
  std::string_view bytes_of(std::int32_t token) const override {
    const auto at = static_cast<std::size_t>(token);
    return at < all_.size() ? std::string_view(&all_[at], 1) : std::string_view();
  }
  std::string text() const override { return "bytes"; }
  std::string huggingface() const override {
    BpeParts parts;
    for (const char byte : all_) parts.tokens.emplace_back(1, byte);
    return huggingface_text(parts);
  }

 private:
  std::array<char, 256> all_{};
};

}  // namespace

std::shared_ptr<const Tokenizer> Tokenizer::bytes() { return std::make_shared<Bytes>(); }

std::string Tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) text += bytes_of(token);
  return text;
}

bool agree(const Tokenizer& a, const Tokenizer& b) {
  bool same = true;
  for (std::int32_t token = 0; same && token < std::min(a.vocab(), b.vocab()); ++token)
    same = a.bytes_of(token) == b.bytes_of(token);
  return same;
}

}  // namespace starling
