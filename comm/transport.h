#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"
#include "core/backend.h"
#include "core/tensor.h"

namespace starling {

class CapturePart;
class Mixer;

/// What one rank does in one round of a topology: the cheapest way to get its row of the mixing
/// matrix, made by plan_exchange().
struct Exchange {
  enum class Kind : std::uint8_t {
    kNone,  ///< identity: nothing moves
    /// Sends to some ranks, receives from some; received buffers come one per neighbour
    kNeighbours,
    /// Out-of-place all-reduce over a group of three or more: received buffer = Σ in rank order,
    /// own included
    kGroupSum,
    /// Mean in each node, mix of the nodes' means, back to all ranks of a node: received buffer =
    /// the whole mix
    kNodes,
  } kind = Kind::kNone;
  /// Ascending; for kNeighbours, and for kNodes: this rank's peers on other nodes
  std::vector<int> send_to, receive_from;
  /// Ascending; for kGroupSum, and for kNodes: the ranks of this node
  std::vector<int> group;
  /// Weight of the own node's mean, for kNodes, where each rank mixes one shard of the bucket:
  /// own_share · (its node's mean) + Σ_k shares[k] · (receive_from[k]'s).
  double own_share = 1.0;
  std::vector<double> shares;
  /// True for kNodes, fp32, where the means travel between nodes as bf16, see
  /// comm/transports/sums.h
  bool bf16_between = false;
  /// The mix: c = self_weight · x + Σ_k weights[k] · received[k]. For a group sum S with self
  /// weight w and ω = (1-w)/(m-1): self_weight = w - ω and weights = {ω}.
  double self_weight = 1.0;
  std::vector<double> weights;
  std::size_t received() const {
    return kind == Kind::kNeighbours ? receive_from.size() : kind == Kind::kNone ? 0 : 1;
  }
};

/// Exchanges of one lane are started in the same order on all ranks. How those of two lanes follow
/// each other may differ from rank to rank.
enum class Lane : std::uint8_t {
  kSteps,  ///< what all ranks start at the same place of the same step
  kAside,  ///< what each rank starts when it comes to it
};
inline constexpr int kLanes = 2;

/// Names an exchange in errors and traces.
struct ExchangeLabel {
  std::int64_t step = 0;
  int bucket = 0;
  std::int64_t round = 0;
  Lane lane = Lane::kSteps;
};

/// Name of an exchange on the timeline: "bucket 3"; "mean 3" outside of steps, "numbers" where it
/// belongs to no bucket.
std::string timeline_name(const ExchangeLabel& label);

/// An exchange under way.
using Ticket = std::uint64_t;

/// The buffers of an exchange whose numbers come and go piece by piece while it is under way,
/// because a device copies them (see comm/transports/staged.h).
class Flow {
 public:
  explicit Flow(std::size_t bytes) : bytes_(bytes) {}
  virtual ~Flow() = default;
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;
  std::size_t bytes() const { return bytes_; }  ///< of the send buffer
  /// Number of bytes, from the start, that may be sent. Any thread asks.
  virtual std::size_t ready() = 0;
  /// Tells that so many bytes of a receive buffer, from its start, have come. Any thread calls it;
  /// not every transport does before the end.
  virtual void arrived(std::size_t buffer, std::size_t bytes) = 0;
  /// Called by wait() between its looks at the exchange, on its caller's thread.
  virtual void look() = 0;

 private:
  std::size_t bytes_;
};

/// Moves buckets between ranks. Exchanges of a lane are started in the same (step, bucket) order on
/// all ranks and run in the background; the send buffer must stay unchanged and the receive buffers
/// untouched until wait() returns. Every wait has the limit given at construction and fails with
/// Error(kLost) that names step, bucket, round, the group, and who was last heard of and when. All
/// functions are called from one thread.
class Transport {
 public:
  /// `world`: of the ranks that this connects; it may be a part of the transport.
  explicit Transport(World& world) : world_(world) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  World& world() const { return world_; }
  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  /// A transport stands for its world where only that is asked for.
  operator World&() const { return world_; }
  virtual std::string name() const = 0;

  /// Starts an exchange. With a flow, nothing leaves before the flow calls it ready, and the flow
  /// hears of what came.
  virtual Ticket start_exchange(const Exchange& exchange, const Tensor& send,
                                const std::vector<Tensor>& receive, const ExchangeLabel& label,
                                std::shared_ptr<Flow> flow = nullptr) = 0;
  /// Starts the sum out = Σ over all ranks of in, summed in rank order; out may be in.
  virtual Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label,
                           std::shared_ptr<Flow> flow = nullptr) = 0;
  /// Whether wait() would not have to wait. Of an exchange in a device's capture, true: there it
  /// costs the host nothing.
  virtual bool done(Ticket ticket) = 0;
  /// Waits until what came is valid and what was sent may change. That holds for the host, or, of a
  /// device's tensors, for work issued from here on to the stream that is current now. That stream
  /// waits, not the others, nor need the host: call it on the stream that goes on with the numbers.
  /// A ticket from a capture is good within that capture alone.
  virtual void wait(Ticket ticket) = 0;

  /// Collective, before the first exchange: the groups of all rounds to come, each once, in one
  /// order on all ranks. What needs a communicator for a group makes it now.
  virtual void prepare(const std::vector<std::vector<int>>& groups) = 0;

  /// How parameters are mixed best over this transport: by messages, where nothing is better. The
  /// transport outlives its mixers.
  virtual std::unique_ptr<Mixer> make_mixer(Backend& backend);

  /// Why a device's graph cannot hold this transport's exchanges; empty where it can: then start
  /// and wait only issue work to streams. All ranks capture and launch alike, in the same order,
  /// and their graphs go before the transport does.
  virtual std::string why_not_captured() const = 0;
  /// The capture of `step` begins. The part hears of the launches; null where a graph holds nothing
  /// that this transport has to follow.
  virtual std::unique_ptr<CapturePart> join_capture(std::int64_t step) = 0;

 private:
  World& world_;
};

/// Why a graph cannot hold what a thread of the host moves.
std::string through_the_host(const Transport& transport);

/// Transport over all ranks that are left (MPI must be initialised, see comm/mpi/session.h).
std::unique_ptr<Transport> make_mpi_transport(double timeout_seconds);
/// The transport of a program that runs alone.
std::unique_ptr<Transport> make_single_transport();

}  // namespace starling
