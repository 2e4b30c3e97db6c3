#pragma once

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace starling {

/// Text for a descriptor, in pieces, by means that a signal handler may use: no memory, no locks,
/// no locale.
class SignalText {
 public:
  explicit SignalText(int descriptor) : descriptor_(descriptor) {}
  ~SignalText() { flush(); }
  SignalText(const SignalText&) = delete;
  SignalText& operator=(const SignalText&) = delete;

  SignalText& operator<<(std::string_view text) {
    for (const char c : text) put(c);
    return *this;
  }
  SignalText& operator<<(std::int64_t value) {
    std::uint64_t left =
        value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
    if (value < 0) put('-');
    return digits(left, 10);
  }
  SignalText& operator<<(int value) { return *this << static_cast<std::int64_t>(value); }
  SignalText& hexadecimal(std::uint64_t value) { return (*this << "0x").digits(value, 16); }
  /// Adds a text as the inside of a JSON string.
  SignalText& json(std::string_view text) {
    for (const char c : text) {
      const auto code = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') put('\\');
      if (code >= 0x20) {
        put(c);
      } else {
        *this << "\\u00";
        put("0123456789abcdef"[code >> 4]);
        put("0123456789abcdef"[code & 15]);
      }
    }
    return *this;
  }
  void flush() {
    std::size_t at = 0;
    while (at < used_ && !failed_) {
      const ssize_t written = ::write(descriptor_, buffer_.data() + at, used_ - at);
      if (written > 0) at += static_cast<std::size_t>(written);
      if (written <= 0 && errno != EINTR) failed_ = true;
    }
    used_ = 0;
  }
  bool failed() const { return failed_; }

 private:
  void put(char c) {
    if (used_ == buffer_.size()) flush();
    buffer_[used_++] = c;
  }
  SignalText& digits(std::uint64_t value, unsigned base) {
    std::array<char, 20> reversed{};
    std::size_t count = 0;
    do {
      reversed[count++] = "0123456789abcdef"[value % base];
      value /= base;
    } while (value != 0);
    while (count > 0) put(reversed[--count]);
    return *this;
  }

  int descriptor_;
  std::array<char, 4096> buffer_{};
  std::size_t used_ = 0;
  bool failed_ = false;
};

}  // namespace starling
