#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/tensor.h"

namespace starling {

struct Bucket;

/// What one rank does in one round of a topology: the cheapest way to get its row of the mixing matrix, made by plan_exchange().
struct Exchange {
  enum class Kind : std::uint8_t {
    kNone,        ///< identity: nothing moves
    kNeighbours,  ///< sends to some ranks, receives from some; received buffers come one per neighbour
    kGroupSum,    ///< out-of-place all-reduce over a group of three or more: received buffer = Σ in rank order, own included
    kNodes,       ///< mean in each node, mix of the nodes' means, back to all ranks of a node: received buffer = the whole mix
  } kind = Kind::kNone;
  std::vector<int> send_to, receive_from;  ///< ascending; for kNeighbours, and for kNodes: this rank's peers on other nodes
  std::vector<int> group;                  ///< ascending; for kGroupSum, and for kNodes: the ranks of this node
  /// For kNodes, where each rank mixes one shard of the bucket: own_share · (its node's mean) + Σ_k shares[k] · (receive_from[k]'s).
  double own_share = 1.0;
  std::vector<double> shares;
  bool bf16_between = false;  ///< for kNodes, fp32: the means travel between nodes as bf16, see NodeMix in comm/node_mix.h
  /// The mix: c = self_weight · x + Σ_k weights[k] · received[k]. For a group sum S with self weight w and ω = (1-w)/(m-1):
  /// self_weight = w - ω and weights = {ω}.
  double self_weight = 1.0;
  std::vector<double> weights;
  std::size_t received() const { return kind == Kind::kNeighbours ? receive_from.size() : kind == Kind::kNone ? 0 : 1; }
};

/// Names an exchange in errors and traces.
struct ExchangeLabel {
  std::int64_t step = 0;
  int bucket = 0;
  std::int64_t round = 0;
};

/// An exchange under way.
using Ticket = std::uint64_t;

/// Moves buckets between ranks. Exchanges are started in the same (step, bucket) order on all ranks and run in the background; the
/// send buffer must stay unchanged and the receive buffers untouched until wait() returns. Every wait has the limit given at
/// construction and fails with Error(kLost) that names step, bucket, round, the group, and who was last heard of and when.
/// All functions are called from one thread.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  ///< among the ranks of this host
  virtual int local_size() const = 0;
  virtual std::string name() const = 0;

  virtual Ticket start_exchange(const Exchange& exchange, const Tensor& send, const std::vector<Tensor>& receive,
                                const ExchangeLabel& label) = 0;
  /// out = Σ over all ranks of in, summed in rank order; out may be in.
  virtual Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label) = 0;
  virtual bool done(Ticket ticket) = 0;
  virtual void wait(Ticket ticket) = 0;

  // Buckets whose parameters the ranks of one host read where they lie (comm/direct_transport.h). Elsewhere, as here by default, nothing is
  // shared and everything goes through start_exchange() and its buffers.

  /// Collective. Where ranks can read each other's memory, the buckets' parameters move there, with a second buffer each (Bucket::spare);
  /// their numbers stay. Buckets that are shared already stay as they are.
  virtual void share(Backend&, std::vector<Bucket>&) {}
  /// Whether every rank reads every other one's parameters: then a round over nodes is best made of its flat matrix.
  virtual bool shares_with_all() const { return false; }
  /// How many buffers start_mix() needs for what the exchange brings.
  virtual std::size_t buffers_for(const Exchange& exchange) const { return exchange.received(); }
  /// Starts a bucket's exchange: its parameters are final. `received` becomes the tensors that hold what came, from the wait for the ticket
  /// until release(): some of `buffers`, or other ranks' own parameters. Of a group sum they are either the sum, or all members' terms in
  /// rank order, this rank's included. Called for rounds of kind kNone too (ticket 0: nothing to wait for), in the same order on all ranks.
  virtual Ticket start_mix(const Exchange& exchange, const Bucket& bucket, const std::vector<Tensor>& buffers,
                           std::vector<Tensor>& received, const ExchangeLabel& label);
  /// What the last exchange of the label's bucket brought is mixed or dropped; it is not read any more.
  virtual void release(const ExchangeLabel&) {}
  /// Waits until no rank reads what the label's bucket holds in Bucket::spare.
  virtual void wait_until_writable(const ExchangeLabel&) {}

  // Collective calls of the control plane: blocking, in the same order on all ranks.
  virtual void barrier() = 0;
  virtual void broadcast(void* data, std::size_t bytes, int root) = 0;
  /// Every rank's bytes, in rank order, on every rank.
  virtual std::vector<std::string> all_gather(const std::string& mine) = 0;
  /// values[i] = Σ over ranks in rank order.
  virtual void sum(double* values, std::size_t count) = 0;
  virtual void max(double* values, std::size_t count) = 0;
};

/// Transport over MPI_COMM_WORLD (MPI must be initialised, see comm/mpi_session.h).
std::unique_ptr<Transport> make_mpi_transport(double timeout_seconds);
/// The transport of a program that runs alone.
std::unique_ptr<Transport> make_single_transport();

}  // namespace starling
