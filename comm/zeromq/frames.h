#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace starling::detail {

/// Largest message: limits what a peer can make a rank allocate.
inline constexpr std::size_t kMostMessageBytes = 64u << 20;
/// Limit on a Hello, and on the reason of a refusal.
inline constexpr std::size_t kMostTextBytes = 4096;
inline constexpr std::size_t kMostRosterBytes = 1u << 20;
/// Size of every piece of a state but the last.
inline constexpr std::size_t kStateChunkBytes = 1u << 20;
/// The version of this format; ranks of another one are refused.
inline constexpr std::int64_t kZeroMqProtocol = 3;
/// Key in a joiner's identity: its value is equal for processes that can share memory.
inline constexpr const char* kMemory = "memory";
/// Refusal sent to a rank that was excluded.
inline constexpr const char* kExcluded = "the job has gone on without it";

/// The first part of every message between ranks.
struct Frame {
  enum class Kind : std::uint32_t {
    kHello,    ///< the first on a connection; a second part: the Hello
    kData,     ///< the second part has `b` bytes; `a`: MessageTag::place
    kOffer,    ///< a message of `b` bytes waits for kReady; `a`: its place
    kReady,    ///< there is memory for that message
    kAsk,      ///< is answered with kAnswer
    kAnswer,   ///< step `a`, bucket `b` as last noted
    kBye,      ///< the sender expects no further messages
    kRefused,  ///< answers a Hello; the second part: why, in one line
    kRoster,   ///< who is in the job from now on; the second part: the Roster
    kState,    ///< offer `tag` of a state of `a` bytes
    kFetch,    ///< asks for a piece of it, from byte `a` on; `a` is its size: all has arrived
    kPiece     ///< the second part is that piece, of offer `tag`, from byte `a` on
  };
  static constexpr std::uint32_t kKinds = 12;
  Kind kind = Kind::kHello;
  std::int32_t tag = 0;
  std::int64_t a = 0, b = 0;
};
using FrameBytes = std::array<char, 24>;

FrameBytes encode(const Frame& frame);
/// Checks the parts of a message, with the sizes of all but the first, before anything of it is
/// used. Error(kUsage) if it is none of this format.
Frame parse_frame(std::string_view first, const std::vector<std::size_t>& others);

/// Where a rank listens, and the name of its host.
struct Member {
  std::string endpoint, host;
  friend bool operator==(const Member&, const Member&) = default;
};

/// What a process says of itself when it connects.
struct Hello {
  std::int64_t protocol = kZeroMqProtocol;
  std::string job;              ///< drawn by the first rank at the start
  std::int64_t generation = 0;  ///< Roster::generation
  /// What must be equal in all processes of a job, and its value or digest: "version", "config", …
  std::map<std::string, std::string> identity = {};
  Member member = {};  ///< itself; a rank is known by it
  bool joins = false;  ///< it is none of the ranks, and asks to join
  /// Endpoints of the ranks that it has found silent
  std::vector<std::string> silent = {};
};
std::string encode(const Hello& hello);
/// Error(kUsage) if it is none.
Hello parse_hello(std::string_view text);

/// The ranks of a job, in order.
struct Roster {
  std::string job = {};
  std::int64_t generation = 0;  ///< how often ranks have changed since the start
  std::vector<Member> members = {};
  int replica = 1;  ///< ranks of a replica, which are consecutive (comm/replica.h)
};
std::string encode(const Roster& roster);
/// Ignores other entries of the object. Error(kUsage) if it is none, or of another version.
Roster parse_roster(std::string_view text);
/// Why a process that says `theirs` does not belong to the job of one that says `mine`; empty: it
/// does.
std::string why_refused(const Hello& mine, const Hello& theirs);

}  // namespace starling::detail
