#include "comm/zeromq/frames.h"

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "comm/engine/wire.h"
#include "core/error.h"
#include "core/text.h"

namespace starling::detail {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

/// Refuses a message, unless `holds`.
template <class... Args>
void expect(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) fail(ExitCode::kUsage, "message", format, std::forward<Args>(args)...);
}

template <class T>
void put(FrameBytes& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}
template <class T>
T get(std::string_view bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

FrameBytes encode(const Frame& frame) {
  FrameBytes bytes{};
  put(bytes, 0, static_cast<std::uint32_t>(frame.kind));
  put(bytes, 4, frame.tag);
  put(bytes, 8, frame.a);
  put(bytes, 16, frame.b);
  return bytes;
}

Frame parse_frame(std::string_view first, const std::vector<std::size_t>& others) {
  expect(first.size() == sizeof(FrameBytes), "a first part of {} bytes, not {}", first.size(),
         sizeof(FrameBytes));
  const auto kind = get<std::uint32_t>(first, 0);
  expect(kind < Frame::kKinds, "a message of unknown kind {}", kind);
  const Frame frame{static_cast<Frame::Kind>(kind), get<std::int32_t>(first, 4),
                    get<std::int64_t>(first, 8), get<std::int64_t>(first, 16)};
  const bool two = frame.kind == Frame::Kind::kHello || frame.kind == Frame::Kind::kData ||
                   frame.kind == Frame::Kind::kRefused;
  expect(others.size() == (two ? 1 : 0), "a message of {} parts", others.size() + 1);
  switch (frame.kind) {
    case Frame::Kind::kHello:
    case Frame::Kind::kRefused:
      expect(others[0] <= kMostTextBytes, "a greeting of {} bytes", others[0]);
      break;
    case Frame::Kind::kData:
      expect(frame.b >= 0 && static_cast<std::size_t>(frame.b) == others[0],
             "{} bytes where {} are announced", others[0], frame.b);
      [[fallthrough]];
    case Frame::Kind::kOffer:
    case Frame::Kind::kReady:
      expect(frame.tag >= 0 && frame.tag < kMostTag && frame.a >= 0 && frame.b >= 0 &&
                 static_cast<std::size_t>(frame.b) <= kMostMessageBytes,
             "a message with tag {}, place {} and {} bytes", frame.tag, frame.a, frame.b);
      break;
    default: break;
  }
  return frame;
}

std::string encode(const Hello& hello) {
  return nlohmann::json{{"protocol", hello.protocol},
                        {"job", hello.job},
                        {"rank", hello.rank},
                        {"identity", hello.identity}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Hello parse_hello(std::string_view text) {
  using Json = nlohmann::json;
  const Json json = Json::parse(text, nullptr, false);
  const auto has = [&](const char* key, auto is) {
    return json.contains(key) && (json[key].*is)();
  };
  expect(json.is_object() && has("protocol", &Json::is_number_integer), "no greeting");
  Hello hello{.protocol = json["protocol"].get<std::int64_t>()};
  if (hello.protocol != kZeroMqProtocol) return hello;  // the rest may have another form
  expect(has("job", &Json::is_string) && has("rank", &Json::is_number_integer) &&
             has("identity", &Json::is_object),
         "a greeting without job, rank and identity");
  hello.job = json["job"].get<std::string>();
  const auto rank = json["rank"].get<std::int64_t>();
  hello.rank = rank < 0 || rank > (1 << 30) ? -1 : static_cast<int>(rank);
  for (const auto& [key, value] : json["identity"].items()) {
    expect(value.is_string(), "a greeting whose identity is not of texts");
    hello.identity[key] = value.get<std::string>();
  }
  return hello;
}

std::string why_refused(const Hello& mine, const Hello& theirs, int ranks) {
  if (theirs.protocol != mine.protocol)
    return fmt::format(
        "it speaks version {} of the protocol, this job version {}; install the "
        "same Starling",
        theirs.protocol, mine.protocol);
  for (const auto& [key, value] : mine.identity) {
    const auto other = theirs.identity.find(key);
    if (other == theirs.identity.end()) return fmt::format("it does not tell its {}", key);
    if (other->second != value)
      return fmt::format("its {} is {}, this job's is {}", key, shown(other->second), shown(value));
  }
  if (theirs.job != mine.job) return "it is a rank of another job";
  if (theirs.rank < 0 || theirs.rank >= ranks || theirs.rank == mine.rank)
    return fmt::format("it says that it is rank {} of {}, which it cannot be", theirs.rank, ranks);
  return {};
}

}  // namespace starling::detail
