#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "comm/transport.h"

namespace starling {

/// A rank's state, which processes that wait for admission fetch while the job continues.
struct OfferedState {
  std::uint64_t bytes = 0;
  /// Copies `count` bytes from `offset` on. Called from a thread of the transport's.
  std::function<void(std::uint64_t offset, std::byte* to, std::size_t count)> read;
};
/// Takes such a state, piece by piece in order, of `bytes` in all. One that begins at 0 replaces
/// what has arrived of another.
using StatePieces =
    std::function<void(std::uint64_t bytes, std::uint64_t offset, std::string_view piece)>;

/// The ranks of a job that others may join while it runs, and that continues without a lost one. It
/// outlives the transports between them, of which there is one at a time. Ranks keep their order; a
/// joiner is the last one. Where ranks form replicas (comm/replica.h), those of one join together,
/// as the last ones, and where one of them is lost the others are over().
class Membership {
 public:
  virtual ~Membership() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// What a process needs to ask for admission, besides the secret: the text of a JSON object.
  virtual std::string roster() const = 0;
  /// The text of a file with the secret.
  virtual std::string secret() const = 0;
  /// What must be equal on a joiner and in the job, by name.
  virtual void set_identity(std::map<std::string, std::string> identity) = 0;
  /// On rank 0, which is the one that is asked: whether a process waits for admission, or a
  /// replica.
  virtual bool asked() = 0;
  /// What all who wait fetch from now on, in place of an earlier offer, until the next regroup().
  virtual void offer(OfferedState state) = 0;
  /// Whether those that are next have all of it.
  virtual bool fetched() = 0;
  /// The next regroup() lets one in, or a replica.
  virtual void let_in() = 0;
  /// Refuses those who wait, for this reason.
  virtual void refuse(const std::string& reason) = 0;
  /// A transport between the ranks that are left and the joiner that was let in. All transports of
  /// before must be destroyed. Collective, also where the others do not know yet that a rank is
  /// lost or let in: theirs fails with Error(kLost), if an exception has ended this rank's.
  /// Error(kLost) here: once more, as where a joiner was lost in it, unless this rank is over().
  virtual std::unique_ptr<Transport> regroup(double timeout_seconds) = 0;
  /// Whether this rank cannot continue: the others do without it, or too few are left.
  virtual bool over() const = 0;
};

}  // namespace starling
