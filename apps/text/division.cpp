#include "apps/text/division.h"

#include <algorithm>
#include <cstdint>

namespace starling {

// A part begins at a place where perhaps no word does. The words of the part before it go on until
// both have one that ends at the same place, from which on they agree: a match depends on what
// follows alone.
void Division::divide(std::string_view text, const Tokenizer::Loop& loop,
                      const std::function<void(std::span<const std::vector<Word>>)>& use) const {
  constexpr std::size_t kPart = std::size_t{1} << 20, kAtOnce = 32;
  std::size_t first = 0, joined = 0;  // up to there words are known
  while (first < text.size()) {
    std::vector<std::size_t> begins;
    while (begins.size() < kAtOnce && first < text.size()) {
      begins.push_back(first);
      first = std::min(first + kPart, text.size());
      // a word seldom goes over the end of a line
      const std::size_t line = text.find('\n', first);
      if (line != text.npos && line - first < kPart / 4) first = line;
      while (first < text.size() && (static_cast<unsigned char>(text[first]) & 0xc0) == 0x80)
        ++first;
    }
    std::vector<std::vector<Word>> parts(begins.size());
    loop(static_cast<std::int64_t>(parts.size()), [&](std::int64_t number) {
      const auto k = static_cast<std::size_t>(number);
      divide(text, begins[k], k + 1 < begins.size() ? begins[k + 1] : first,
             [&](Word word) { parts[k].push_back(word); });
    });
    for (std::size_t k = 0; k < parts.size(); ++k) {
      std::vector<Word>& words = parts[k];
      std::vector<Word> before;
      auto from = words.begin();
      for (bool met = joined == begins[k]; !met && !words.empty() && joined <= words.back().end;) {
        from = std::lower_bound(from, words.end(), joined,
                                [](Word word, std::size_t at) { return word.end < at; });
        met = from != words.end() && from->end == joined;
        if (met) {
          ++from;
        } else {
          joined = divide(text, joined, joined + 1, [&](Word word) { before.push_back(word); });
        }
      }
      if (!words.empty() && joined > words.back().end) from = words.end();
      if (from != words.end()) joined = words.back().end;
      words.erase(words.begin(), from);
      words.insert(words.begin(), before.begin(), before.end());
    }
    use(parts);
  }
}

}  // namespace starling
