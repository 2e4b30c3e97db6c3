#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/tensor.h"

namespace starling {

/// What one rank does in one round of a topology: the cheapest way to get its row of the mixing matrix, made by plan_exchange().
struct Exchange {
  enum class Kind : std::uint8_t {
    kNone,        ///< identity: nothing moves
    kNeighbours,  ///< sends to some ranks, receives from some; received buffers come one per neighbour
    kGroupSum,    ///< out-of-place all-reduce over a group of three or more: received buffer = Σ in rank order, own included
  } kind = Kind::kNone;
  std::vector<int> send_to, receive_from;  ///< ascending; for kNeighbours
  std::vector<int> group;                  ///< ascending; for kGroupSum
  /// The mix: c = self_weight · x + Σ_k weights[k] · received[k]. For a group sum S with self weight w and ω = (1-w)/(m-1):
  /// self_weight = w - ω and weights = {ω}.
  double self_weight = 1.0;
  std::vector<double> weights;
  std::size_t received() const { return kind == Kind::kGroupSum ? 1 : receive_from.size(); }
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
