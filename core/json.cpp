#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/config.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/text.h"

namespace starling {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxFileBytes = std::size_t{16} << 20;

/// "line L, column C" (from 1) of a byte offset.
std::string position_text(std::string_view text, std::size_t offset) {
  offset = std::min(offset, text.size());
  std::size_t line = 1, column = 1;
  for (const char c : text.substr(0, offset)) {
    if (c == '\n') {
      ++line;
      column = 1;
    } else if ((static_cast<unsigned char>(c) & 0xc0u) != 0x80u) {
      ++column;
    }
  }
  return fmt::format("line {}, column {}", line, column);
}

/// Walks the text for nlohmann's parser and tells how far it got, which the parser itself keeps to
/// itself.
class CountingIterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator() = default;
  CountingIterator(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    if (furthest_) *furthest_ = at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) {
    return a.at_ == b.at_;
  }
  friend bool operator!=(const CountingIterator& a, const CountingIterator& b) {
    return a.at_ != b.at_;
  }

 private:
  const char* at_ = nullptr;
  const char** furthest_ = nullptr;
};

/// Builds the value, and refuses what the parser lets pass: duplicate keys and deep nesting.
class StrictReader {
 public:
  StrictReader(std::string_view text, const char* const& furthest, const std::string& source)
      : text_(text), furthest_(furthest), source_(source) {}

  json take() { return std::move(root_); }

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(json::number_integer_t value) { return put(value); }
  bool number_unsigned(json::number_unsigned_t value) { return put(value); }
  bool number_float(json::number_float_t value, const std::string& token) {
    if (!std::isfinite(value))
      refuse(fmt::format("the number {} is out of range", shown(token, 40)));
    // Below the smallest number that there is: a zero, which nobody wrote. By its bits, as a
    // comparison may take small numbers for zero, too.
    const std::string_view digits = std::string_view(token).substr(0, token.find_first_of("eE"));
    if ((std::bit_cast<std::uint64_t>(value) << 1) == 0 &&
        digits.find_first_of("123456789") != std::string_view::npos)
      refuse(fmt::format("the number {} is too small, and would be 0", shown(token, 40)));
    return put(value);
  }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(json::object()); }
  bool start_array(std::size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    json& object = *open_.back();
    if (object.contains(name))
      refuse(fmt::format("the key '{}' is given twice in one object", shown(name, 60)));
    member_ = &object[name];
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::detail::exception& exception) {
    // Their texts read "[json.exception.…] parse error at line L, column C: what"; the position is
    // ours.
    std::string_view what = exception.what();
    if (const auto at = what.find("column "); at != std::string_view::npos) {
      if (const auto colon = what.find(": ", at); colon != std::string_view::npos)
        what.remove_prefix(colon + 2);
    } else if (exception.id == 406) {
      refuse(fmt::format("the number {} is out of range", shown(token, 40)));
    }
    constexpr std::string_view kPrefix = "syntax error while parsing ";
    std::string message(what.starts_with(kPrefix) ? what.substr(kPrefix.size()) : what);
    // What begins where something else had to end: people look where a comma is missing.
    const auto unexpected = [&](std::string_view found) {
      return message.find("unexpected " + std::string(found)) != std::string::npos;
    };
    const bool literal = unexpected("string literal") || unexpected("number literal");
    if ((literal || unexpected("'{'") || unexpected("'['")) &&
        (message.ends_with("expected '}'") || message.ends_with("expected ']'"))) {
      std::size_t end = position - std::min(position, literal ? token.size() : 1);
      while (end > 0 && std::string_view(" \t\r\n").find(text_[end - 1]) != std::string::npos)
        --end;
      refuse("not valid JSON: a comma is missing behind this", end == 0 ? 0 : end - 1);
    }
    refuse("not valid JSON: " + shown(message, 200), position == 0 ? 0 : position - 1);
  }

 private:
  [[noreturn]] void refuse(const std::string& message) {
    const auto read = static_cast<std::size_t>(furthest_ - text_.data());
    refuse(message, read == 0 ? 0 : read - 1);
  }
  [[noreturn]] void refuse(const std::string& message, std::size_t offset) {
    fail(ExitCode::kUsage, "config", {.file = shown(source_, 200)}, "{}: {}",
         position_text(text_, offset), message);
  }
  json* place(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    *member_ = std::move(value);
    return member_;
  }
  bool put(json value) {
    place(std::move(value));
    return true;
  }
  bool open(json empty) {
    if (open_.size() == kMaxDepth)
      refuse(fmt::format("nested more than {} levels deep", kMaxDepth));
    open_.push_back(place(std::move(empty)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  const char* const& furthest_;
  const std::string& source_;
  json root_;
  /// Stays valid: only the innermost one grows, and a list's items are entered one after another
  std::vector<json*> open_;
  json* member_ = nullptr;
};

}  // namespace

json parse_json(std::string_view text, const std::string& source) {
  // The parser takes a zero byte for the end and would not look at what follows.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    fail(ExitCode::kUsage, "config", {.file = shown(source, 200)},
         "{}: not valid JSON: a zero byte{}", position_text(text, zero),
         text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")
             ? ", as UTF-16 has it; needed: UTF-8"
             : "");
  }
  const char* furthest = text.data();
  StrictReader reader(text, furthest, source);
  const char* begin = text.data();
  if (!json::sax_parse(CountingIterator(begin, &furthest),
                       CountingIterator(begin + text.size(), nullptr), &reader)) {
    fail(ExitCode::kUsage, "config", {.file = shown(source, 200)}, "not valid JSON");
  }
  return reader.take();
}

json read_json_file(const std::string& path) {
  const FileText file = read_file(path, kMaxFileBytes, true);
  if (!file.fault.empty())
    fail(ExitCode::kUsage, "config", {.file = shown(path, 200)}, "cannot be read: {}", file.fault);
  return parse_json(file.text, path);
}

}  // namespace starling
