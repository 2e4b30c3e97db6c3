#include "apps/training/output/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

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

/// TFRecord stores CRCs rotated and offset: a CRC over data that holds CRCs stays meaningful.
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

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

constexpr std::string_view kName = "events.out.tfevents.";
/// A tag, a double; before it length and masked CRC of a record, behind the payload another CRC.
constexpr std::size_t kBefore = 12, kTime = 9, kAfter = 4;

template <class T>
T little_endian(std::string_view bytes) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return value;
}

/// The last moment in a folder's event files, those in their names among them; 0: there are none.
double last_moment(const std::string& folder) {
  double last = 0.0;
  const auto take = [&](double moment) {  // a damaged file does not lead beyond the year 2255
    if (moment > last && moment < 9e9) last = moment;
  };
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kName)) continue;
    take(std::strtod(name.c_str() + kName.size(), nullptr));
    std::error_code none;
    if (!entry.is_regular_file(none)) continue;  // opening a pipe would wait for its writer
    std::ifstream in(entry.path(), std::ios::binary);
    std::string head(kBefore + kTime, '\0');
    while (in.read(head.data(), static_cast<std::streamsize>(head.size()))) {
      const auto bytes = little_endian<std::uint64_t>(head);
      if (head[kBefore] != '\x09' || bytes < kTime || bytes > (1u << 30)) break;
      take(std::bit_cast<double>(
          little_endian<std::uint64_t>(std::string_view(head).substr(kBefore + 1))));
      in.ignore(static_cast<std::streamsize>(bytes - kTime + kAfter));
    }
  }
  return last;
}

std::string event_file_path(const std::string& folder, double time) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {'h', 'o', 's', 't'};
  return fmt::format("{}/{}{:.0f}.{}.{}", folder, kName, time, host.data(), ::getpid());
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
    : last_(std::max(std::floor(now()), std::floor(last_moment(folder)) + 1.0)),
      file_(event_file_path(folder, last_), false) {
  std::string start;  // message SessionLog { SessionStatus status = 1; }, START = 1
  put_tag(start, 1, kVarint);
  put_varint(start, 1);
  file_.append(tfrecord(event(0, 3, "brain.Event:2")) + tfrecord(event(first_step, 7, start)));
}

/// message Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary =
/// 5; SessionLog session_log = 7; }
std::string EventFile::event(std::int64_t step, std::uint32_t field, std::string_view value) {
  last_ = std::max(last_, now());
  std::string out;
  put_tag(out, 1, kFixed64);
  put_little_endian(out, std::bit_cast<std::uint64_t>(last_));
  put_tag(out, 2, kVarint);
  put_varint(out, static_cast<std::uint64_t>(step));
  put_bytes(out, field, value);
  return out;
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
