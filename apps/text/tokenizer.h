#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

/// Text as numbers and back: byte-level BPE (Sennrich et al., "Neural machine translation of rare
/// words with subword units", 2016; Radford et al., "Language models are unsupervised multitask
/// learners", 2019), or bytes as they are. Thread-safe. Errors are Error(kUsage) that name the file
/// and the key.
class Tokenizer {
 public:
  /// 256 tokens, each the byte of its number: any bytes go in and come back.
  static std::shared_ptr<const Tokenizer> bytes();
  /// `bytes`; Hugging Face's tokenizer.json; GPT-2's vocab.json with merges.txt beside it; or a
  /// file of ranks as tiktoken's, with the name of the pattern that divides texts into words
  /// (pattern_names(); empty: by the file's name).
  static std::shared_ptr<const Tokenizer> read(const std::string& path,
                                               const std::string& pattern = {});
  /// What text() gives, as in the metadata of model files; `source` names it in errors.
  static std::shared_ptr<const Tokenizer> parse(std::string_view text, const std::string& source);

  virtual ~Tokenizer() = default;
  /// How many tokens there are; they are numbered from 0.
  virtual std::int64_t vocab() const = 0;
  /// Adds the tokens of a text. Special tokens in it become their numbers. What is no UTF-8 becomes
  /// U+FFFD, but not where tokens are bytes.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& tokens) const = 0;
  /// The same of a long text, by the threads of `loop` (which calls its argument with 0 to count -
  /// 1); `sink` gets all tokens in their order, in parts, and about how many bytes
  /// of text each part stands for, on the caller's thread.
  using Loop = std::function<void(std::int64_t count, const std::function<void(std::int64_t)>&)>;
  using Sink = std::function<void(std::span<const std::int32_t> tokens, std::size_t bytes)>;
  virtual void encode(std::string_view text, const Loop& loop, const Sink& sink) const = 0;
  /// The bytes that a token stands for; none for a number that it has not, as those that a model
  /// has room for beyond the tokenizer's.
  virtual std::string_view bytes_of(std::int32_t token) const = 0;
  /// All of it as a text that parse() takes: `bytes`, or as huggingface() has it.
  virtual std::string text() const = 0;
  /// Hugging Face's tokenizer.json; one that was read from such is the same text.
  virtual std::string huggingface() const = 0;

  std::string decode(std::span<const std::int32_t> tokens) const;
};

/// Whether the numbers that both have stand for the same bytes.
bool agree(const Tokenizer& a, const Tokenizer& b);

}  // namespace starling
