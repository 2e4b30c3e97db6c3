#include "apps/trainer/output/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <ctime>

namespace starling {
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}

/// TFRecord stores CRCs rotated and offset, so that a CRC over data that holds CRCs stays
/// meaningful.
std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <class T>
void put_little_endian(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>((value >> (8 * i)) & 0xffu);
}

// The wire format of protocol buffers: a tag (field number << 3 | wire type), then the value.
enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}
void put_tag(std::string& out, std::uint32_t field, WireType type) {
  put_varint(out, (field << 3) | type);
}
void put_bytes(std::string& out, std::uint32_t field, std::string_view value) {
  put_tag(out, field, kBytes);
  put_varint(out, value.size());
  out += value;
}

/// message Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary =
/// 5; SessionLog session_log = 7; }
std::string event(std::int64_t step, std::uint32_t field, std::string_view value) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::string out;
  put_tag(out, 1, kFixed64);
  put_little_endian(out, std::bit_cast<std::uint64_t>(now));
  put_tag(out, 2, kVarint);
  put_varint(out, static_cast<std::uint64_t>(step));
  put_bytes(out, field, value);
  return out;
}

std::string event_file_path(const std::string& folder) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {'h', 'o', 's', 't'};
  return fmt::format("{}/events.out.tfevents.{}.{}.{}", folder, std::time(nullptr), host.data(),
                     ::getpid());
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = make_crc_table();
  std::uint32_t crc = 0xffffffffu;
  for (const char byte : bytes)
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xffu];
  return ~crc;
}

std::string tfrecord(std::string_view payload) {
  std::string out;
  put_little_endian(out, std::uint64_t{payload.size()});
  put_little_endian(out, masked_crc(out));
  out += payload;
  put_little_endian(out, masked_crc(payload));
  return out;
}

EventFile::EventFile(const std::string& folder, std::int64_t first_step)
    : file_(event_file_path(folder), false) {
  std::string start;  // message SessionLog { SessionStatus status = 1; }, START = 1
  put_tag(start, 1, kVarint);
  put_varint(start, 1);
  file_.append(tfrecord(event(0, 3, "brain.Event:2")) + tfrecord(event(first_step, 7, start)));
}

void EventFile::scalar(std::string_view tag, std::int64_t step, double value) {
  // message Summary { repeated Value value = 1; message Value { string tag = 1; float simple_value
  // = 2; } }
  std::string item;
  put_bytes(item, 1, tag);
  put_tag(item, 2, kFixed32);
  put_little_endian(item, std::bit_cast<std::uint32_t>(static_cast<float>(value)));
  std::string summary;
  put_bytes(summary, 1, item);
  pending_ += tfrecord(event(step, 5, summary));
}

void EventFile::flush() {
  if (pending_.empty()) return;
  file_.append(pending_);
  pending_.clear();
}

}  // namespace starling
