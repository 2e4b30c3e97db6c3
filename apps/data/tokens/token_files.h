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

/// Tokens one after another: little-endian numbers of 1, 2 or 4 bytes.
struct TokenSpan {
  const std::uint8_t* data = nullptr;
  int width = 1;
  std::int64_t count = 0;
  std::uint32_t operator[](std::int64_t at) const;
  /// Writes `count` tokens from `begin` on; the place of the first that is not below `vocab`, or
  /// -1.
  std::int64_t read(std::int64_t begin, std::int64_t count, std::int64_t vocab,
                    std::int32_t* out) const;
};

/// `meta.json` beside the token files that starling-prepare has written.
struct TokenMeta {
  std::int64_t vocab = 0;
  std::string tokenizer;  ///< "bytes", or the name of a file beside it
  int width = 2;          ///< `dtype`: bytes of a token
  std::int64_t train_tokens = 0, val_tokens = 0;
  std::map<std::string, std::string> checksums;  ///< by file, of core/checksum.h

  std::string text() const;
  static TokenMeta parse(std::string_view text, const std::string& source);
  /// FOLDER/meta.json; nothing where there is none.
  static std::optional<TokenMeta> find(const std::string& folder);
};

/// A file of tokens, mapped: numbers alone, as nanoGPT's, or llm.c's with a header. Error(kUsage)
/// names the file and what is wrong.
class TokenFile {
 public:
  /// `width`: bytes of a token where no header says it; 0: 2, or 4 for a `vocab` above 65,536.
  TokenFile(const std::string& path, std::int64_t vocab, int width = 0);
  const MappedFile& map() const { return map_; }
  const TokenSpan& tokens() const { return tokens_; }
  /// Reads the first tokens, up to `most`, and refuses the file where one is not below `vocab`
  /// (which `whose` has, such as data.vocab), or where they are numbers of another type.
  void check(std::int64_t vocab, std::int64_t most, std::string_view whose) const;

 private:
  MappedFile map_;
  TokenSpan tokens_;
  bool assumed_ = false;  ///< nothing says how many bytes a token has
};

[[noreturn]] void refuse_token(const std::string& path, std::int64_t place, std::uint32_t token,
                               std::int64_t vocab, std::string_view whose);

/// The files that paths stand for, see files_of(): of a folder its train.bin and val.bin, or all
/// *.bin where there is no train.bin.
std::vector<std::string> token_files(const std::vector<std::string>& paths);
/// Whether a file's name says that it is for tests: val, valid, validation, eval or test is a word
/// of it.
bool is_named_for_tests(const std::string& path);
/// Adds tokens as numbers of `width` bytes.
void append_tokens(std::span<const std::int32_t> tokens, int width,
                   std::vector<std::uint8_t>& bytes);

}  // namespace starling
