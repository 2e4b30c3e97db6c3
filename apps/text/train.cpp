#include "apps/text/train.h"

#include <algorithm>
#include <cstddef>
#include <queue>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "apps/text/bpe.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {
namespace {

/// Distinct words as tokens, and how often each pair of these comes.
class PairCounts {
 public:
  struct Word {
    std::vector<std::int32_t> tokens;
    std::int64_t count;
  };
  explicit PairCounts(std::vector<Word> words) : words_(std::move(words)) {
    for (std::uint32_t w = 0; w < words_.size(); ++w) {
      for (std::size_t i = 0; i + 1 < words_[w].tokens.size(); ++i)
        change(words_[w].tokens[i], words_[w].tokens[i + 1], w, words_[w].count);
    }
    queue_changed();
  }

  /// The most frequent pair that comes `least` times or more, and first among equals; false: none.
  bool next(std::int64_t least, std::int32_t& left, std::int32_t& right) {
    while (!queue_.empty()) {
      const auto [count, other_left, other_right] = queue_.top();
      left = -other_left;
      right = -other_right;
      const std::int64_t now = pairs_[key_of(left, right)].count;
      if (now == count) return count >= least ? (queue_.pop(), true) : false;
      queue_.pop();
      if (now > 0) queue_.emplace(now, other_left, other_right);
    }
    return false;
  }

  /// Makes one token of a pair, wherever it is.
  void merge(std::int32_t left, std::int32_t right, std::int32_t result) {
    const std::vector<std::uint32_t> places = std::move(pairs_[key_of(left, right)].words);
    for (const std::uint32_t w : places) {
      std::vector<std::int32_t>& tokens = words_[w].tokens;
      const std::int64_t count = words_[w].count;
      std::size_t to = 0;  // tokens before it are as they stay
      for (std::size_t i = 0; i < tokens.size(); ++i, ++to) {
        if (tokens[i] != left || i + 1 >= tokens.size() || tokens[i + 1] != right) {
          tokens[to] = tokens[i];
          continue;
        }
        if (to > 0) {
          change(tokens[to - 1], left, w, -count);
          change(tokens[to - 1], result, w, count);
        }
        tokens[to] = result;
        ++i;
        if (i + 1 < tokens.size()) {
          change(right, tokens[i + 1], w, -count);
          change(result, tokens[i + 1], w, count);
        }
      }
      tokens.resize(to);
    }
    queue_changed();
  }

 private:
  struct Pair {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  ///< that have it, or had it
  };
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }
  void change(std::int32_t left, std::int32_t right, std::uint32_t word, std::int64_t by) {
    Pair& pair = pairs_[key_of(left, right)];
    pair.count += by;
    if (by < 0) return;
    if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
    changed_.emplace_back(left, right);
  }
  void queue_changed() {
    std::sort(changed_.begin(), changed_.end());
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (const auto& [left, right] : changed_) {
      const std::int64_t count = pairs_[key_of(left, right)].count;
      if (count > 0) queue_.emplace(count, -left, -right);
    }
    changed_.clear();
  }

  std::vector<Word> words_;
  std::unordered_map<std::uint64_t, Pair> pairs_;
  /// Counts, perhaps of before, and the pairs' tokens, negative: the lowest come first
  std::priority_queue<std::tuple<std::int64_t, std::int32_t, std::int32_t>> queue_;
  std::vector<std::pair<std::int32_t, std::int32_t>> changed_;
};

}  // namespace

void check_special_tokens(const std::vector<std::string>& special) {
  for (auto it = special.begin(); it != special.end(); ++it) {
    const auto refuse = [&](const char* why) {
      fail(ExitCode::kUsage, "tokenizer",
           "the special token '{}' {}; needed: a text of its own, such as <|endoftext|>",
           shown(*it), why);
    };
    const std::string bytes = bytes_of_letters(repaired_utf8(*it));
    if (it->empty()) refuse("is empty");
    if (!is_utf8(*it)) refuse("is not UTF-8");
    if (std::find(special.begin(), it, *it) != it) refuse("is given twice");
    if (it->size() == 1 || bytes.size() == 1)
      refuse("is a byte, or the letter that stands for one");
    if (bytes != *it) refuse("is written in letters that stand for other bytes in tokenizer.json");
  }
}

BpeTrainer::BpeTrainer(const std::string& pattern)
    : pattern_(known_pattern(pattern)), division_{Pattern(pattern_, "--pattern"), true} {}

void BpeTrainer::add(std::string_view text, const Tokenizer::Loop& loop) {
  std::string mended;
  if (!is_utf8(text)) text = mended = repaired_utf8(text);
  division_.divide(text, loop, [&](std::span<const std::vector<Division::Word>> parts) {
    std::vector<std::unordered_map<std::string_view, std::int64_t>> counts(parts.size());
    loop(std::ssize(parts), [&](std::int64_t number) {
      const auto part = static_cast<std::size_t>(number);
      for (const Division::Word word : parts[part])
        ++counts[part][text.substr(word.begin, word.end - word.begin)];
    });
    for (const auto& part : counts) {
      for (const auto& [word, count] : part) {
        const auto it = counts_.find(word);
        if (it != counts_.end()) {
          it->second += count;
        } else {
          counts_.emplace(word, count);
        }
      }
    }
  });
}

std::shared_ptr<const Tokenizer> BpeTrainer::train(
    std::int64_t vocab, const std::vector<std::string>& special,
    const std::function<bool(std::int64_t)>& goes_on) const {
  BpeParts parts;
  parts.divisions.push_back({pattern_, true});
  parts.tokens = special;
  for (std::size_t t = 0; t < special.size(); ++t)
    parts.added.push_back({.token = static_cast<std::int32_t>(t), .content = special[t]});
  std::vector<int> bytes(256);  // in the order of their letters
  for (int byte = 0; byte < 256; ++byte) bytes[static_cast<std::size_t>(byte)] = byte;
  const auto letter = [](int byte) {
    return decode_utf8(letter_of_byte(static_cast<unsigned char>(byte)).data()).code;
  };
  std::sort(bytes.begin(), bytes.end(), [&](int a, int b) { return letter(a) < letter(b); });
  std::vector<std::int32_t> byte_tokens(256);
  std::unordered_map<std::string, std::int32_t> numbers;
  for (const int byte : bytes) {
    byte_tokens[static_cast<std::size_t>(byte)] = static_cast<std::int32_t>(parts.tokens.size());
    parts.tokens.emplace_back(1, static_cast<char>(byte));
  }
  // By what the file calls them: a special token is not another of the same bytes
  for (std::size_t t = 0; t < parts.tokens.size(); ++t)
    numbers.emplace(t < special.size() ? special[t] : letters_of_bytes(parts.tokens[t]),
                    static_cast<std::int32_t>(t));

  std::vector<PairCounts::Word> words;
  for (const auto& [text, count] : counts_) {
    PairCounts::Word& word = words.emplace_back();
    word.count = count;
    for (const char byte : text)
      word.tokens.push_back(byte_tokens[static_cast<unsigned char>(byte)]);
  }
  PairCounts pairs(std::move(words));
  std::int32_t left = 0, right = 0;
  constexpr std::int64_t kLeast = 2;
  while (std::ssize(parts.tokens) < vocab && pairs.next(kLeast, left, right)) {
    const auto at = [&](std::int32_t token) { return static_cast<std::size_t>(token); };
    std::string both = parts.tokens[at(left)] + parts.tokens[at(right)];
    const auto [it, is_new] =
        numbers.emplace(letters_of_bytes(both), static_cast<std::int32_t>(parts.tokens.size()));
    if (is_new) parts.tokens.push_back(std::move(both));
    parts.merges.push_back({left, right, it->second});
    pairs.merge(left, right, it->second);
    if (parts.merges.size() % 64 == 0 && !goes_on(std::ssize(parts.tokens))) return nullptr;
  }
  return make_bpe(std::move(parts), "--out");
}

}  // namespace starling
