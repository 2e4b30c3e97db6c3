#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "comm/world.h"
#include "core/error.h"

// How ranks agree that something went wrong, so that none goes on alone into a collective call. All
// of it is collective.

namespace starling {

/// An error that every rank holds: one rank prints it, all end in order with its exit code.
class AgreedError : public Error {
 public:
  using Error::Error;
  /// The lowest rank it happened on; -1 where it is no single rank's.
  int rank() const { return parts().where.rank; }
};

/// Throws AgreedError on a rank that knows that all others do; the format is fail()'s.
template <class... Args>
[[noreturn]] void fail_on_all_ranks(ExitCode code, std::string_view component,
                                    const ErrorPlace& where, fmt::format_string<Args...> format,
                                    Args&&... args) {
  throw AgreedError(code,
                    detail::error_parts(component, where, format, fmt::make_format_args(args...)));
}

/// The reason that the lowest rank had to give.
struct RankReason {
  int rank = 0;
  std::string reason;
  std::string text() const { return fmt::format("rank {}: {}", rank, reason); }
};
/// Every rank tells why it cannot go on, or "": all get the text of the lowest rank that has one.
/// Whatever ranks agree on goes through here.
std::optional<RankReason> lowest_reason(World& world, const std::string& mine);

/// Runs purely local work on every rank, which must not talk to others. All get the error of the
/// lowest rank on which it failed.
std::optional<AgreedError> try_together(World& world, const std::function<void()>& work);
/// Does try_together(), and throws that error.
void together(World& world, const std::function<void()>& work);

/// Ranks' texts that are not all the same: rank 0's, and that of the lowest rank that has another.
/// Digests travel first.
struct Disagreement {
  int rank = 0;
  std::string first, other;
};
std::optional<Disagreement> find_disagreement(World& world, const std::string& mine);

}  // namespace starling
