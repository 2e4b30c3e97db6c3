#pragma once

#include <functional>
#include <optional>
#include <string>

#include "comm/world.h"
#include "core/error.h"

// How ranks agree that one of them has failed, so that no other waits for it in a collective call.
// All functions are collective.

namespace starling {

/// An error that all ranks throw: one rank prints it, and all exit with its code.
class AgreedError : public Error {
 public:
  using Error::Error;
  /// The lowest rank on which it occurred; -1 if it concerns no particular rank.
  int rank() const { return parts().where.rank; }
};

/// Throws AgreedError. To be called when all ranks do the same. Formats like fail().
template <class... Args>
[[noreturn]] void fail_on_all_ranks(ExitCode code, std::string_view component,
                                    const ErrorPlace& where, fmt::format_string<Args...> format,
                                    Args&&... args) {
  throw AgreedError(code,
                    detail::error_parts(component, where, format, fmt::make_format_args(args...)));
}

/// A rank and the reason that it gave.
struct RankReason {
  int rank = 0;
  std::string reason;
  std::string text() const { return fmt::format("rank {}: {}", rank, reason); }
};
/// Each rank passes why it cannot continue, or "". All get the reason of the lowest rank that has
/// one. The other functions are built on this one.
std::optional<RankReason> lowest_reason(World& world, const std::string& mine);

/// Runs local work on every rank; it must not communicate. Returns the error of the lowest rank on
/// which it failed.
std::optional<AgreedError> try_on_all_ranks(World& world, const std::function<void()>& work);
/// try_on_all_ranks() that throws the error.
void on_all_ranks(World& world, const std::function<void()>& work);

/// Rank 0's text, and the lowest rank whose text differs.
struct Disagreement {
  int rank = 0;
  std::string first, other;
};
/// Compares a text between ranks, by digest first.
std::optional<Disagreement> find_disagreement(World& world, const std::string& mine);

}  // namespace starling
