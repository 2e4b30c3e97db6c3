#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi/pulse.h"
#include "comm/mpi/window.h"
#include "comm/transport.h"

namespace starling::detail {

/// State shared by the operations of one transport. Tags are sequence numbers per lane and ordered
/// pair of ranks: since all ranks start a lane's exchanges in the same order, the k-th message from
/// i to j has the same tag on both sides.
struct MpiWorld {
  explicit MpiWorld(MpiPulse& the_pulse);
  ~MpiWorld();  ///< frees the communicators unless abandoned
  int next_send_tag(int peer, Lane lane);
  int next_receive_tag(int peer, Lane lane);
  /// The window for pieces sent to a peer, shared by all operations; older ones send first. Under
  /// mpi_lock().
  PieceWindow& window_to(int peer) { return windows_[static_cast<std::size_t>(peer)]; }
  /// Reused scratch memory of operations. Under mpi_lock().
  std::vector<std::byte> take_scratch(std::size_t bytes);
  void give_scratch(std::vector<std::byte> scratch) { scratch_.push_back(std::move(scratch)); }

  MpiPulse& pulse;
  MPI_Comm data = MPI_COMM_NULL, control = MPI_COMM_NULL;
  int rank = 0, size = 1, local_rank = 0, local_size = 1;

 private:
  std::vector<std::uint32_t> sent_[kLanes], received_[kLanes];
  std::vector<PieceWindow> windows_;
  std::vector<std::vector<std::byte>> scratch_;
};

/// Outstanding sends and receives of one operation. `user` is passed back on completion.
class RequestSet {
 public:
  explicit RequestSet(MpiWorld& world) : world_(world) {}
  void send(const std::byte* data, std::size_t bytes, int peer, int tag, int user);
  void receive(std::byte* data, std::size_t bytes, int peer, int tag, int user);
  /// Tests all, and calls completed(user) for each completed one. Returns their number.
  template <class Function>
  int test(Function&& completed) {
    const int count = test_some();
    for (int i = 0; i < count; ++i)
      completed(entries_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])].user);
    if (count) compact();
    return count;
  }
  bool empty() const { return requests_.empty(); }
  /// The peers of outstanding requests, each once, ascending.
  std::vector<int> peers() const;

 private:
  struct Entry {
    int peer;
    bool receive;
    int user;
  };
  int test_some();
  void compact();
  MpiWorld& world_;
  std::vector<MPI_Request> requests_;
  std::vector<Entry> entries_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

/// An asynchronous operation: a state machine that posts non-blocking calls and proceeds as they
/// complete. advance() is called under mpi_lock(), on any thread.
class MpiOperation {
 public:
  /// `partners`: all other ranks involved, ascending.
  MpiOperation(std::string what, std::vector<int> partners,
               const ExchangeLabel& label = {-1, -1, -1}, std::shared_ptr<Flow> flow = nullptr)
      : flow_(std::move(flow)),
        what_(std::move(what)),
        partners_(std::move(partners)),
        label_(label) {}
  virtual ~MpiOperation() = default;
  MpiOperation(const MpiOperation&) = delete;
  MpiOperation& operator=(const MpiOperation&) = delete;
  /// Posts and tests; returns whether there was progress. Sets finished().
  virtual bool advance() = 0;
  /// Ranks that have not done their part yet.
  virtual std::vector<int> missing() const = 0;
  const std::vector<int>& partners() const { return partners_; }
  const std::string& what() const { return what_; }
  Flow* flow() const { return flow_.get(); }
  const ExchangeLabel& label() const { return label_; }
  bool finished() const { return finished_.load(std::memory_order_acquire); }

 protected:
  void finish() { finished_.store(true, std::memory_order_release); }
  /// Whether the first `end` bytes of the send buffer may be sent.
  bool may_send(std::size_t end) {
    if (!flow_ || end <= ready_) return true;
    ready_ = flow_->ready();
    return end <= ready_;
  }
  /// Null: all of the send buffer is ready
  const std::shared_ptr<Flow> flow_;

 private:
  std::size_t ready_ = 0;  ///< as the flow last said
  std::string what_;
  std::vector<int> partners_;
  ExchangeLabel label_;  ///< step -1: not part of a step
  std::atomic<bool> finished_{false};
};

/// Sends one buffer to several ranks, and receives one from each of several.
std::unique_ptr<MpiOperation> make_neighbour_operation(MpiWorld& world, const Exchange& exchange,
                                                       const Tensor& send,
                                                       const std::vector<Tensor>& receive,
                                                       const ExchangeLabel& label,
                                                       std::shared_ptr<Flow> flow);
/// Exchange::Kind::kGroupSum: out = Σ over the group of in, in rank order; out may be in where the
/// types are the same (sum_type()). Exchange::Kind::kNodes: out = the mix.
std::unique_ptr<MpiOperation> make_group_operation(MpiWorld& world, const Exchange& exchange,
                                                   const Tensor& in, const Tensor& out,
                                                   std::string what, const ExchangeLabel& label,
                                                   std::shared_ptr<Flow> flow);

/// A collective call of the control plane. It owns its memory, so that a wait may abandon it.
class MpiControl final : public MpiOperation {
 public:
  enum class Kind { kBarrier, kGather, kBroadcast };
  /// kGather: `mine` has counts[rank] bytes; bytes() has all ranks' afterwards. kBroadcast: `mine`
  /// is the root's data, or memory for it.
  MpiControl(MpiWorld& world, Kind kind, std::string what, std::vector<std::byte> mine,
             std::vector<int> counts, int root);
  bool advance() override;
  std::vector<int> missing() const override { return partners(); }
  std::vector<std::byte>& bytes() { return kind_ == Kind::kGather ? all_ : mine_; }

 private:
  MpiWorld& world_;
  Kind kind_;
  std::vector<std::byte> mine_, all_;
  std::vector<int> counts_, offsets_;
  int root_;
  bool posted_ = false;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace starling::detail
