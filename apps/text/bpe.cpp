#include "apps/text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <queue>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "apps/text/pattern.h"
#include "apps/text/unicode.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {
namespace {

constexpr std::uint32_t kBlankMark = 0x2581;
constexpr std::string_view kBlankMarkText = "\xe2\x96\x81";
constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();

/// Hash table with open addressing: rank and result of a pair of adjacent tokens.
class Pairs {
 public:
  struct Found {
    std::uint32_t rank = kNever, result = 0;
  };
  explicit Pairs(const BpeParts& parts)
      : slots_(std::bit_ceil(2 * parts.merges.size() + 2)),
        shift_(64 - std::countr_zero(slots_.size())) {
    std::uint32_t number = 0;
    for (const BpeParts::Merge& merge : parts.merges) {
      Slot& slot = slots_[place(merge.left, merge.right)];
      slot.key = key_of(merge.left, merge.right);
      slot.found = {parts.ranked_by_result ? static_cast<std::uint32_t>(merge.result) : number,
                    static_cast<std::uint32_t>(merge.result)};
      ++number;
    }
  }
  Found find(std::int32_t left, std::int32_t right) const {
    return slots_[place(left, right)].found;
  }

 private:
  struct Slot {
    std::uint64_t key = ~std::uint64_t{0};
    Found found;
  };
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t place(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    auto at = static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> shift_);
    while (slots_[at].key != key && slots_[at].key != ~std::uint64_t{0})
      at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  std::vector<Slot> slots_;
  int shift_;
};

/// Tokens of words that came before, the last of those that share a place. A line of the
/// processor's cache each.
class Words {
 public:
  static constexpr std::size_t kLongest = 31, kMostTokens = 7;
  struct alignas(64) Word {
    std::array<std::uint64_t, 4> key;  ///< the word's bytes, zeros, and its length + 1 at the end
    std::array<std::int32_t, kMostTokens> tokens;
    std::uint32_t count;
  };
  Words() : words_(static_cast<Word*>(std::aligned_alloc(alignof(Word), kPlaces * sizeof(Word)))) {
    if (!words_) throw std::bad_alloc();
    std::memset(static_cast<void*>(words_.get()), 0, kPlaces * sizeof(Word));
  }
  /// The place of a word of 1 to kLongest bytes, of which `end` is where memory ends.
  Word& place(const char* word, std::size_t bytes, const char* end,
              std::array<std::uint64_t, 4>& key) {
    key = {};
    if (static_cast<std::size_t>(end - word) >= sizeof key) {
      const std::size_t words = bytes / 8, rest = bytes % 8;
      std::memcpy(key.data(), word, sizeof key);
      key[words] &= ~(~std::uint64_t{0} << 8 * rest);
      for (std::size_t k = words + 1; k < key.size(); ++k) key[k] = 0;
    } else {
      std::memcpy(key.data(), word, bytes);
    }
    key[3] |= static_cast<std::uint64_t>(bytes + 1) << 56;
    std::uint64_t hash = key[0] * 0x9E3779B97F4A7C15u ^ key[3];
    if (bytes > 8) hash ^= key[1] * 0xC2B2AE3D27D4EB4Fu ^ key[2] * 0x165667B19E3779F9u;
    hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93u;
    return words_[hash >> (64 - kPlacesLog2)];
  }

 private:
  static constexpr int kPlacesLog2 = 15;
  static constexpr std::size_t kPlaces = std::size_t{1} << kPlacesLog2;
  struct Free {
    void operator()(Word* memory) const { std::free(memory); }
  };
  std::unique_ptr<Word[], Free> words_;
};

/// Tokens that are found in texts themselves.
class AddedTokens {
 public:
  void add(const BpeParts::Added& added) {
    auto& same = by_first_[static_cast<unsigned char>(added.content[0])];
    if (same.empty()) firsts_ += added.content[0];
    same.push_back(added);
    std::stable_sort(same.begin(), same.end(), [](const auto& a, const auto& b) {
      return a.content.size() > b.content.size();
    });
  }
  /// Calls between(text) and found(token) in the text's order.
  template <class Between, class Found>
  void divide(std::string_view text, const Between& between, const Found& found) const {
    std::size_t begin = 0;
    for (std::size_t at = find(text, 0); at != text.npos; at = find(text, at)) {
      const BpeParts::Added* longest = nullptr;
      for (const auto& added : by_first_[static_cast<unsigned char>(text[at])]) {
        if (text.compare(at, added.content.size(), added.content) != 0) continue;
        longest = &added;
        break;
      }
      if (!longest) {
        ++at;
        continue;
      }
      std::size_t from = at, to = at += longest->content.size();
      if (longest->left_blanks) from = blanks_before(text, from);
      if (longest->right_blanks) to = blanks_after(text, to);
      from = std::max(from, begin);
      if (from > begin) between(text.substr(begin, from - begin));
      found(longest->token);
      begin = std::max(to, begin);
    }
    if (begin < text.size()) between(text.substr(begin));
  }

 private:
  std::size_t find(std::string_view text, std::size_t at) const {
    if (firsts_.size() == 1) return text.find(firsts_[0], at);
    return firsts_.empty() ? text.npos : text.find_first_of(firsts_, at);
  }
  static bool is_blank(std::string_view text, std::size_t at) {
    return (unicode::kind_of(decode_utf8(text.data() + at).code) & unicode::kWhiteSpace) != 0;
  }
  static std::size_t blanks_before(std::string_view text, std::size_t at) {
    while (at > 0) {
      std::size_t before = at - 1;
      while ((static_cast<unsigned char>(text[before]) & 0xc0) == 0x80) --before;
      if (!is_blank(text, before)) break;
      at = before;
    }
    return at;
  }
  static std::size_t blanks_after(std::string_view text, std::size_t at) {
    while (at < text.size() && is_blank(text, at)) at += decode_utf8(text.data() + at).bytes;
    return at;
  }
  std::string firsts_;
  std::array<std::vector<BpeParts::Added>, 256> by_first_;
};

class Bpe final : public Tokenizer {
 public:
  Bpe(BpeParts parts, const std::string& source) : parts_(std::move(parts)), pairs_(parts_) {
    std::vector<bool> is_added(parts_.tokens.size());
    for (const BpeParts::Added& added : parts_.added) {
      (added.late ? late_ : early_).add(added);
      if (!added.special) (added.late ? late_plain_ : early_plain_).add(added);
      is_added[static_cast<std::size_t>(added.token)] = true;
    }
    if (!parts_.characters.empty()) {
      byte_ = parts_.fallback;
      for (const auto& [code, token] : parts_.characters) {
        if (code < 0x80) {
          byte_[code] = token;
        } else {
          characters_.emplace(code, token);
        }
      }
      if (const auto blank = characters_.find(kBlankMark); blank != characters_.end())
        byte_[' '] = blank->second;
    } else {
      take_bytes(is_added, source);
    }
    for (const BpeParts::Division& division : parts_.divisions)
      divisions_.push_back({Pattern(division.pattern, source), division.keeps_rest});
  }

  void take_bytes(const std::vector<bool>& is_added, const std::string& source) {
    std::vector<bool> made(parts_.tokens.size());
    for (const BpeParts::Merge& merge : parts_.merges)
      made[static_cast<std::size_t>(merge.result)] = true;
    byte_.fill(-1);
    for (std::size_t t = 0; t < parts_.tokens.size(); ++t) {
      const std::string& bytes = parts_.tokens[t];
      // An added token that no merge makes is no part of words, unless it is a byte's own letter
      if (bytes.empty() || (is_added[t] && !made[t] &&
                            bytes != letter_of_byte(static_cast<unsigned char>(bytes[0]))))
        continue;
      const auto token = static_cast<std::int32_t>(t);
      std::int32_t* const byte = &byte_[static_cast<unsigned char>(bytes[0])];
      if (bytes.size() == 1 && *byte < 0) *byte = token;
      if (parts_.whole_words) whole_.emplace(bytes, token);
    }
    for (std::size_t byte = 0; byte < byte_.size(); ++byte) {
      if (byte_[byte] >= 0) continue;
      fail(ExitCode::kUsage, "tokenizer", {.file = source},
           "has no token for the byte {0:#04x} ({1}); needed: one for each of the 256 bytes", byte,
           letter_of_byte(static_cast<unsigned char>(byte)));
    }
  }

  std::int64_t vocab() const override { return std::ssize(parts_.tokens); }
  std::string_view bytes_of(std::int32_t token) const override {
    const auto at = static_cast<std::size_t>(token);  // large where it is negative
    return at < parts_.tokens.size() ? std::string_view(parts_.tokens[at]) : std::string_view();
  }
  std::string text() const override { return huggingface(); }
  std::string huggingface() const override {
    return parts_.huggingface.empty() ? huggingface_text(parts_) : parts_.huggingface;
  }

  void encode(std::string_view text, std::vector<std::int32_t>& tokens) const override {
    encode(text, early_, late_, tokens);
  }
  void encode_plain(std::string_view text, std::vector<std::int32_t>& tokens) const override {
    encode(text, early_plain_, late_plain_, tokens);
  }

  void encode(std::string_view text, const Loop& loop, const Sink& sink) const override {
    constexpr std::size_t kGroup = std::size_t{1} << 18, kAtOnce = std::size_t{1} << 25;
    struct Group {
      std::size_t begin, bytes = 0;
      std::vector<std::int32_t> tokens = {};
    };
    std::string mended;
    std::vector<Piece> pieces;
    std::size_t bytes = 0;
    const auto flush = [&] {
      std::vector<Group> groups;
      for (std::size_t k = 0; k < pieces.size(); ++k) {
        if (groups.empty() || groups.back().bytes > kGroup) groups.push_back({k});
        groups.back().bytes += pieces[k].bytes();
      }
      loop(std::ssize(groups), [&](std::int64_t number) {
        const auto group = static_cast<std::size_t>(number);
        const std::size_t end = group + 1 < groups.size() ? groups[group + 1].begin : pieces.size();
        Borrowed scratch(*this);
        for (std::size_t k = groups[group].begin; k < end; ++k)
          encode(pieces[k], *scratch, groups[group].tokens);
      });
      for (const Group& group : groups) sink(group.tokens, group.bytes);
      pieces.clear();
      bytes = 0;
    };
    const auto take = [&](Piece piece) {
      if (piece.text.size() > Division::kLong && !divisions_.empty()) {
        flush();
        return long_piece(piece, loop, sink);
      }
      pieces.push_back(piece);
      bytes += piece.bytes();
      if (bytes > kAtOnce) flush();
    };
    each_piece(valid(text, mended), early_, late_, take);
    flush();
  }

 private:
  /// What a thread works with.
  struct Scratch {
    Words words;
    std::vector<std::int32_t> word;  ///< tokens of one that is not kept
    std::vector<std::uint32_t> ranks;
    std::vector<std::int32_t> results;
  };
  class Borrowed {
   public:
    explicit Borrowed(const Bpe& from) : from_(from) {
      const std::lock_guard lock(from_.mutex_);
      if (!from_.idle_.empty()) {
        scratch_ = std::move(from_.idle_.back());
        from_.idle_.pop_back();
      }
      if (!scratch_) scratch_ = std::make_unique<Scratch>();
    }
    ~Borrowed() {
      const std::lock_guard lock(from_.mutex_);
      from_.idle_.push_back(std::move(scratch_));
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    Scratch& operator*() { return *scratch_; }

   private:
    const Bpe& from_;
    std::unique_ptr<Scratch> scratch_;
  };
  std::string_view valid(std::string_view text, std::string& mended) const {
    if (!is_utf8(text)) text = mended = repaired_utf8(text);
    if (!parts_.composed) return text;
    std::string buffer, whole;
    if (unicode::composed(text, buffer).data() == text.data()) return text;
    // Added tokens are found before, and stay as they are
    early_.divide(
        text, [&](std::string_view piece) { whole += unicode::composed(piece, buffer); },
        [&](std::int32_t token) { whole += bytes_of(token); });
    return mended = std::move(whole);
  }

  /// A part of a text that is words, or a token that was found in it.
  struct Piece {
    std::string_view text = {};
    std::int32_t token = -1;
    bool first = false;  ///< the whole text begins with it
    std::size_t bytes() const { return std::max<std::size_t>(text.size(), 1); }
  };
  template <class Use>
  static void each_piece(std::string_view text, const AddedTokens& early, const AddedTokens& late,
                         const Use& use) {
    const auto token = [&](std::int32_t number) { use(Piece{.token = number}); };
    const auto words = [&](std::string_view piece) {
      use(Piece{.text = piece, .first = piece.data() == text.data()});
    };
    early.divide(
        text, [&](std::string_view piece) { late.divide(piece, words, token); }, token);
  }
  /// With the blank that words may have to begin with.
  std::string_view begun(const Piece& piece, std::string& longer) const {
    using Prefix = BpeParts::Prefix;
    const std::string_view text = piece.text;
    const bool blank =
        text.starts_with(' ') || (!parts_.characters.empty() && text.starts_with(kBlankMarkText));
    if (parts_.prefix == Prefix::kNone || (blank && parts_.prefix != Prefix::kAlways) ||
        (parts_.prefix == Prefix::kFirstUnlessBlank && !piece.first))
      return text;
    return longer = " " + std::string(text);
  }
  void encode(std::string_view text, const AddedTokens& early, const AddedTokens& late,
              std::vector<std::int32_t>& tokens) const {
    std::string mended;
    Borrowed scratch(*this);
    each_piece(valid(text, mended), early, late,
               [&](Piece piece) { encode(piece, *scratch, tokens); });
  }
  void encode(const Piece& piece, Scratch& scratch, std::vector<std::int32_t>& tokens) const {
    if (piece.token >= 0) return tokens.push_back(piece.token);
    std::string longer;
    const std::string_view text = begun(piece, longer);
    words(0, text, text.data() + text.size(), scratch, tokens);
  }

  /// Adds the tokens of a text's words by the divisions from `level` on. `end`: where the memory
  /// that it lies in ends.
  void words(std::size_t level, std::string_view text, const char* end, Scratch& scratch,
             std::vector<std::int32_t>& tokens) const {
    if (level == divisions_.size()) return word(text.data(), text.size(), end, scratch, tokens);
    divisions_[level].divide(text, 0, text.size(), [&](Division::Word found) {
      words(level + 1, text.substr(found.begin, found.end - found.begin), end, scratch, tokens);
    });
  }

  void long_piece(const Piece& piece, const Loop& loop, const Sink& sink) const {
    std::string longer;
    const std::string_view text = begun(piece, longer);
    divisions_[0].divide(text, loop, [&](std::span<const std::vector<Division::Word>> parts) {
      std::vector<std::vector<std::int32_t>> tokens(parts.size());
      loop(std::ssize(parts), [&](std::int64_t number) {
        const auto part = static_cast<std::size_t>(number);
        Borrowed scratch(*this);
        for (const Division::Word found : parts[part])
          words(1, text.substr(found.begin, found.end - found.begin), text.data() + text.size(),
                *scratch, tokens[part]);
      });
      for (std::size_t part = 0; part < parts.size(); ++part) {
        if (!parts[part].empty())
          sink(tokens[part], parts[part].back().end - parts[part].front().begin);
      }
    });
  }

  void word(const char* bytes, std::size_t count, const char* end, Scratch& scratch,
            std::vector<std::int32_t>& tokens) const {
    if (count == 0) return;
    if (count == 1) return tokens.push_back(byte_[static_cast<unsigned char>(*bytes)]);
    if (count > Words::kLongest) {
      merge(bytes, count, scratch);
      tokens.insert(tokens.end(), scratch.word.begin(), scratch.word.end());
      return;
    }
    std::array<std::uint64_t, 4> key;
    Words::Word& known = scratch.words.place(bytes, count, end, key);
    if (known.key != key) {
      merge(bytes, count, scratch);
      if (scratch.word.size() > Words::kMostTokens) {
        tokens.insert(tokens.end(), scratch.word.begin(), scratch.word.end());
        return;
      }
      known.key = key;
      known.count = static_cast<std::uint32_t>(scratch.word.size());
      std::copy(scratch.word.begin(), scratch.word.end(), known.tokens.begin());
    }
    if (known.count == 1) return tokens.push_back(known.tokens[0]);
    tokens.insert(tokens.end(), known.tokens.begin(), known.tokens.begin() + known.count);
  }

  /// Makes scratch.word of a word's bytes.
  void merge(const char* bytes, std::size_t count, Scratch& scratch) const {
    std::vector<std::int32_t>& word = scratch.word;
    word.clear();
    if (parts_.whole_words) {
      if (const auto it = whole_.find(std::string_view(bytes, count)); it != whole_.end())
        return word.push_back(it->second);
    }
    for (std::size_t i = 0; i < count;) {
      const auto byte = static_cast<unsigned char>(bytes[i]);
      std::size_t end = i + 1;
      if (byte >= 0x80 && !parts_.characters.empty()) {
        const Decoded decoded = decode_utf8(bytes + i);
        end = i + decoded.bytes;
        if (const auto it = characters_.find(decoded.code); it != characters_.end()) {
          word.push_back(it->second);
          i = end;
        }
      }
      for (; i < end; ++i) word.push_back(byte_[static_cast<unsigned char>(bytes[i])]);
    }
    count = word.size();
    if (count > kShort) return merge_long(word);
    std::vector<std::uint32_t>& ranks = scratch.ranks;
    std::vector<std::int32_t>& results = scratch.results;
    ranks.resize(count);
    results.resize(count);
    const auto look = [&](std::size_t i) {
      if (i + 1 >= word.size()) return void(ranks[i] = kNever);
      const Pairs::Found found = pairs_.find(word[i], word[i + 1]);
      ranks[i] = found.rank;
      results[i] = static_cast<std::int32_t>(found.result);
    };
    for (std::size_t i = 0; i < count; ++i) look(i);
    for (;;) {
      const auto best = static_cast<std::size_t>(
          std::min_element(ranks.begin(), ranks.begin() + std::ssize(word)) - ranks.begin());
      if (ranks[best] == kNever) return;
      word[best] = results[best];
      const auto erase = [&](auto& from) {
        std::copy(from.begin() + static_cast<std::ptrdiff_t>(best) + 2,
                  from.begin() + std::ssize(word),
                  from.begin() + static_cast<std::ptrdiff_t>(best) + 1);
      };
      erase(ranks);
      erase(results);
      erase(word);
      word.pop_back();
      look(best);
      if (best > 0) look(best - 1);
    }
  }

  /// The same with a heap, for words of which trying all pairs at each step would take long.
  void merge_long(std::vector<std::int32_t>& word) const {
    constexpr std::int32_t kGone = -1;
    using Candidate =
        std::tuple<std::uint32_t, std::size_t, std::int32_t, std::int32_t, std::int32_t>;
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    std::vector<std::size_t> next(word.size()), before(word.size());
    for (std::size_t i = 0; i < word.size(); ++i) {
      next[i] = i + 1;
      before[i] = i - 1;
    }
    const auto look = [&](std::size_t i) {
      if (next[i] >= word.size()) return;
      const std::int32_t left = word[i], right = word[next[i]];
      const Pairs::Found found = pairs_.find(left, right);
      if (found.rank != kNever)
        queue.emplace(found.rank, i, left, right, static_cast<std::int32_t>(found.result));
    };
    for (std::size_t i = 0; i < word.size(); ++i) look(i);
    while (!queue.empty()) {
      const auto [rank, i, left, right, result] = queue.top();
      queue.pop();
      if (word[i] != left || next[i] >= word.size() || word[next[i]] != right) continue;
      word[i] = result;
      const std::size_t gone = next[i];
      word[gone] = kGone;
      next[i] = next[gone];
      if (next[i] < word.size()) before[next[i]] = i;
      look(i);
      if (i > 0) look(before[i]);
    }
    std::erase(word, kGone);
  }

  static constexpr std::size_t kShort = 64;

  BpeParts parts_;
  Pairs pairs_;
  AddedTokens early_, late_;
  AddedTokens early_plain_, late_plain_;  ///< those of them that are not special
  std::vector<Division> divisions_;
  std::array<std::int32_t, 256> byte_{};  ///< of words of characters ASCII's, and bytes'
  std::unordered_map<std::uint32_t, std::int32_t> characters_;
  TextMap<std::int32_t> whole_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_bpe(BpeParts parts, const std::string& source) {
  return std::make_shared<Bpe>(std::move(parts), source);
}

}  // namespace starling
