#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/bucket.h"
#include "comm/shared/direct_control.h"
#include "comm/shared/memory_sharing.h"
#include "comm/transport.h"

namespace starling {

/// The ranks that share one copy of the model (`sync.replica`): as many consecutive ranks of a
/// host. Parameters and states lie once, in memory that all of them map. In each step every rank
/// computes gradients of its own batch, adds up the part of them that it updates, and updates that
/// part; then all compute with the whole. Part k of a replica exchanges with part k of the other
/// replicas, over between(), which an algorithm takes for all ranks there are. On CPUs.
class Replica {
 public:
  /// `size`: ranks of a replica, at least 2; it divides the number of ranks. AgreedError(kUsage) if
  /// a replica would be on several hosts, AgreedError(kMemory) if memory cannot be shared.
  /// Collective, as all functions that say so: all ranks of the transport call them.
  Replica(Transport& transport, int size, std::unique_ptr<MemorySharing> sharing,
          double timeout_seconds);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  int size() const { return size_; }    ///< ranks of a replica
  int place() const { return place_; }  ///< of this rank, 0 … size - 1
  int index() const { return index_; }  ///< of this replica, 0 … replicas - 1
  /// The ranks at this place of all replicas. Outlives what uses it, and ends with this object.
  Transport& between() const { return *between_; }

  /// A zeroed tensor in memory of all ranks of the replica. Collective.
  Tensor allocate(Backend& backend, const Shape& shape, DType dtype);
  /// Makes memory for gradients, which the other ranks read, and sets Bucket::own. Collective,
  /// once; the buckets stay where they are.
  void open(std::vector<Bucket>& buckets);
  /// Memory for one bucket's gradients.
  Tensor gradients(Backend& backend, const Shape& shape, DType dtype);

  // Without all ranks: between those of the replica.

  /// Waits until all have called it.
  void barrier(const ExchangeLabel& label = {});
  /// values[i] = Σ over the ranks, in their order; at most one more than there are buckets.
  void sum(double* values, std::size_t count, const ExchangeLabel& label = {});
  /// This rank's gradients of the bucket are complete.
  void publish(int bucket, const ExchangeLabel& label);
  /// Whether those of all ranks are; with `wait` waits until they are.
  bool published(int bucket, const ExchangeLabel& label, bool wait);
  /// out = this rank's part of the mean of all ranks' gradients, added up in their order. The
  /// gradients of all are complete.
  void take_mean(int bucket, const Tensor& out, const ExchangeLabel& label);
  /// Whether nobody reads this rank's gradients of the bucket; with `wait` waits until then.
  bool taken(int bucket, const ExchangeLabel& label, bool wait);

 private:
  class Gradients;
  detail::BucketCounts& own_counts(std::size_t index) const { return *control_->counts(index); }
  bool reached(int bucket, detail::CountWaits::Member member, const ExchangeLabel& label, bool wait,
               detail::Pulse::Doing doing, const char* what);

  Transport& transport_;
  int size_, place_, index_;
  std::vector<int> ranks_;   ///< of this replica
  std::vector<int> others_;  ///< without this one
  std::unique_ptr<MemorySharing> sharing_;
  std::unique_ptr<World> world_between_;
  std::unique_ptr<Transport> between_;
  detail::CountWaits await_;

  // A rank's block: counts, of buckets and of barriers, then places of its gradients, numbers of
  // sum(), then the gradients
  std::vector<std::shared_ptr<SharedBlock>> blocks_;               ///< by place
  detail::ControlBlocks controls_;                                 ///< by rank
  detail::ControlBlock* control_ = nullptr;                        ///< this rank's
  std::size_t places_at_ = 0, numbers_at_ = 0, gradients_at_ = 0;  ///< offsets in a block
  std::vector<Bucket>* buckets_ = nullptr;
  std::shared_ptr<Gradients> gradients_;
  std::vector<std::uint32_t> counts_;  ///< by bucket: how often its gradients were complete
  std::uint32_t barriers_ = 0;
};

}  // namespace starling
