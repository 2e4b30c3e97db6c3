#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace starling::detail {

/// Largest message, so that nobody makes a rank allocate more.
inline constexpr std::size_t kMostMessageBytes = 64u << 20;
/// Of a Hello, or a reason.
inline constexpr std::size_t kMostTextBytes = 4096;
/// The version of this format; ranks of another one are refused.
inline constexpr std::int64_t kZeroMqProtocol = 1;

/// The first part of every message between ranks.
struct Frame {
  enum class Kind : std::uint32_t {
    kHello,   ///< the first on a connection; a second part: the Hello
    kData,    ///< the second part has `b` bytes; `a`: MessageTag::place
    kOffer,   ///< a message of `b` bytes waits for kReady; `a`: its place
    kReady,   ///< there is memory for that message
    kAsk,     ///< is answered with kAnswer
    kAnswer,  ///< step `a`, bucket `b` as last noted
    kBye,     ///< this rank needs nothing more
    kRefused  ///< answers a Hello; the second part: why, in one line
  };
  static constexpr std::uint32_t kKinds = 8;
  Kind kind = Kind::kHello;
  std::int32_t tag = 0;
  std::int64_t a = 0, b = 0;
};
using FrameBytes = std::array<char, 24>;

FrameBytes encode(const Frame& frame);
/// Checks the parts of a message, with the sizes of all but the first, before anything of it is
/// used. Error(kUsage) if it is none of this format.
Frame parse_frame(std::string_view first, const std::vector<std::size_t>& others);

/// What a process says of itself when it connects.
struct Hello {
  std::int64_t protocol = kZeroMqProtocol;
  std::string job;  ///< drawn by the first rank at the start
  int rank = 0;
  /// What all processes of a job have alike, and its value or digest: "version", "config", …
  std::map<std::string, std::string> identity = {};
};
std::string encode(const Hello& hello);
/// Error(kUsage) if it is none.
Hello parse_hello(std::string_view text);
/// Why a process that says `theirs` is not a rank of this job of `ranks`; empty: it is.
std::string why_refused(const Hello& mine, const Hello& theirs, int ranks);

}  // namespace starling::detail
