#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/engine/window.h"
#include "comm/other_ranks.h"
#include "comm/transport.h"

// This folder: a Transport over any library that sends messages from rank to rank.
// - wire: the interface that such a library implements, in comm/mpi and comm/zeromq
// - operation, neighbour_operation, group_operation: an exchange as a state machine of requests;
//   message_call: a collective call
// - engine: the thread that makes progress, the Transport and its control plane

namespace starling::detail {

/// Most operations in flight per lane and pair of ranks.
inline constexpr std::uint32_t kTagCycle = 4096;
/// Exclusive limit on tags; the upper half is for collective calls of wires whose library has none.
inline constexpr int kMostTag = 32768;
static_assert(2 * kTagCycle * kLanes <= kMostTag / 2);

/// Which message a request is about. The sequence number of the operation per lane and ordered pair
/// of ranks: since all ranks start a lane's exchanges in the same order, the k-th operation from i
/// to j has the same tag on both sides. Messages of one tag are posted in the same order on both
/// sides, and have different places.
struct MessageTag {
  int tag = 0;            ///< below kMostTag
  std::size_t place = 0;  ///< such as the offset in the buffer
};

/// Outstanding sends and receives of one operation. `user` is passed back on completion. Used under
/// Wire::lock().
class RequestSet {
 public:
  virtual ~RequestSet() = default;
  void send(const std::byte* data, std::size_t bytes, int peer, MessageTag tag, int user) {
    entries_.push_back({peer, false, false, user});
    post_send(data, bytes, peer, tag);
  }
  void receive(std::byte* data, std::size_t bytes, int peer, MessageTag tag, int user) {
    entries_.push_back({peer, true, false, user});
    post_receive(data, bytes, peer, tag);
  }
  /// Tests all, and calls completed(user) for each completed one. Returns their number.
  template <class Function>
  int test(Function&& completed) {
    if (entries_.empty() || test_some() == 0) return 0;
    int count = 0;
    for (const Entry& entry : entries_) {
      if (!entry.done) continue;
      completed(entry.user);
      ++count;
    }
    std::erase_if(entries_, [](const Entry& entry) { return entry.done; });
    return count;
  }
  bool empty() const { return entries_.empty(); }
  /// The peers of outstanding requests, each once, ascending.
  std::vector<int> peers() const;

 protected:
  /// A request, in the order in which they were posted.
  struct Entry {
    int peer;
    bool receive, done;
    int user;
  };
  virtual void post_send(const std::byte* data, std::size_t bytes, int peer, MessageTag tag) = 0;
  virtual void post_receive(std::byte* data, std::size_t bytes, int peer, MessageTag tag) = 0;
  /// Sets `done` of entries that have completed, and forgets their requests. Returns how many.
  virtual int test_some() = 0;
  std::vector<Entry> entries_;
};

class WireCall;

/// The ranks of a job and the messages between them. make_*() and next_*_tag() are called on the
/// transport's thread; all else under lock(), on any thread. Error(kLost) if the library fails.
class Wire {
 public:
  Wire() = default;
  virtual ~Wire() = default;  ///< called without the lock
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  virtual std::string name() const = 0;
  virtual std::recursive_timed_mutex& lock() = 0;
  virtual std::unique_ptr<RequestSet> make_requests() = 0;
  /// A collective call of the control plane. It owns its memory, so that a wait may abandon it.
  /// kGather: `mine` has counts[rank] bytes, bytes() has all ranks' afterwards. kBroadcast: `mine`
  /// is the root's data or, on other ranks, memory for it; bytes() the root's data.
  enum class Call : std::uint8_t { kBarrier, kGather, kBroadcast };
  virtual std::shared_ptr<WireCall> make_call(Call kind, std::string what,
                                              std::vector<std::byte> mine, std::vector<int> counts,
                                              int root) = 0;
  /// Handles messages that belong to no request. Returns whether operations should test their
  /// requests.
  virtual bool poll() = 0;
  /// Asks a rank for a sign of life. Its wire answers with the exchange that it last started.
  virtual void ask(int rank) = 0;
  virtual void note_started(const ExchangeLabel& label) = 0;
  /// What is known about a rank that is late.
  virtual AwaitedRank status_of(int rank) const = 0;
  /// A rank is lost, and others may still wait in operations of this wire: ends their waits if the
  /// library can.
  virtual void revoke() = 0;
  /// Operations are left unfinished. Returns whether the library may still access their memory, so
  /// that they, and this object, must never be freed.
  virtual bool abandon() = 0;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  int next_send_tag(int peer, Lane lane);
  int next_receive_tag(int peer, Lane lane);
  /// The window for pieces sent to a peer, shared by all operations; older ones send first.
  PieceWindow& window_to(int peer) { return windows_[static_cast<std::size_t>(peer)]; }
  /// Reused scratch memory of operations.
  std::vector<std::byte> take_scratch(std::size_t bytes);
  void give_scratch(std::vector<std::byte> scratch) { scratch_.push_back(std::move(scratch)); }

 protected:
  /// Called by the constructor of a derived class.
  void set_ranks(int rank, int size, int local_rank, int local_size);

 private:
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  std::vector<std::uint32_t> sent_[kLanes], received_[kLanes];
  std::vector<PieceWindow> windows_;
  std::vector<std::vector<std::byte>> scratch_;
};

/// A transport over a wire. Waits time out after `timeout_seconds`.
std::unique_ptr<Transport> make_wire_transport(std::unique_ptr<Wire> wire, double timeout_seconds);

/// Throws Error(kLost): a message of unexpected length has arrived from this rank.
[[noreturn]] void fail_wrong_length(int peer);

/// What a rank has last started, as answered to Wire::ask(): "last started the exchange of step 7,
/// bucket 2"; empty before the first step.
std::string last_started(std::int64_t step, std::int64_t bucket);
/// The same as part of a message about a late rank that has answered.
std::string alive_text(std::int64_t step, std::int64_t bucket);

}  // namespace starling::detail
