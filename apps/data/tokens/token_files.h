#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/data/files.h"

namespace starling {

/// Consecutive tokens: little-endian integers of 1, 2 or 4 bytes.
struct TokenSpan {
  const std::uint8_t* data = nullptr;
  int width = 1;
  std::int64_t count = 0;
  std::uint32_t operator[](std::int64_t at) const;
  /// Writes `count` tokens from index `begin` on. Returns the index of the first that is not below
  /// `vocab`; -1: none.
  std::int64_t read(std::int64_t begin, std::int64_t count, std::int64_t vocab,
                    std::int32_t* out) const;
};

/// `meta.json`, written by starling-prepare next to token files.
struct TokenMeta {
  std::int64_t vocab = 0;
  std::string tokenizer;  ///< "bytes", or the name of a file in the same folder
  int width = 2;          ///< `dtype`: bytes of a token
  std::int64_t train_tokens = 0, val_tokens = 0;
  std::map<std::string, std::string> checksums;  ///< by file name, see core/checksum.h

  std::string text() const;
  static TokenMeta parse(std::string_view text, const std::string& source);
  /// Reads FOLDER/meta.json; nullopt if it does not exist.
  static std::optional<TokenMeta> find(const std::string& folder);
};

/// A mapped file of tokens: plain integers as nanoGPT's, or llm.c's format with a header.
/// Error(kUsage) with the file and the reason.
class TokenFile {
 public:
  /// `width`: bytes of a token if there is no header; 0: 2, or 4 for a `vocab` above 65,536.
  TokenFile(const std::string& path, std::int64_t vocab, int width = 0);
  const MappedFile& map() const { return map_; }
  const TokenSpan& tokens() const { return tokens_; }
  /// Checks the first tokens, up to `most`. Error(kUsage) if one is not below `vocab` (whose origin
  /// is `whose`, such as data.vocab), or they look like integers of another type.
  void check(std::int64_t vocab, std::int64_t most, std::string_view whose) const;

 private:
  MappedFile map_;
  TokenSpan tokens_;
  bool assumed_ = false;  ///< width was neither given nor in a header
};

[[noreturn]] void refuse_token(const std::string& path, std::int64_t place, std::uint32_t token,
                               std::int64_t vocab, std::string_view whose);

/// Expands paths, see files_of(): from a folder train.bin and val.bin, or all *.bin if there is no
/// train.bin.
std::vector<std::string> token_files(const std::vector<std::string>& paths);
/// Whether a file's name has a word for tests: val, valid, validation, eval or test.
bool is_named_for_tests(const std::string& path);
/// Appends tokens as integers of `width` bytes.
void append_tokens(std::span<const std::int32_t> tokens, int width,
                   std::vector<std::uint8_t>& bytes);

}  // namespace starling
