#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

/// Converts text to tokens and back: byte-level BPE (Sennrich et al., "Neural machine translation
/// of rare words with subword units", 2016; Radford et al., "Language models are unsupervised
/// multitask learners", 2019), or plain bytes. Thread-safe. Errors are Error(kUsage) with file and
/// key.
class Tokenizer {
 public:
  /// 256 tokens, one for each byte; lossless for any bytes.
  static std::shared_ptr<const Tokenizer> bytes();
  /// `bytes`; Hugging Face's tokenizer.json; GPT-2's vocab.json with merges.txt next to it; or a
  /// file of ranks as tiktoken's, with the name of the pattern that divides texts into words
  /// (pattern_names(); empty: by the file's name).
  static std::shared_ptr<const Tokenizer> read(const std::string& path,
                                               const std::string& pattern = {});
  /// What text() gives, as in the metadata of model files; `source` names it in errors.
  static std::shared_ptr<const Tokenizer> parse(std::string_view text, const std::string& source);

  virtual ~Tokenizer() = default;
  /// The number of tokens, which are numbered from 0.
  virtual std::int64_t vocab() const = 0;
  /// Appends the tokens of a text, including special tokens. Invalid UTF-8 becomes U+FFFD, unless
  /// tokens are bytes.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& tokens) const = 0;
  /// The same, but special tokens written in the text are text, as transformers'
  /// split_special_tokens has it. Other added tokens are found.
  virtual void encode_plain(std::string_view text, std::vector<std::int32_t>& tokens) const = 0;
  /// encode() of a long text, by the threads of `loop` (which calls its argument with 0 to count -
  /// 1); `sink` gets all tokens in their order, in parts, and about how many bytes
  /// of text each part stands for, on the caller's thread.
  using Loop = std::function<void(std::int64_t count, const std::function<void(std::int64_t)>&)>;
  using Sink = std::function<void(std::span<const std::int32_t> tokens, std::size_t bytes)>;
  virtual void encode(std::string_view text, const Loop& loop, const Sink& sink) const = 0;
  /// A token's bytes; empty for unknown tokens, e.g. if a model has more outputs than the tokenizer
  /// has tokens.
  virtual std::string_view bytes_of(std::int32_t token) const = 0;
  /// Serialises it for parse(): `bytes`, or huggingface().
  virtual std::string text() const = 0;
  /// As Hugging Face's tokenizer.json; unchanged if it was read from one.
  virtual std::string huggingface() const = 0;

  std::string decode(std::span<const std::int32_t> tokens) const;
};

/// Whether all tokens that both have are the same bytes.
bool agree(const Tokenizer& a, const Tokenizer& b);

}  // namespace starling
