#include "comm/replica.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <new>
#include <utility>

#include "comm/agreement.h"
#include "comm/shared/shared_buckets.h"
#include "comm/transports/strided.h"
#include "core/error.h"
#include "core/operations/pointwise.h"

namespace starling {
namespace {

using detail::BucketCounts;
using detail::ControlBlock;
using Doing = detail::Pulse::Doing;

constexpr std::size_t kLine = detail::kCacheLine, kPage = 4096;
std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

/// Memory for gradients at the end of a rank's block. Pages are taken where they are first written,
/// and places are given from the beginning, so that the memory is what is used at once.
class Replica::Gradients : public std::enable_shared_from_this<Gradients> {
 public:
  Gradients(std::shared_ptr<SharedBlock> block, std::size_t first)
      : block_(std::move(block)), first_(first) {
    free_[0] = block_->bytes() - first;
  }
  Tensor allocate(Backend& backend, const Shape& shape, DType dtype);
  /// Offset in the block.
  std::size_t offset_of(const Tensor& gradients) const {
    return static_cast<std::size_t>(gradients.raw() - block_->data());
  }

 private:
  class Place;
  void give_back(std::size_t at, std::size_t bytes);

  std::shared_ptr<SharedBlock> block_;
  std::size_t first_;
  std::map<std::size_t, std::size_t> free_;  ///< bytes by offset behind first_; never adjacent
};

class Replica::Gradients::Place final : public Storage {
 public:
  Place(Backend& backend, std::shared_ptr<Gradients> of, std::size_t at, std::size_t bytes)
      : Storage(backend, of->block_->data() + of->first_ + at, bytes),
        of_(std::move(of)),
        at_(at),
        bytes_(bytes) {}
  ~Place() override { of_->give_back(at_, bytes_); }

 private:
  std::shared_ptr<Gradients> of_;
  std::size_t at_, bytes_;
};

Tensor Replica::Gradients::allocate(Backend& backend, const Shape& shape, DType dtype) {
  const std::size_t bytes =
      rounded(static_cast<std::size_t>(shape.elements()) * size_of(dtype), kPage);
  const auto found =
      std::ranges::find_if(free_, [&](const auto& range) { return range.second >= bytes; });
  require(found != free_.end(), "replica", "no {} bytes of gradients are free", bytes);
  const auto [at, length] = *found;
  free_.erase(found);
  if (length > bytes) free_[at + bytes] = length - bytes;
  return Tensor(std::make_shared<Place>(backend, shared_from_this(), at, bytes), 0, shape, dtype);
}

void Replica::Gradients::give_back(std::size_t at, std::size_t bytes) {
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

Replica::Replica(Transport& transport, int size, std::unique_ptr<MemorySharing> sharing,
                 double timeout_seconds)
    : transport_(transport),
      size_(size),
      place_(transport.rank() % size),
      index_(transport.rank() / size),
      sharing_(std::move(sharing)),
      await_(timeout_seconds, false, {}) {
  require(size > 1 && transport.size() % size == 0, "replica", "{} ranks in replicas of {}",
          transport.size(), size);
  for (int place = 0; place < size; ++place) ranks_.push_back(index_ * size + place);
  others_ = ranks_;
  std::erase(others_, transport.rank());
  const std::vector<std::string> hosts = transport.world().all_gather(sharing_->host());
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const std::size_t first =
        rank / static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
    if (hosts[rank] == hosts[first]) continue;
    fail_on_all_ranks(ExitCode::kUsage, "config", {.key = "sync.replica"},
                      "is {}, but ranks {} and {} of one replica are on different hosts ({} and "
                      "{}); a replica's ranks share a host's memory: start ranks host by host, "
                      "with a multiple of {} on each",
                      size, first, rank, hosts[first].substr(0, hosts[first].find(' ')),
                      hosts[rank].substr(0, hosts[rank].find(' ')), size);
  }
  between_ = make_strided_transport(transport, size);
}

Replica::~Replica() {
  if (control_) control_->pulse.beat(Doing::kEnded);
}

Tensor Replica::allocate(Backend& backend, const Shape& shape, DType dtype) {
  const std::size_t bytes =
      std::max<std::size_t>(static_cast<std::size_t>(shape.elements()) * size_of(dtype), 1);
  const SharedBlocks blocks =
      sharing_->share(transport_.world(), ranks_, bytes, MemorySharing::Kind::kOfFirst);
  if (!blocks.refusal.empty())
    fail_on_all_ranks(ExitCode::kMemory, "replica", {.key = "sync.replica"},
                      "{} bytes that the {} ranks of a replica share: {}", bytes, size_,
                      blocks.refusal);
  return Tensor(
      std::make_shared<detail::BlockStorage<SharedBlock>>(backend, blocks.of.front(), 0, bytes), 0,
      shape, dtype);
}

void Replica::open(std::vector<Bucket>& buckets) {
  buckets_ = &buckets;
  counts_.assign(buckets.size(), 0);
  places_at_ = rounded(ControlBlock::bytes(buckets.size() + 1), kLine);
  numbers_at_ = places_at_ + rounded(buckets.size() * sizeof(std::atomic<std::uint64_t>), kLine);
  gradients_at_ =
      rounded(numbers_at_ + 2 * (buckets.size() + 1) * sizeof(double), std::size_t{kPage});
  std::size_t gradients = 0;
  for (const Bucket& bucket : buckets) gradients += rounded(bucket.parameters.bytes(), kPage);
  // Twice the room, since what is free may be in pieces
  SharedBlocks blocks = sharing_->share(transport_.world(), ranks_, gradients_at_ + 2 * gradients,
                                        MemorySharing::Kind::kSparse);
  if (!blocks.refusal.empty())
    fail_on_all_ranks(ExitCode::kMemory, "replica", {.key = "sync.replica"},
                      "the gradients that the {} ranks of a replica add up: {}", size_,
                      blocks.refusal);
  blocks_ = std::move(blocks.of);
  const auto own = static_cast<std::size_t>(place_);
  control_ = ControlBlock::make(blocks_[own]->data(), buckets.size() + 1);
  for (std::size_t b = 0; b < buckets.size(); ++b)
    new (blocks_[own]->data() + places_at_ + b * sizeof(std::atomic<std::uint64_t>))
        std::atomic<std::uint64_t>(0);
  for (std::size_t place = 0; place < blocks_.size(); ++place)
    controls_[ranks_[place]] =
        place == own ? control_ : reinterpret_cast<ControlBlock*>(blocks_[place]->data());
  gradients_ = std::make_shared<Gradients>(blocks_[own], gradients_at_);
  for (Bucket& bucket : buckets) {
    const std::vector<std::int64_t>& parts = bucket.layout->parts;
    require(parts.size() == static_cast<std::size_t>(size_) + 1, "replica",
            "a bucket is not divided among {} ranks", size_);
    bucket.own = {parts[own], parts[own + 1] - parts[own]};
  }
  transport_.world().barrier();  // the counts of all are made
}

Tensor Replica::gradients(Backend& backend, const Shape& shape, DType dtype) {
  return gradients_->allocate(backend, shape, dtype);
}

bool Replica::reached(int bucket, detail::CountWaits::Member member, const ExchangeLabel& label,
                      bool wait, Doing doing, const char* what) {
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

void Replica::publish(int bucket, const ExchangeLabel& label) {
  const auto b = static_cast<std::size_t>(bucket);
  auto* const place = reinterpret_cast<std::atomic<std::uint64_t>*>(
      blocks_[static_cast<std::size_t>(place_)]->data() + places_at_ +
      b * sizeof(std::atomic<std::uint64_t>));
  place->store(gradients_->offset_of((*buckets_)[b].gradients), std::memory_order_relaxed);
  control_->pulse.beat(Doing::kPublished, label);
  detail::advance(own_counts(b).published, ++counts_[b]);
}

bool Replica::published(int bucket, const ExchangeLabel& label, bool wait) {
  return reached(bucket, &BucketCounts::published, label, wait, Doing::kWaitsForNeighbour,
                 "the gradients of");
}

bool Replica::taken(int bucket, const ExchangeLabel& label, bool wait) {
  return reached(bucket, &BucketCounts::released, label, wait, Doing::kWaitsForReaders,
                 "the readers of");
}

void Replica::take_mean(int bucket, const Tensor& out, const ExchangeLabel& label) {
  const auto b = static_cast<std::size_t>(bucket);
  const Bucket& of = (*buckets_)[b];
  const double share = 1.0 / size_;
  WeightedSum sum;
  sum.out = out;
  for (int place = 0; place < size_; ++place) {
    const auto& block = blocks_[static_cast<std::size_t>(place)];
    const auto* const at = reinterpret_cast<const std::atomic<std::uint64_t>*>(
        block->data() + places_at_ + b * sizeof(std::atomic<std::uint64_t>));
    const Tensor whole(
        std::make_shared<detail::BlockStorage<SharedBlock>>(
            out.backend(), block, at->load(std::memory_order_relaxed), of.parameters.bytes()),
        0, of.parameters.shape(), of.parameters.dtype());
    const auto term = static_cast<std::size_t>(sum.terms++);
    sum.in[term] = of.own_part(whole);
    sum.weight[term] = share;
    if (place + 1 < size_ && static_cast<std::size_t>(sum.terms) < sum.in.size()) continue;
    out.backend().weighted_sum(sum);
    sum.terms = 0;
    sum.accumulate = true;
  }
  control_->pulse.beat(Doing::kMixed, label);
  detail::advance(own_counts(b).released, counts_[b]);
}

void Replica::barrier(const ExchangeLabel& label) {
  const std::size_t index = buckets_->size();
  control_->pulse.beat(Doing::kPublished, label);
  detail::advance(own_counts(index).published, ++barriers_);
  await_(controls_, transport_.rank(), others_, index, &BucketCounts::published, barriers_,
         Doing::kWaitsForNeighbour, label,
         [&] { return fmt::format("the ranks of a replica after step {}", label.step); });
}

void Replica::sum(double* values, std::size_t count, const ExchangeLabel& label) {
  const std::size_t most = buckets_->size() + 1;
  require(count <= most, "replica", "{} numbers, at most {}", count, most);
  // Two places in turn: who writes the next numbers has seen all arrive, not all read.
  const std::size_t at = numbers_at_ + (barriers_ % 2) * most * sizeof(double);
  const auto of_rank = [&](std::size_t place) {
    return reinterpret_cast<double*>(blocks_[place]->data() + at);
  };
  std::copy_n(values, count, of_rank(static_cast<std::size_t>(place_)));
  barrier(label);
  std::copy_n(of_rank(0), count, values);
  for (std::size_t place = 1; place < blocks_.size(); ++place) {
    for (std::size_t i = 0; i < count; ++i) values[i] += of_rank(place)[i];
  }
}

}  // namespace starling
