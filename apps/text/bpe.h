#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/text/tokenizer.h"

namespace starling {

/// What a tokenizer of BPE is made of: of bytes, or of characters as SentencePiece has it, which
/// writes a blank as U+2581, and bytes of characters that it does not know.
struct BpeParts {
  /// Two tokens that become one; earlier ones go first.
  struct Merge {
    std::int32_t left = 0, right = 0, result = 0;
  };
  /// A token that is found in the text itself, before it is divided into words.
  struct Added {
    std::int32_t token = 0;
    std::string content = {};
    bool left_blanks = false, right_blanks = false;  ///< takes the white space next to it, too
    bool special = true;                             ///< transformers' flag
    bool late = false;  ///< is looked for where the others have not been found
  };
  /// A way of dividing texts, or what the one before has given, into words.
  struct Division {
    std::string pattern;
    bool keeps_rest = true;  ///< what matches nothing is a word, too
  };

  std::vector<std::string> tokens;  ///< the bytes of each; empty: there is no such token
  std::vector<Merge> merges;
  /// Ranks of merges are those of their results: tiktoken's way where one can come about in several
  bool ranked_by_result = false;
  bool whole_words = false;  ///< a word that is a token needs no merges
  std::vector<Division> divisions;
  /// Which texts get a blank at their beginning: none; those that do not begin with one, between
  /// added tokens or at the begin of the whole alone; or all.
  enum class Prefix : std::uint8_t { kNone, kUnlessBlank, kFirstUnlessBlank, kAlways };
  Prefix prefix = Prefix::kNone;
  bool composed = false;  ///< texts are taken in normal form C
  /// Tokens that single characters are, by code point, where a word is made of characters; others
  /// are `fallback`'s, of their bytes. Empty: words are made of bytes.
  std::vector<std::pair<std::uint32_t, std::int32_t>> characters;
  std::array<std::int32_t, 256> fallback{};
  std::vector<Added> added;
  std::string huggingface = {};  ///< tokenizer.json that it was read from; empty: to be made
};

/// Error(kUsage) that names `source` where a byte has no token, or a pattern is not understood.
std::shared_ptr<const Tokenizer> make_bpe(BpeParts parts, const std::string& source);

/// GPT-2's letters for bytes, with which its files write tokens: as UTF-8.
const std::string& letter_of_byte(unsigned char byte);
std::string letters_of_bytes(std::string_view bytes);
/// The bytes that such letters stand for; the text itself where it has others.
std::string bytes_of_letters(std::string_view letters);

/// tokenizer.json of these parts.
std::string huggingface_text(const BpeParts& parts);

}  // namespace starling
