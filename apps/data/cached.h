#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/data/dataset.h"
#include "comm/shared/memory_sharing.h"
#include "comm/world.h"

namespace starling {

inline constexpr double kMebibyte = 1024.0 * 1024.0;

/// The size of a cache of `limit_bytes` per host. Samples are never evicted: every sample is read
/// once an epoch, so replacing one by another would gain nothing.
struct CachePlan {
  std::size_t sample_bytes = 0;  ///< all tensors of a sample, as declared
  std::int64_t samples = 0;      ///< of the data set, training and test
  std::int64_t places = 0;       ///< of one rank: the most samples that it stores
  /// Bytes of one rank's block: the samples, and a table of 4 bytes for each sample of the data
  /// set.
  std::size_t bytes() const;
  std::size_t first_place() const;  ///< byte offset of the first sample in the block
};
/// Plans a cache for a host's ranks, which share it, or for a single rank.
CachePlan plan_cache(const DatasetInfo& info, double limit_bytes, int ranks_of_host);

/// Caches the samples of another data set, before augmentation: `data.cache`. The ranks of a host
/// share the cache: each stores the samples that it has decoded in its own block of shared memory,
/// and reads from all blocks. As thread-safe as the other data set. Threads that read the same
/// uncached sample at the same time both decode it.
class CachedDataset final : public Dataset {
 public:
  /// `limit_bytes`: per host, divided between its ranks.
  CachedDataset(std::unique_ptr<Dataset> inner, double limit_bytes)
      : inner_(std::move(inner)), limit_bytes_(limit_bytes) {}

  DatasetInfo info() const override { return inner_->info(); }
  void open() override { inner_->open(); }
  void read(Split split, std::int64_t index, std::span<std::byte* const> out) const override;
  std::int64_t label(Split split, std::int64_t index) const override {
    return inner_->label(split, index);
  }
  std::string name(Split split, std::int64_t index) const override {
    return inner_->name(split, index);
  }
  std::int64_t counted_targets(std::int64_t index) const override {
    return inner_->counted_targets(index);
  }
  double complexity(Split split, std::int64_t index) const override {
    return inner_->complexity(split, index);
  }
  std::vector<std::int64_t> bad_samples() const override { return inner_->bad_samples(); }
  bool countable() const override { return inner_->countable(); }
  void use_test_share(const TestShare& share) override { inner_->use_test_share(share); }
  bool left_out(std::int64_t test_sample) const override { return inner_->left_out(test_sample); }

  /// Allocates the memory, once, after open() and before any read(); until then nothing is cached.
  /// If the ranks of a host cannot share memory, each uses a cache of its own with its part of the
  /// limit, and rank 0 logs the reason. Collective.
  void allocate(World& world, MemorySharing& sharing);

  double limit_bytes() const { return limit_bytes_; }
  /// "room for 2560 of 2560 samples, 7.5 MiB, shared by the 4 ranks of a host": this rank's view.
  std::string text() const;
  /// Counters of this rank since construction.
  struct Counts {
    std::int64_t hits = 0;     ///< samples read from memory
    std::int64_t decoded = 0;  ///< samples read from the other data set
    std::int64_t kept = 0;     ///< samples in this rank's block
    std::size_t bytes = 0;     ///< of these samples
  };
  Counts counts() const;

 private:
  /// The table at the start of each block: one entry per sample, written by the block's owner only.
  std::atomic<std::uint32_t>* table(const SharedBlock& block) const {
    return reinterpret_cast<std::atomic<std::uint32_t>*>(block.data());
  }
  std::byte* place(const SharedBlock& block, std::uint32_t number) const {
    return block.data() + plan_.first_place() +
           static_cast<std::size_t>(number) * plan_.sample_bytes;
  }
  /// The sample's tensors in one of the host's blocks; null: not cached.
  const std::byte* find(std::size_t sample) const;
  void keep(std::size_t sample, std::span<std::byte* const> tensors) const;

  std::unique_ptr<Dataset> inner_;
  double limit_bytes_;
  CachePlan plan_;
  std::int64_t train_samples_ = 0;
  std::vector<std::size_t> tensor_bytes_;
  std::shared_ptr<SharedBlock> own_;                        ///< null before allocate()
  std::vector<std::shared_ptr<const SharedBlock>> blocks_;  ///< of the host's ranks, its own first
  int sharing_ranks_ = 1;
  mutable std::atomic<std::uint32_t> taken_{0};  ///< used places of the own block
  mutable std::atomic<std::int64_t> hits_{0}, decoded_{0};
};

}  // namespace starling
