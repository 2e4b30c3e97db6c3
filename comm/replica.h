#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/bucket.h"
#include "comm/shared/direct_control.h"
#include "comm/shared/memory_sharing.h"
#include "comm/transport.h"

namespace starling {

/// The ranks that are one copy of the model (`sync.replica`): as many consecutive ranks of a host.
/// In each step every rank computes gradients of its own batch, gets the sum of its part of them,
/// and updates that part; then all compute with the whole. Part k of a replica exchanges with part
/// k of the other replicas, over between(), which an algorithm takes for all ranks there are.
///
/// On CPUs parameters and states lie once, in memory that all ranks map, and no number moves to
/// reach another rank. On GPUs each rank has the parameters that it computes with, and the states
/// of its part; gradients go by a reduce-scatter, updated parameters by an all-gather. In low
/// precision a rank has fp32 numbers of its part alone (Bucket::divided).
class Replica {
 public:
  virtual ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  int size() const { return size_; }    ///< ranks of a replica
  int place() const { return place_; }  ///< of this rank, 0 … size - 1
  int index() const { return index_; }  ///< of this replica, 0 … replicas - 1
  /// The ranks at this place of all replicas. Outlives what uses it, and ends with this object.
  Transport& between() const { return *between_; }
  /// Whether a tensor of allocate() is one for all ranks of the replica.
  virtual bool shares_memory() const = 0;

  /// A zeroed tensor of which this rank uses the elements `used`: in memory of all ranks, or in its
  /// own, where only those elements have memory. Collective, as all functions that say so: all
  /// ranks of the transport call them.
  virtual Tensor allocate(Backend& backend, const Shape& shape, DType dtype, ElementRange used) = 0;
  Tensor allocate(Backend& backend, const Shape& shape, DType dtype) {
    return allocate(backend, shape, dtype, {0, shape.elements()});
  }
  /// Makes what ranks share to exchange gradients. Collective, once; the buckets stay where they
  /// are.
  virtual void open(std::vector<Bucket>& buckets);
  /// Memory for one bucket's gradients.
  virtual Tensor gradients(Backend& backend, const Shape& shape, DType dtype) = 0;

  // Without all ranks: between those of the replica.

  /// Waits until all have called it. If a rank is lost, it fails on all ranks that have called it
  /// or on none, unless one of them is more than a second behind.
  void barrier(const ExchangeLabel& label = {});
  /// values[i] = Σ over the ranks, in their order; at most one more than there are buckets.
  void sum(double* values, std::size_t count, const ExchangeLabel& label = {});
  /// The same of a device's fp64 numbers, on the current stream.
  virtual void sum(const Tensor& numbers) = 0;
  /// This rank's gradients of the bucket are complete.
  virtual void publish(int bucket, const ExchangeLabel& label) = 0;
  /// Whether all ranks have published their gradients of the bucket. With `wait` waits until they
  /// have; where memory is not shared the compute stream does.
  virtual bool published(int bucket, const ExchangeLabel& label, bool wait) = 0;
  /// This rank's part of the mean of all ranks' gradients, added up in their order, after
  /// published(). `passing`: the caller uses it at once, so that it may lie in the rank's own
  /// gradients.
  virtual Tensor take_mean(int bucket, const ExchangeLabel& label, bool passing) = 0;
  /// Whether nobody reads this rank's gradients of the bucket; with `wait` waits until then.
  virtual bool taken(int bucket, const ExchangeLabel& label, bool wait) = 0;
  /// Starts to make this rank's part of the bucket visible to all ranks, after what the update
  /// stream has to do. In the same order on all ranks; nothing where memory is shared.
  virtual void share(int bucket, const ExchangeLabel& label) = 0;
  /// After share(): the compute stream waits until the bucket is whole.
  virtual void await(int bucket) = 0;
  /// After share() of all buckets: where memory is shared, waits until it is whole.
  virtual void meet(const ExchangeLabel& label) = 0;
  /// Builds the tensors that layers read, `low` and `vectors` as in Bucket, from the fp32 parts
  /// that the ranks have of a divided bucket. Rounds this rank's part, in `parameters`, first.
  virtual void show(const Bucket& bucket, const Tensor& parameters, const Tensor& low,
                    const Tensor& vectors) = 0;
  /// Gathers a tensor of allocate() from the parts that the ranks have of the bucket, or of its
  /// states. Where memory is shared it returns `local` unchanged.
  virtual Tensor whole(const Bucket& bucket, const Tensor& local) = 0;
  /// Copies this rank's part of `whole` into `local`; with `share` that of the first rank's
  /// `whole`. Where memory is shared it does nothing.
  virtual void take(const Bucket& bucket, const Tensor& whole, const Tensor& local, bool share) = 0;

 protected:
  Replica(Transport& transport, int size, std::unique_ptr<MemorySharing> sharing,
          double timeout_seconds);
  /// Makes the control blocks, followed by `more` bytes, whose pages have memory once they are
  /// written.
  void open_control(std::size_t buckets, std::size_t more);
  Exchange exchange_of(Exchange::Kind kind, std::vector<std::int64_t> parts) const;

  Transport& transport_;
  int size_, place_, index_;
  std::vector<int> ranks_;   ///< of this replica
  std::vector<int> others_;  ///< without this one
  std::unique_ptr<MemorySharing> sharing_;
  std::unique_ptr<Transport> between_;
  std::vector<Bucket>* buckets_ = nullptr;

  // A rank's block: counts, of buckets and of barriers, the numbers of sum(), and what a derived
  // class has
  std::vector<std::shared_ptr<SharedBlock>> blocks_;  ///< by place
  detail::ControlBlocks controls_;                    ///< by rank
  detail::ControlBlock* control_ = nullptr;           ///< this rank's
  std::size_t numbers_at_ = 0, more_at_ = 0;          ///< offsets in a block
  detail::CountWaits await_;

 private:
  std::uint32_t barriers_ = 0;
};

/// AgreedError(kUsage) if ranks of one replica are on several hosts. `host`: where this one is, as
/// MemorySharing::host() says. Collective.
void check_replica_hosts(World& world, int size, const std::string& host);
/// In memory that the ranks of a host share, for CPUs. `size`: ranks of a replica, at least 2; it
/// divides the number of ranks. AgreedError(kUsage) if a replica would be on several hosts,
/// AgreedError(kMemory) if memory cannot be shared. Collective.
std::unique_ptr<Replica> make_shared_replica(Transport& transport, int size,
                                             std::unique_ptr<MemorySharing> sharing,
                                             double timeout_seconds);
/// With exchanges over `transport`, for GPUs. `sharing`: host memory, for control and small sums.
std::unique_ptr<Replica> make_exchanging_replica(Transport& transport, int size,
                                                 std::unique_ptr<MemorySharing> sharing,
                                                 double timeout_seconds);

// The same where there may be one rank alone: `replica` null.

/// A zeroed tensor.
Tensor allocate_in(Replica* replica, Backend& backend, const Shape& shape, DType dtype,
                   ElementRange used);
/// Replica::whole().
Tensor whole_in(Replica* replica, const Bucket& bucket, const Tensor& local);
/// Sets a tensor of allocate_in(): `fill` writes all of it, of which this rank keeps what it uses.
/// With `share` the first rank of a replica fills it for all.
void fill_in(Replica* replica, const Bucket& bucket, const Tensor& local, bool share,
             const std::function<void(const Tensor& whole)>& fill);

}  // namespace starling
