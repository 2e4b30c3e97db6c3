#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "apps/text/pattern.h"
#include "apps/text/tokenizer.h"
#include "core/text.h"

namespace starling {

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

}  // namespace starling
