#include "apps/data/cached.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/text.h"

namespace starling {
namespace {

using PlaceNumber = std::atomic<std::uint32_t>;
// Entries of the table are shared between processes, in memory that is initially zero.
static_assert(PlaceNumber::is_always_lock_free && sizeof(PlaceNumber) == 4);

// Values of a sample's table entry: absent, being written, or its place in the block + kFirstPlace.
constexpr std::uint32_t kAbsent = 0, kBeingWritten = 1, kFirstPlace = 2;
constexpr std::size_t kPlaceAlignment = 64;

/// Private memory of one rank; pages are allocated when written.
class OwnBlock final : public SharedBlock {
 public:
  explicit OwnBlock(std::size_t bytes) : SharedBlock(zeroed(bytes), bytes) {}
  ~OwnBlock() override { std::free(data()); }

 private:
  static std::byte* zeroed(std::size_t bytes) {
    void* memory = std::calloc(bytes, 1);
    if (!memory)
      fail(ExitCode::kMemory, "data", {.key = "data.cache.limit_mib"},
           "out of memory: {} bytes; use less", bytes);
    return static_cast<std::byte*>(memory);
  }
};

}  // namespace

std::size_t CachePlan::first_place() const {
  const std::size_t table = static_cast<std::size_t>(samples) * sizeof(PlaceNumber);
  return (table + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
}

std::size_t CachePlan::bytes() const {
  return first_place() + static_cast<std::size_t>(places) * sample_bytes;
}

CachePlan plan_cache(const DatasetInfo& info, double limit_bytes, int ranks_of_host) {
  CachePlan plan;
  for (const TensorInfo& tensor : info.tensors) plan.sample_bytes += tensor.bytes();
  plan.samples = info.train_samples + info.test_samples;
  constexpr double kMost = std::numeric_limits<std::uint32_t>::max() - kFirstPlace;
  const double fit = std::min(limit_bytes / ranks_of_host /
                                  static_cast<double>(std::max<std::size_t>(plan.sample_bytes, 1)),
                              kMost);
  // Each rank of a host decodes a share of both splits, rounded up.
  const auto part = [&](std::int64_t samples) {
    return (samples + ranks_of_host - 1) / ranks_of_host;
  };
  plan.places =
      std::min(static_cast<std::int64_t>(fit), part(info.train_samples) + part(info.test_samples));
  return plan;
}

void CachedDataset::allocate(World& world, MemorySharing& sharing) {
  const DatasetInfo info = inner_->info();
  tensor_bytes_.clear();
  for (const TensorInfo& tensor : info.tensors) tensor_bytes_.push_back(tensor.bytes());
  train_samples_ = info.train_samples;

  std::vector<int> local;
  const std::vector<std::string> hosts =
      world.size() > 1 ? world.all_gather(sharing.host()) : std::vector{sharing.host()};
  for (int rank = 0; rank < world.size(); ++rank) {
    if (hosts[static_cast<std::size_t>(rank)] == hosts[static_cast<std::size_t>(world.rank())])
      local.push_back(rank);
  }
  const auto ranks_of_host = static_cast<int>(local.size());
  plan_ = plan_cache(info, limit_bytes_, ranks_of_host);
  blocks_.clear();
  if (world.size() > 1) {
    SharedBlocks shared = sharing.share(world, local, plan_.bytes());
    if (shared.refusal.empty()) {
      for (std::size_t k = 0; k < shared.of.size(); ++k) {
        if (local[k] == world.rank()) own_ = shared.of[k];
        blocks_.push_back(std::move(shared.of[k]));
      }
      sharing_ranks_ = ranks_of_host;
      std::stable_partition(blocks_.begin(), blocks_.end(),
                            [&](const auto& block) { return block == own_; });
    } else if (world.rank() == 0) {
      log::warning(
          "data.cache: ranks of a host cannot share memory ({}); each caches its own within its "
          "part of the limit",
          shared.refusal);
    }
  }
  if (own_) return;
  // A single rank sees every sample
  plan_ = plan_cache(info, limit_bytes_ / ranks_of_host, 1);
  own_ = std::make_shared<OwnBlock>(plan_.bytes());
  blocks_ = {own_};
}

const std::byte* CachedDataset::find(std::size_t sample) const {
  for (const auto& block : blocks_) {
    const std::uint32_t number = table(*block)[sample].load(std::memory_order_acquire);
    if (number >= kFirstPlace) return place(*block, number - kFirstPlace);
  }
  return nullptr;
}

void CachedDataset::read(Split split, std::int64_t index, std::span<std::byte* const> out) const {
  const auto sample =
      static_cast<std::size_t>(split == Split::kTrain ? index : train_samples_ + index);
  if (const std::byte* from = find(sample)) {
    for (std::size_t t = 0; t < tensor_bytes_.size(); from += tensor_bytes_[t], ++t)
      std::memcpy(out[t], from, tensor_bytes_[t]);
    hits_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  inner_->read(split, index, out);
  decoded_.fetch_add(1, std::memory_order_relaxed);
  if (own_ && !find(sample)) keep(sample, out);  // another rank may have been faster
}

/// Lock-free: a sample that another thread is writing, or for which there is no space, is decoded
/// again.
void CachedDataset::keep(std::size_t sample, std::span<std::byte* const> tensors) const {
  const auto places = static_cast<std::uint32_t>(plan_.places);
  PlaceNumber& entry = table(*own_)[sample];
  std::uint32_t expected = kAbsent;
  if (taken_.load(std::memory_order_relaxed) >= places ||
      !entry.compare_exchange_strong(expected, kBeingWritten))
    return;
  std::uint32_t number = taken_.load(std::memory_order_relaxed);
  while (number < places && !taken_.compare_exchange_weak(number, number + 1)) {
  }
  if (number >= places) {
    entry.store(kAbsent);
    return;
  }
  std::byte* to = place(*own_, number);
  for (std::size_t t = 0; t < tensor_bytes_.size(); to += tensor_bytes_[t], ++t)
    std::memcpy(to, tensors[t], tensor_bytes_[t]);
  entry.store(number + kFirstPlace, std::memory_order_release);
}

std::string CachedDataset::text() const {
  const std::int64_t room = std::min(plan_.samples, plan_.places * sharing_ranks_);
  const std::string whose = sharing_ranks_ > 1
                                ? fmt::format("shared by the {} ranks of a host", sharing_ranks_)
                                : "of each rank";
  return fmt::format("cache: room for {} of {}, {:.1f} MiB {}", room,
                     counted(plan_.samples, "sample"),
                     static_cast<double>(plan_.bytes()) * sharing_ranks_ / kMebibyte, whose);
}

CachedDataset::Counts CachedDataset::counts() const {
  const auto kept = static_cast<std::int64_t>(taken_.load(std::memory_order_relaxed));
  return {.hits = hits_.load(std::memory_order_relaxed),
          .decoded = decoded_.load(std::memory_order_relaxed),
          .kept = kept,
          .bytes = static_cast<std::size_t>(kept) * plan_.sample_bytes};
}

}  // namespace starling
