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

/// What one rank does in one round of a topology: the cheapest way to compute its row of the mixing
/// matrix. Made by plan_exchange().
struct Exchange {
  enum class Kind : std::uint8_t {
    kNone,  ///< identity: nothing moves
    /// Sends to some ranks and receives from some; one received buffer per neighbour
    kNeighbours,
    /// Out-of-place all-reduce over a group of at least three; received buffer: the sum in rank
    /// order, this rank included
    kGroupSum,
    /// Mean over each node, mixed between nodes, sent to all ranks of the node; received buffer:
    /// the result
    kNodes,
    /// Reduce-scatter over a group: sends the whole; received buffer: this rank's part of the sum
    /// in rank order
    kScatterSum,
    /// All-gather over a group: sends this rank's part; received buffer: the whole, in which what
    /// is sent may lie
    kGather,
  } kind = Kind::kNone;
  /// Ascending. kNeighbours; for kNodes this rank's peers on other nodes
  std::vector<int> send_to, receive_from;
  /// Ascending. kGroupSum; for kNodes the ranks of this node
  std::vector<int> group;
  /// kScatterSum, kGather: the elements where the members' parts begin, and the end
  std::vector<std::int64_t> parts;
  /// kNodes, where each rank mixes one shard of the bucket: own_share · (own node's mean) + Σ_k
  /// shares[k] · (mean of receive_from[k]'s node)
  double own_share = 1.0;
  std::vector<double> shares;
  /// kNodes, fp32: the means travel between nodes as bf16, see comm/transports/sums.h
  bool bf16_between = false;
  /// The mix is self_weight · x + Σ_k weights[k] · received[k]. For a sum over a group of m with
  /// self-weight w and ω = (1-w)/(m-1): self_weight = w - ω and weights = {ω}.
  double self_weight = 1.0;
  std::vector<double> weights;
  std::size_t received() const {
    return kind == Kind::kNeighbours ? receive_from.size() : kind == Kind::kNone ? 0 : 1;
  }
};

/// Exchanges of one lane are started in the same order on all ranks. The order between lanes may
/// differ from rank to rank.
enum class Lane : std::uint8_t {
  kSteps,  ///< started at the same point of the same step by all ranks
  kAside,  ///< started by each rank at its own time
};
inline constexpr int kLanes = 2;

/// Identifies an exchange in errors and traces.
struct ExchangeLabel {
  std::int64_t step = 0;
  int bucket = 0;
  std::int64_t round = 0;
  Lane lane = Lane::kSteps;
};

/// Name of an exchange on the timeline: "bucket 3"; "mean 3" outside of steps; "numbers" if it
/// belongs to no bucket.
std::string timeline_name(const ExchangeLabel& label);

/// Identifies a started exchange.
using Ticket = std::uint64_t;

/// Pipelines an exchange with the copies of its buffers from and to a device, piece by piece (see
/// comm/transports/staged.h).
class Flow {
 public:
  explicit Flow(std::size_t bytes) : bytes_(bytes) {}
  virtual ~Flow() = default;
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;
  std::size_t bytes() const { return bytes_; }  ///< of the send buffer
  /// The number of leading bytes of the send buffer that may be sent. Called from any thread.
  virtual std::size_t ready() = 0;
  /// Reports that the first `bytes` bytes of a receive buffer have arrived. Called from any thread,
  /// by some transports only at the end.
  virtual void arrived(std::size_t buffer, std::size_t bytes) = 0;
  /// Called periodically by wait(), on the caller's thread.
  virtual void look() = 0;

 private:
  std::size_t bytes_;
};

/// Moves buckets between ranks, in the background. All ranks start the exchanges of a lane in the
/// same order of (step, bucket). Until wait() returns the send buffer must not change and the
/// receive buffers must not be accessed. Waits time out after the limit given at construction:
/// Error(kLost) with step, bucket, round and group, and when each rank was last heard from. All
/// functions are called from one thread.
class Transport {
 public:
  /// `world`: the control plane of the same ranks; may be a member of the transport.
  explicit Transport(World& world) : world_(world) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  World& world() const { return world_; }
  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  /// A transport can be passed where a world is needed.
  operator World&() const { return world_; }
  virtual std::string name() const = 0;

  /// Starts an exchange. With `flow`, sends what is ready() and reports what has arrived(). Where
  /// it sends to nobody, `send` has the size of what it receives, and may be a receive buffer.
  virtual Ticket start_exchange(const Exchange& exchange, const Tensor& send,
                                const std::vector<Tensor>& receive, const ExchangeLabel& label,
                                std::shared_ptr<Flow> flow = nullptr) = 0;
  /// Starts the sum out = Σ over all ranks of in, summed in rank order; out may be in.
  virtual Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label,
                           std::shared_ptr<Flow> flow = nullptr) = 0;
  /// Whether wait() would return at once. True during a device's capture, where waiting does not
  /// block the host.
  virtual bool done(Ticket ticket) = 0;
  /// Waits until the receive buffers are valid and the send buffer may change. For a device's
  /// tensors, makes the current stream wait, not the host: call it on the stream that uses the
  /// result. A ticket from a capture is valid within that capture only.
  virtual void wait(Ticket ticket) = 0;
  /// Throws Error(kLost) where no wait can succeed any more: for waits that are not the transport's
  /// own.
  virtual void check() {}
  /// Asks a rank that the caller waits for by done() for a sign of life; one that stays silent may
  /// be lost by that.
  virtual void ask(int /*rank*/) {}

  /// Collective, before the first exchange: announces the groups of all rounds, in the same order
  /// on all ranks, so that communicators can be created.
  virtual void prepare(const std::vector<std::vector<int>>& /*groups*/) {}

  /// The most efficient mixer for this transport; by default one that uses messages. The transport
  /// outlives it.
  virtual std::unique_ptr<Mixer> make_mixer(Backend& backend);

  /// Why exchanges cannot be captured in a device's graph; empty if they can, in which case
  /// starting and waiting only issue work to streams. All ranks capture and launch the same graphs
  /// in the same order, and destroy them before the transport. By default through_the_host().
  virtual std::string why_not_captured() const;
  /// Called when the capture of `step` begins. The result is notified of launches; null, as by
  /// default, if the transport need not know.
  virtual std::unique_ptr<CapturePart> join_capture(std::int64_t step);

 private:
  World& world_;
};

/// The reason for why_not_captured() of a transport that moves data with a host thread.
std::string through_the_host(const Transport& transport);

/// Over all ranks that have not been lost. MPI must be initialised, see comm/mpi/session.h.
std::unique_ptr<Transport> make_mpi_transport(double timeout_seconds);
/// For a single rank.
std::unique_ptr<Transport> make_single_transport();

}  // namespace starling
