#include "apps/text/pattern.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <utility>

#include "apps/text/unicode.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {

bool Pattern::Class::has(std::uint32_t code) const {
  const bool in = ((kinds >> unicode::kind_of(code)) & 1) != 0 ||
                  std::any_of(ranges.begin(), ranges.end(), [&](const auto& range) {
                    return code >= range.first && code <= range.second;
                  });
  return in != negative;
}

/// Reads a pattern, and makes nodes of it from its end to its beginning.
class PatternReader {
 public:
  PatternReader(Pattern& pattern, std::string_view text) : pattern_(pattern), text_(text) {}

  void read() {
    if (!is_utf8(text_)) refuse("bytes that are no UTF-8");
    const Alternatives all = alternatives();
    if (at_ < text_.size()) refuse("a ) without its (");
    const int match = add({});
    for (const Sequence& sequence : all) {
      if (least(sequence) == 0) refuse("an alternative that may match nothing");
      pattern_.firsts_.push_back(made(sequence, match));
    }
    if (all.size() > 32) refuse("more than 32 alternatives");
  }

 private:
  using Class = Pattern::Class;
  using Node = Pattern::Node;
  using Step = Pattern::Step;
  struct Item;
  using Sequence = std::vector<Item>;
  using Alternatives = std::vector<Sequence>;
  struct Item {
    Step step = Step::kRun;
    Class characters = {};
    std::uint32_t least = 1, most = 1;
    bool possessive = false;
    Alternatives inner = {};
  };
  static constexpr std::uint32_t kEndless = 0xffffffff;
  static constexpr std::size_t kMostDepth = 16, kMostNodes = 4096;

  [[noreturn]] void refuse(std::string_view what) const {
    fail(ExitCode::kUsage, "tokenizer", {.file = pattern_.source_},
         "the pattern {} has {} at character {}; needed: classes, repeats of these, alternatives "
         "and looks ahead",
         shown(text_), what, at_ + 1);
  }
  bool more() const { return at_ < text_.size(); }
  char peek() const { return more() ? text_[at_] : '\0'; }
  bool take(std::string_view token) {
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  std::uint32_t character() {
    if (!more()) refuse("an end");
    const Decoded decoded = decode_utf8(text_.data() + at_);
    at_ += decoded.bytes;
    return decoded.code;
  }

  Alternatives alternatives() {
    if (++depth_ > kMostDepth) refuse("too many ( within one another");
    Alternatives all;
    do {
      all.emplace_back();
      while (more() && peek() != '|' && peek() != ')') all.back().push_back(item());
    } while (take("|"));
    --depth_;
    return all;
  }

  Item item() {
    Item item;
    if (take("(")) {
      const bool before = fold_;
      if (take("?i:")) {
        fold_ = true;
      } else if (take("?=")) {
        item.step = Step::kAhead;
      } else if (take("?!")) {
        item.step = Step::kNotAhead;
      } else if (!take("?:") && peek() == '?') {
        refuse("a group that is not (?:, (?i:, (?= or (?!");
      }
      if (item.step == Step::kRun) item.step = Step::kChoice;
      item.inner = alternatives();
      if (!take(")")) refuse("a ( without its )");
      fold_ = before;
    } else if (take("[")) {
      item.characters = bracket();
    } else if (take("\\")) {
      item.characters = escape();
    } else if (take(".")) {
      item.characters = {.ranges = {{'\n', '\n'}}, .negative = true};
    } else {
      for (const std::string_view special : {"^", "$", "*", "+", "?", "{"}) {
        if (text_.substr(at_).starts_with(special)) refuse(shown(special));
      }
      const std::uint32_t code = character();
      add_range(item.characters, code, code);
    }
    repeat(item);
    return item;
  }

  void repeat(Item& item) {
    if (take("?")) {
      item.least = 0;
    } else if (take("*")) {
      item.least = 0;
      item.most = kEndless;
    } else if (take("+")) {
      item.most = kEndless;
    } else if (take("{")) {
      item.least = number();
      item.most = item.least;
      if (take(",")) item.most = peek() == '}' ? kEndless : number();
      if (!take("}") || item.most < item.least) refuse("a { that is no {2}, {2,} or {2,5}");
    } else {
      return;
    }
    if (item.step != Step::kRun && (item.most != 1 || item.least != 0))
      refuse("a group that is repeated");
    if (item.step == Step::kAhead || item.step == Step::kNotAhead) refuse("a look ahead with ?");
    if (peek() == '?') refuse("a repeat that takes the fewest");
    item.possessive = take("+");
    if (item.possessive && item.step == Step::kChoice) refuse("a group with ?+");
    if (std::string_view("*+?{").find(peek()) != std::string_view::npos && more())
      refuse("a repeat of a repeat");
  }

  std::uint32_t number() {
    std::uint32_t value = 0;
    if (peek() < '0' || peek() > '9') refuse("a { without a number");
    while (peek() >= '0' && peek() <= '9') {
      value = 10 * value + static_cast<std::uint32_t>(peek() - '0');
      ++at_;
      if (value > 100000) refuse("a number above 100,000");
    }
    return value;
  }

  /// After a backslash.
  Class escape() {
    const char letter = peek();
    Class result;
    constexpr std::uint64_t kSpaces = ~std::uint64_t{0} << unicode::kWhiteSpace;
    if (letter == 's' || letter == 'S') {
      result = {.kinds = kSpaces, .negative = letter == 'S'};
    } else if (letter == 'd' || letter == 'D') {
      result = {.kinds = category("Nd"), .negative = letter == 'D'};
    } else if (letter == 'p' || letter == 'P') {
      ++at_;
      std::string name(1, peek());
      if (name == "{") {
        const std::size_t close = text_.find('}', at_);
        if (close == std::string_view::npos) refuse("a \\p{ without its }");
        name = text_.substr(at_ + 1, close - at_ - 1);
        at_ = close;
      }
      result = {.kinds = category(name), .negative = letter == 'P'};
    } else {
      const std::uint32_t code = escaped_character();
      add_range(result, code, code);
      return result;
    }
    ++at_;
    return result;
  }

  std::uint32_t escaped_character() {
    if (take("x{")) return hexadecimal(6, true);
    if (take("x")) return hexadecimal(2, false);
    if (take("u")) return hexadecimal(4, false);
    constexpr std::string_view kLetters = "nrtfv", kMeaning = "\n\r\t\f\v";
    if (const std::size_t at = kLetters.find(peek()); more() && at != std::string_view::npos) {
      ++at_;
      return static_cast<std::uint32_t>(kMeaning[at]);
    }
    const bool letter = (peek() >= 'a' && peek() <= 'z') || (peek() >= 'A' && peek() <= 'Z') ||
                        (peek() >= '0' && peek() <= '9');
    if (letter) refuse("\\" + std::string(1, peek()));
    return character();
  }

  std::uint32_t hexadecimal(std::size_t most, bool braces) {
    const std::string_view rest = text_.substr(at_, most);
    std::uint32_t code = 0;
    const auto end = std::from_chars(rest.data(), rest.data() + rest.size(), code, 16).ptr;
    const auto digits = static_cast<std::size_t>(end - rest.data());
    at_ += digits;
    if (digits == 0 || (!braces && digits < most) || (braces && !take("}")) ||
        code >= unicode::kCodePoints)
      refuse("a number of a character that is none");
    return code;
  }

  /// Both "L" and "Lu"; kinds with and without white space.
  std::uint64_t category(std::string_view name) const {
    std::uint64_t kinds = 0;
    for (std::size_t k = 0; k < unicode::kCategories; ++k) {
      if (!name.empty() && unicode::kCategoryNames.substr(2 * k, 2).starts_with(name))
        kinds |= (std::uint64_t{1} << k) | (std::uint64_t{1} << (k | unicode::kWhiteSpace));
    }
    if (kinds == 0) refuse("the class \\p{" + shown(name, 20) + "}");
    return kinds;
  }

  /// After an opening bracket.
  Class bracket() {
    Class result;
    result.negative = take("^");
    bool first = true;
    for (; !take("]") || first; first = false) {
      if (!more()) refuse("a [ without its ]");
      if (first && text_[at_ - 1] == ']') refuse("an empty []");
      if (peek() == '[' || text_.substr(at_).starts_with("&&")) refuse("a class within a class");
      std::uint32_t low = 0;
      if (take("\\")) {
        if (std::string_view("sSdDpP").find(peek()) != std::string_view::npos && more()) {
          const Class inner = escape();
          if (!inner.negative) {
            result.kinds |= inner.kinds;
          } else {
            result.kinds |= ~inner.kinds;
          }
          continue;
        }
        low = escaped_character();
      } else {
        low = character();
      }
      std::uint32_t high = low;
      if (peek() == '-' && !text_.substr(at_).starts_with("-]") && at_ + 1 < text_.size()) {
        ++at_;
        high = take("\\") ? escaped_character() : character();
        if (high < low) refuse("a range that ends before it begins");
      }
      add_range(result, low, high);
    }
    return result;
  }

  /// With letters of the other case in (?i: these are what CaseFolding.txt has for ASCII.
  void add_range(Class& to, std::uint32_t low, std::uint32_t high) const {
    to.ranges.emplace_back(low, high);
    if (!fold_) return;
    if (high >= 0x80) refuse("characters beyond ASCII in (?i:");
    for (std::uint32_t code = low; code <= high; ++code) {
      const std::uint32_t other = code ^ 0x20, small = code | 0x20;
      if (small < 'a' || small > 'z') continue;
      to.ranges.emplace_back(other, other);
      if (small == 's') to.ranges.emplace_back(0x17f, 0x17f);    // ſ
      if (small == 'k') to.ranges.emplace_back(0x212a, 0x212a);  // the sign of kelvins
    }
  }

  static std::uint64_t least(const Sequence& sequence) {
    std::uint64_t sum = 0;
    for (const Item& item : sequence) {
      if (item.step == Step::kRun) sum += item.least;
      if (item.step != Step::kChoice || item.least == 0) continue;
      std::uint64_t shortest = kEndless;
      for (const Sequence& inner : item.inner) shortest = std::min(shortest, least(inner));
      sum += shortest;
    }
    return sum;
  }

  int add(Node node) {
    if (pattern_.nodes_.size() == kMostNodes) refuse("more than 4096 parts");
    pattern_.nodes_.push_back(std::move(node));
    return static_cast<int>(pattern_.nodes_.size()) - 1;
  }
  int made(const Sequence& sequence, int next) {
    for (auto item = sequence.rbegin(); item != sequence.rend(); ++item) next = made(*item, next);
    return next;
  }
  int made(const Item& item, int next) {
    Node node{.step = item.step,
              .possessive = item.possessive,
              .least = item.least,
              .most = item.most,
              .next = next};
    if (item.step == Step::kRun) {
      node.bit = bit_of(item.characters);
      return add(std::move(node));
    }
    const int after = item.step == Step::kChoice ? next : add({});
    for (const Sequence& inner : item.inner) node.choices.push_back(made(inner, after));
    if (item.step == Step::kChoice && item.least == 0) node.choices.push_back(next);
    return add(std::move(node));
  }
  std::uint64_t bit_of(const Class& characters) {
    auto& classes = pattern_.classes_;
    const auto it = std::find(classes.begin(), classes.end(), characters);
    const auto number = static_cast<std::size_t>(it - classes.begin());
    if (it == classes.end()) classes.push_back(characters);
    if (classes.size() > 64) refuse("more than 64 classes of characters");
    return std::uint64_t{1} << number;
  }

  Pattern& pattern_;
  std::string_view text_;
  std::size_t at_ = 0, depth_ = 0;
  bool fold_ = false;
};

Pattern::Pattern(std::string_view pattern, const std::string& source) : source_(source) {
  PatternReader(*this, pattern).read();
  for (std::size_t k = 0; k < classes_.size(); ++k) {
    const std::uint64_t bit = std::uint64_t{1} << k;
    for (std::uint32_t code = 0; code < 128; ++code) {
      if (classes_[k].has(code)) ascii_[code] |= bit;
    }
    const auto& ranges = classes_[k].ranges;
    if (std::any_of(ranges.begin(), ranges.end(), [](auto range) { return range.second >= 128; }))
      with_ranges_ |= bit;
    for (std::size_t kind = 0; kind < by_kind_.size(); ++kind) {
      if ((((classes_[k].kinds >> kind) & 1) != 0) != classes_[k].negative) by_kind_[kind] |= bit;
    }
  }
  // What cannot be what comes next is never given back for it
  for (Node& node : nodes_) {
    const Node& next = nodes_[static_cast<std::size_t>(node.next)];
    if (node.step != Step::kRun || next.step != Step::kRun || next.least == 0) continue;
    const std::uint64_t both = node.bit | next.bit;
    const auto apart = [&](std::uint64_t classes) { return (classes & both) != both; };
    node.possessive = node.possessive || ((with_ranges_ & both) == 0 &&
                                          std::all_of(ascii_.begin(), ascii_.end(), apart) &&
                                          std::all_of(by_kind_.begin(), by_kind_.end(), apart));
  }
  for (std::size_t code = 0; code < ascii_firsts_.size(); ++code) {
    for (std::size_t k = 0; k < firsts_.size(); ++k) {
      const Node& first = nodes_[static_cast<std::size_t>(firsts_[k])];
      if (first.step != Step::kRun || first.least == 0 || (ascii_[code] & first.bit) != 0)
        ascii_firsts_[code] |= 1u << k;
    }
  }
}

std::uint64_t Pattern::others_at(const char* at, std::uint32_t& bytes) const {
  const Decoded decoded = decode_utf8(at);
  bytes = decoded.bytes;
  std::uint64_t classes = by_kind_[unicode::kind_of(decoded.code)];
  for (std::uint64_t left = with_ranges_; left != 0; left &= left - 1) {
    const std::uint64_t bit = left & -left;
    const bool in = classes_[static_cast<std::size_t>(std::countr_zero(left))].has(decoded.code);
    classes = in ? classes | bit : classes & ~bit;
  }
  return classes;
}

const char* Pattern::run(int number, const char* at, Budget& budget) const {
  for (;;) {
    const Node& node = nodes_[static_cast<std::size_t>(number)];
    switch (node.step) {
      case Step::kMatch: return at;
      case Step::kAhead:
      case Step::kNotAhead: {
        bool found = false;
        for (const int choice : node.choices) found = found || run(choice, at, budget) != nullptr;
        if (found != (node.step == Step::kAhead)) return nullptr;
        number = node.next;
        continue;
      }
      case Step::kChoice:
        for (std::size_t k = 0; k + 1 < node.choices.size(); ++k) {
          if (const char* const found = run(node.choices[k], at, budget)) return found;
        }
        number = node.choices.back();
        continue;
      case Step::kRun: break;
    }
    const char* const begin = at;
    std::uint32_t count = 0, bytes = 0;
    while (count < node.most && at != budget.end && (classes_at(at, bytes) & node.bit) != 0) {
      at += bytes;
      ++count;
    }
    if (count < node.least) return nullptr;
    if (nodes_[static_cast<std::size_t>(node.next)].step == Step::kMatch) return at;
    if (node.possessive || count == node.least) {
      number = node.next;
      continue;
    }
    for (;; --count) {
      if (const char* const found = run(node.next, at, budget)) return found;
      if (count == node.least) return nullptr;
      if (budget.steps-- == 0)
        fail(ExitCode::kUsage, "tokenizer", {.file = source_},
             "its pattern takes too long for a text; needed: one without many ways to match");
      do --at;
      while (at != begin && (static_cast<unsigned char>(*at) & 0xc0) == 0x80);
    }
  }
}

std::size_t Pattern::match(const char* text, const char* end) const {
  if (text == end) return 0;
  const auto first = static_cast<unsigned char>(*text);
  Budget budget{end, (std::uint64_t{1} << 20) + 16 * static_cast<std::uint64_t>(end - text)};
  std::uint32_t left = first < 0x80
                           ? ascii_firsts_[first]
                           : static_cast<std::uint32_t>((std::uint64_t{1} << firsts_.size()) - 1);
  for (; left != 0; left &= left - 1) {
    const int begin = firsts_[static_cast<std::size_t>(std::countr_zero(left))];
    if (const char* const found = run(begin, text, budget))
      return static_cast<std::size_t>(found - text);
  }
  return 0;
}

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
    loop(std::ssize(parts), [&](std::int64_t number) {
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

const std::vector<KnownPattern>& known_patterns() {
  static const std::string contraction = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)",
                           large = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])",
                           small = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])", before = R"([^\r\n\p{L}\p{N}]?)";
  static const std::vector<KnownPattern> all = {
      {"gpt2",
       R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
       {"r50k", "p50k", "gpt2"}},
      {"cl100k",
       R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
       R"(\s++(?![\s\S])|\s*[\r\n]|\s+(?!\S)|\s)",
       {"cl100k"}},
      {"o200k",
       before + large + "*" + small + "+" + contraction + before + large + "+" + small + "*" +
           contraction + R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       {"o200k"}},
  };
  return all;
}

std::vector<std::string> pattern_names() {
  std::vector<std::string> names;
  for (const KnownPattern& known : known_patterns()) names.push_back(known.name);
  return names;
}

std::string known_pattern(std::string_view name) {
  for (const KnownPattern& known : known_patterns()) {
    if (known.name == name) return known.text;
  }
  return {};
}

}  // namespace starling
