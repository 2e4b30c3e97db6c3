#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

/// Text as numbers and back: byte-level BPE (Sennrich et al., 2016; Radford et al., 2019), or bytes
/// as they are. Thread-safe. Errors are Error(kUsage) that name the file and the key.
class Tokenizer {
 public:
  /// 256 tokens, each the byte of its number: any bytes go in and come back.
  static std::shared_ptr<const Tokenizer> bytes();
  /// What text() gives, as in the metadata of model files; `source` names it in errors.
  static std::shared_ptr<const Tokenizer> parse(std::string_view text, const std::string& source);
  /// `bytes`, or a file.
  static std::shared_ptr<const Tokenizer> read(const std::string& path);

  virtual ~Tokenizer() = default;
  /// How many tokens there are; they are numbered from 0.
  virtual std::int64_t vocab() const = 0;
  /// Adds the tokens of a text.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& tokens) const = 0;
  /// The bytes that a token stands for.
  virtual std::string_view bytes_of(std::int32_t token) const = 0;
  /// All of it as a text that parse() takes.
  virtual std::string text() const = 0;

  std::string decode(std::span<const std::int32_t> tokens) const;
};

}  // namespace starling
