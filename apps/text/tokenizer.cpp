#include "apps/text/tokenizer.h"

#include <array>

#include "core/error.h"
#include "core/text.h"

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
  std::string_view bytes_of(std::int32_t token) const override {
    return {&all_[static_cast<std::size_t>(token)], 1};
  }
  std::string text() const override { return "bytes"; }

 private:
  std::array<char, 256> all_{};
};

}  // namespace

std::shared_ptr<const Tokenizer> Tokenizer::bytes() { return std::make_shared<Bytes>(); }

std::shared_ptr<const Tokenizer> Tokenizer::parse(std::string_view text,
                                                  const std::string& source) {
  if (text == "bytes") return bytes();
  fail(ExitCode::kUsage, "tokenizer", {.file = source}, "is '{}'; needed: bytes", shown(text));
}

std::shared_ptr<const Tokenizer> Tokenizer::read(const std::string& path) {
  return parse(path, path);
}

std::string Tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) text += bytes_of(token);
  return text;
}

}  // namespace starling
