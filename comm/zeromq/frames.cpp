#include "comm/zeromq/frames.h"

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
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
                   frame.kind == Frame::Kind::kRefused || frame.kind == Frame::Kind::kRoster ||
                   frame.kind == Frame::Kind::kPiece;
  expect(others.size() == (two ? 1 : 0), "a message of {} parts", others.size() + 1);
  switch (frame.kind) {
    case Frame::Kind::kHello:
    case Frame::Kind::kRefused:
      expect(others[0] <= kMostTextBytes, "a greeting of {} bytes", others[0]);
      break;
    case Frame::Kind::kRoster:
      expect(others[0] <= kMostRosterBytes, "a roster of {} bytes", others[0]);
      break;
    case Frame::Kind::kState:
    case Frame::Kind::kFetch: expect(frame.a >= 0, "a state from byte {} on", frame.a); break;
    case Frame::Kind::kPiece:
      expect(frame.a >= 0 && others[0] <= kStateChunkBytes, "{} bytes of a state, from byte {} on",
             others[0], frame.a);
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

namespace {

using Json = nlohmann::json;

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json to_json(const Member& member) {
  return {{"endpoint", member.endpoint}, {"host", member.host}};
}

Member to_member(const Json& json) {
  const auto entry = [&](const char* key) {
    expect(json.is_object() && json.contains(key) && json[key].is_string(), "a member without {}",
           key);
    auto text = json[key].get<std::string>();
    expect(text.size() < 256, "a member with a {} of {} bytes", key, text.size());
    return text;
  };
  Member member{entry("endpoint"), entry("host")};
  expect(member.endpoint.starts_with("tcp://"), "a member that listens at {}",
         shown(member.endpoint));
  return member;
}

/// The object in a text, if it is of this version; otherwise only `version` is set.
std::optional<Json> object_of(std::string_view text, const char* what, std::int64_t& version) {
  Json json = Json::parse(text, nullptr, false);
  expect(json.is_object() && json.contains("protocol") && json["protocol"].is_number_integer(),
         "no {}", what);
  version = json["protocol"].get<std::int64_t>();
  return version == kZeroMqProtocol ? std::optional(std::move(json)) : std::nullopt;
}

bool has(const Json& json, const char* key, bool (Json::*is)() const noexcept) {
  return json.contains(key) && (json[key].*is)();
}

}  // namespace

std::string encode(const Hello& hello) {
  return text_of({{"protocol", hello.protocol},
                  {"job", hello.job},
                  {"generation", hello.generation},
                  {"identity", hello.identity},
                  {"member", to_json(hello.member)},
                  {"joins", hello.joins},
                  {"silent", hello.silent}});
}

Hello parse_hello(std::string_view text) {
  Hello hello;
  const std::optional<Json> found = object_of(text, "greeting", hello.protocol);
  if (!found) return hello;  // the rest may have another form
  const Json& json = *found;
  expect(has(json, "job", &Json::is_string) && has(json, "generation", &Json::is_number_integer) &&
             has(json, "identity", &Json::is_object) && has(json, "member", &Json::is_object) &&
             has(json, "joins", &Json::is_boolean),
         "a greeting without job, generation, identity, member and joins");
  hello.job = json["job"].get<std::string>();
  hello.generation = json["generation"].get<std::int64_t>();
  hello.member = to_member(json["member"]);
  hello.joins = json["joins"].get<bool>();
  for (const auto& [key, value] : json["identity"].items()) {
    expect(value.is_string(), "a greeting whose identity is not of texts");
    hello.identity[key] = value.get<std::string>();
  }
  for (const Json& endpoint : json.value("silent", Json::array())) {
    expect(endpoint.is_string(), "a greeting whose silent ranks are not texts");
    hello.silent.push_back(endpoint.get<std::string>());
  }
  return hello;
}

std::string encode(const Roster& roster) {
  Json json{{"protocol", kZeroMqProtocol},
            {"job", roster.job},
            {"generation", roster.generation},
            {"replica", roster.replica},
            {"members", Json::array()}};
  for (const Member& member : roster.members) json["members"].push_back(to_json(member));
  return text_of(json);
}

Roster parse_roster(std::string_view text) {
  std::int64_t version = 0;
  const std::optional<Json> found = object_of(text, "list of ranks", version);
  expect(found.has_value(), "a list of ranks of version {} of the protocol, not {}", version,
         kZeroMqProtocol);
  const Json& json = *found;
  expect(has(json, "job", &Json::is_string) && has(json, "generation", &Json::is_number_integer) &&
             has(json, "members", &Json::is_array) && !json["members"].empty(),
         "a list of ranks without job, generation and members");
  Roster roster{json["job"].get<std::string>(), json["generation"].get<std::int64_t>()};
  if (json.contains("replica")) {
    const auto ranks = static_cast<std::int64_t>(json["members"].size());
    expect(json["replica"].is_number_integer() && json["replica"] >= 1 &&
               json["replica"] <= ranks && ranks % json["replica"].get<std::int64_t>() == 0,
           "a list of {} ranks in replicas of {}", ranks, shown(text_of(json["replica"])));
    roster.replica = json["replica"].get<int>();
  }
  for (const Json& member : json["members"]) roster.members.push_back(to_member(member));
  for (std::size_t i = 1; i < roster.members.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j)
      expect(roster.members[i].endpoint != roster.members[j].endpoint,
             "a list of ranks of which two listen at {}", shown(roster.members[i].endpoint));
  }
  return roster;
}

std::string why_refused(const Hello& mine, const Hello& theirs) {
  if (theirs.protocol != mine.protocol)
    return fmt::format(
        "it speaks version {} of the protocol, this job version {}; install the same Starling",
        theirs.protocol, mine.protocol);
  for (const auto& [key, value] : mine.identity) {
    const auto other = theirs.identity.find(key);
    if (other == theirs.identity.end()) return fmt::format("it does not tell its {}", key);
    if (other->second != value)
      return fmt::format("its {} is {}, this job's is {}", key, shown(other->second), shown(value));
  }
  if (theirs.job != mine.job) return "it is a rank of another job";
  if (!theirs.joins && theirs.generation != mine.generation) return kExcluded;
  return {};
}

}  // namespace starling::detail
