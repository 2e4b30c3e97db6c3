#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "apps/text/tokenizer.h"
#include "core/text.h"

namespace starling {

/// The patterns that tokenizers divide texts by: regular expressions over the categories of
/// Unicode, of what such patterns have: classes of characters, which may be repeated (`?`, `*`,
/// `+`, `{2,5}`, possessively too), alternatives, `(?:…)` and `(?i:…)`, which may be left out
/// (`?`), and `(?=…)`, `(?!…)`. The first alternative that matches is taken, as in Perl, PCRE,
/// Oniguruma and Rust's fancy-regex.
class Pattern {
 public:
  /// Error(kUsage) that names `source` and what the pattern has that these have not.
  Pattern(std::string_view pattern, const std::string& source);

  /// Where the match at the beginning of `text` ends; 0: there is none. The text is valid UTF-8.
  /// Error(kUsage) for a pattern that takes more than a time in proportion.
  std::size_t match(const char* text, const char* end) const;

 private:
  friend class PatternReader;
  /// Characters: by kind (unicode::kind_of), and single ones.
  struct Class {
    std::uint64_t kinds = 0;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> ranges = {};  ///< first and last
    bool negative = false;
    bool has(std::uint32_t code) const;
    friend bool operator==(const Class&, const Class&) = default;
  };
  enum class Step : std::uint8_t { kRun, kChoice, kAhead, kNotAhead, kMatch };
  struct Node {
    Step step = Step::kMatch;
    bool possessive = false;
    std::uint64_t bit = 0;  ///< kRun: of the class
    std::uint32_t least = 1, most = 1;
    int next = 0;
    std::vector<int> choices = {};  ///< kChoice: where each alternative begins; kAhead: its inside
  };
  struct Budget {
    const char* end;
    std::uint64_t steps;
  };

  /// Of which classes the character is, bit by bit.
  std::uint64_t classes_at(const char* at, std::uint32_t& bytes) const {
    const auto byte = static_cast<unsigned char>(*at);
    if (byte < 0x80) {
      bytes = 1;
      return ascii_[byte];
    }
    return others_at(at, bytes);
  }
  std::uint64_t others_at(const char* at, std::uint32_t& bytes) const;
  const char* run(int node, const char* at, Budget& budget) const;

  std::string source_;
  std::vector<Class> classes_;
  std::vector<Node> nodes_;
  std::vector<int> firsts_;  ///< where the pattern's alternatives begin
  /// By class bits of the first character: which alternatives may begin with it
  std::array<std::uint64_t, 128> ascii_{};
  std::array<std::uint32_t, 128> ascii_firsts_{};
  std::array<std::uint64_t, 64> by_kind_{};  ///< of classes without ranges beyond ASCII
  std::uint64_t with_ranges_ = 0;            ///< the other classes
};

/// By texts; asked with parts of others, which are not copied.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};
template <class Value>
using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

/// Divides texts into words by a pattern.
struct Division {
  struct Word {
    std::size_t begin, end;
  };
  Pattern pattern;
  bool keeps_rest;  ///< what matches nothing is a word, too

  /// use(word) for those from `at` on, up to one that ends at `stop` or beyond; where that is.
  template <class Use>
  std::size_t divide(std::string_view text, std::size_t at, std::size_t stop,
                     const Use& use) const {
    const char* const begin = text.data();
    const char* const end = begin + text.size();
    while (at < stop) {
      const std::size_t from = at;
      if (const std::size_t bytes = pattern.match(begin + at, end)) {
        at += bytes;
        use(Word{from, at});
        continue;
      }
      do at += decode_utf8(begin + at).bytes;
      while (at < text.size() && pattern.match(begin + at, end) == 0);
      if (keeps_rest) use(Word{from, at});
    }
    return at;
  }

  /// The words of a long text, a list for each of many parts of it, in their order; the threads of
  /// `loop` find them.
  void divide(std::string_view text, const Tokenizer::Loop& loop,
              const std::function<void(std::span<const std::vector<Word>>)>& use) const;
  /// From how many bytes on that is worth it.
  static constexpr std::size_t kLong = std::size_t{1} << 21;
};

/// A pattern of OpenAI's tokenizers, with the beginnings of the names of files of ranks for it.
struct KnownPattern {
  std::string name, text;
  std::vector<std::string> files;
};
const std::vector<KnownPattern>& known_patterns();
std::vector<std::string> pattern_names();
/// The pattern of that name; empty where there is no such.
std::string known_pattern(std::string_view name);

}  // namespace starling
