#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <new>
#include <utility>

#include "comm/agreement.h"
#include "comm/replica.h"
#include "comm/shared/shared_buckets.h"
#include "comm/shared/shared_tensor.h"
#include "core/error.h"
#include "core/operations/pointwise.h"

namespace starling {
namespace {

using detail::BucketCounts;
using detail::ControlBlock;
using Doing = detail::Pulse::Doing;

constexpr std::size_t kPage = 4096;
std::size_t pages_for(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

/// Allocates gradients in a sparse block, behind what precedes them there: first fit, low offsets
/// first, so that the committed memory stays near the peak use.
class GradientArena : public std::enable_shared_from_this<GradientArena> {
 public:
  GradientArena(std::shared_ptr<SharedBlock> block, std::size_t first)
      : block_(std::move(block)), first_(first) {
    free_[0] = block_->bytes() - first;
  }
  Tensor allocate(Backend& backend, const Shape& shape, DType dtype);
  /// Offset in the block.
  std::size_t offset_of(const Tensor& gradients) const {
    return static_cast<std::size_t>(gradients.raw() - block_->data());
  }

 private:
  class Allocation;
  void release(std::size_t at, std::size_t bytes);

  std::shared_ptr<SharedBlock> block_;
  std::size_t first_;
  std::map<std::size_t, std::size_t> free_;  ///< bytes by offset behind first_; never adjacent
};

class GradientArena::Allocation final : public Storage {
 public:
  Allocation(Backend& backend, std::shared_ptr<GradientArena> of, std::size_t at, std::size_t bytes)
      : Storage(backend, of->block_->data() + of->first_ + at, bytes),
        of_(std::move(of)),
        at_(at),
        bytes_(bytes) {}
  ~Allocation() override { of_->release(at_, bytes_); }

 private:
  std::shared_ptr<GradientArena> of_;
  std::size_t at_, bytes_;
};

Tensor GradientArena::allocate(Backend& backend, const Shape& shape, DType dtype) {
  const std::size_t bytes = pages_for(static_cast<std::size_t>(shape.elements()) * size_of(dtype));
  const auto found =
      std::ranges::find_if(free_, [&](const auto& range) { return range.second >= bytes; });
  require(found != free_.end(), "replica", "no {} bytes of gradients are free", bytes);
  const auto [at, length] = *found;
  free_.erase(found);
  if (length > bytes) free_[at + bytes] = length - bytes;
  return Tensor(std::make_shared<Allocation>(backend, shared_from_this(), at, bytes), 0, shape,
                dtype);
}

void GradientArena::release(std::size_t at, std::size_t bytes) {
  const auto next = free_.lower_bound(at);
  if (next != free_.end() && next->first == at + bytes) {
    bytes += next->second;
    free_.erase(next);
  }
  const auto behind = free_.lower_bound(at);
  if (behind != free_.begin()) {
    const auto before = std::prev(behind);
    if (before->first + before->second == at) {
      before->second += bytes;
      return;
    }
  }
  free_[at] = bytes;
}

/// Layout of a rank's block: the control block, a table of the gradients' offsets by bucket, the
/// gradients.
class SharedReplica final : public Replica {
 public:
  SharedReplica(Transport& transport, int size, std::unique_ptr<MemorySharing> sharing,
                double timeout_seconds)
      : Replica(transport, size, std::move(sharing), timeout_seconds) {}
  bool shares_memory() const override { return true; }

  Tensor allocate(Backend& backend, const Shape& shape, DType dtype, ElementRange) override {
    std::string refusal;
    Tensor tensor =
        share_tensor(*sharing_, transport_.world(), ranks_, backend, shape, dtype, refusal);
    if (!tensor)
      fail_on_all_ranks(ExitCode::kMemory, "replica", {.key = "sync.replica"},
                        "{} {} numbers that the {} ranks of a replica share: {}", shape.elements(),
                        name_of(dtype), size_, refusal);
    return tensor;
  }

  void open(std::vector<Bucket>& buckets) override {
    Replica::open(buckets);
    counts_.assign(buckets.size(), 0);
    const std::size_t places = pages_for(buckets.size() * sizeof(Offset));
    std::size_t gradients = 0;
    for (const Bucket& bucket : buckets) gradients += pages_for(bucket.parameters.bytes());
    // Twice the size, to allow for fragmentation.
    open_control(buckets.size(), places + 2 * gradients);
    for (std::size_t b = 0; b < buckets.size(); ++b) new (&offset(place_, b)) Offset(0);
    gradients_ = std::make_shared<GradientArena>(blocks_[static_cast<std::size_t>(place_)],
                                                 more_at_ + places);
    transport_.world().barrier();  // all ranks have made their counters
  }
  Tensor gradients(Backend& backend, const Shape& shape, DType dtype) override {
    return gradients_->allocate(backend, shape, dtype);
  }

  void publish(int bucket, const ExchangeLabel& label) override {
    const auto b = static_cast<std::size_t>(bucket);
    offset(place_, b).store(gradients_->offset_of((*buckets_)[b].gradients),
                            std::memory_order_relaxed);
    control_->pulse.beat(Doing::kPublished, label);
    detail::advance(control_->counts(b)->published, ++counts_[b]);
  }
  bool published(int bucket, const ExchangeLabel& label, bool wait) override {
    return reached(bucket, &BucketCounts::published, label, wait, Doing::kWaitsForNeighbour,
                   "the gradients of");
  }
  bool taken(int bucket, const ExchangeLabel& label, bool wait) override {
    return reached(bucket, &BucketCounts::released, label, wait, Doing::kWaitsForReaders,
                   "the readers of");
  }
  Tensor take_mean(int bucket, const ExchangeLabel& label, bool passing) override;
  void share(int, const ExchangeLabel&) override {}
  void await(int) override {}
  void meet(const ExchangeLabel& label) override { barrier(label); }
  using Replica::sum;
  void sum(const Tensor& numbers) override {
    sum(numbers.data<double>(), static_cast<std::size_t>(numbers.elements()));
  }
  void show(const Bucket&, const Tensor&, const Tensor&, const Tensor&) override {
    require(false, "replica", "in memory that ranks share a bucket is not divided");
  }
  Tensor whole(const Bucket&, const Tensor& local) override { return local; }
  void take(const Bucket&, const Tensor&, const Tensor&, bool) override {}

 private:
  using Offset = std::atomic<std::uint64_t>;
  Offset& offset(int place, std::size_t bucket) const {
    return reinterpret_cast<Offset*>(blocks_[static_cast<std::size_t>(place)]->data() +
                                     more_at_)[bucket];
  }
  bool reached(int bucket, detail::CountWaits::Member member, const ExchangeLabel& label, bool wait,
               Doing doing, const char* what);

  std::shared_ptr<GradientArena> gradients_;
  std::vector<std::uint32_t> counts_;  ///< by bucket: how often its gradients were complete
};

bool SharedReplica::reached(int bucket, detail::CountWaits::Member member,
                            const ExchangeLabel& label, bool wait, Doing doing, const char* what) {
  const auto b = static_cast<std::size_t>(bucket);
  if (!wait)
    return std::ranges::all_of(others_, [&](int rank) {
      return detail::reached(controls_.at(rank)->counts(b)->*member, counts_[b]);
    });
  await_(controls_, transport_.rank(), others_, b, member, counts_[b], doing, label, [&] {
    return fmt::format("{} step {}, bucket {} in a replica", what, label.step, label.bucket);
  });
  return true;
}

Tensor SharedReplica::take_mean(int bucket, const ExchangeLabel& label, bool passing) {
  const auto b = static_cast<std::size_t>(bucket);
  const Bucket& of = (*buckets_)[b];
  Backend& backend = of.parameters.backend();
  const double share = 1.0 / size_;
  WeightedSum sum;
  // In place only if one weighted sum covers all ranks: it reads this rank's own before it
  // overwrites them.
  sum.out = passing && static_cast<std::size_t>(size_) <= sum.in.size()
                ? of.own_part(of.gradients)
                : Tensor(backend, Shape{of.own->elements}, of.parameters.dtype());
  for (int place = 0; place < size_; ++place) {
    const Tensor whole(std::make_shared<detail::BlockStorage<SharedBlock>>(
                           backend, blocks_[static_cast<std::size_t>(place)],
                           offset(place, b).load(std::memory_order_relaxed), of.parameters.bytes()),
                       0, of.parameters.shape(), of.parameters.dtype());
    const auto term = static_cast<std::size_t>(sum.terms++);
    sum.in[term] = of.own_part(whole);
    sum.weight[term] = share;
    if (place + 1 < size_ && static_cast<std::size_t>(sum.terms) < sum.in.size()) continue;
    backend.weighted_sum(sum);
    sum.terms = 0;
    sum.accumulate = true;
  }
  control_->pulse.beat(Doing::kMixed, label);
  detail::advance(control_->counts(b)->released, counts_[b]);
  return sum.out;
}

}  // namespace

std::unique_ptr<Replica> make_shared_replica(Transport& transport, int size,
                                             std::unique_ptr<MemorySharing> sharing,
                                             double timeout_seconds) {
  return std::make_unique<SharedReplica>(transport, size, std::move(sharing), timeout_seconds);
}

}  // namespace starling
