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

/// What a cache of `limit_bytes` a host keeps. Nothing is ever thrown out: an epoch takes each
/// sample once, so one sample is as good as another, and making room would only decode more.
struct CachePlan {
  std::size_t sample_bytes = 0;  ///< all tensors of a sample, as declared
  std::int64_t samples = 0;      ///< of the data set, training and test
  std::int64_t places = 0;       ///< of one rank: samples that it keeps at most
  /// Bytes of one rank: the places, and 4 for each sample of the data set that say where it is.
  std::size_t bytes() const;
  std::size_t first_place() const;  ///< in bytes from the block's begin
};
/// Plans a cache for ranks that share what they keep, or for one.
CachePlan plan_cache(const DatasetInfo& info, double limit_bytes, int ranks_of_host);

/// Another data set whose samples are kept, as read() gives them, before augmentation:
/// `data.cache`. The bytes are the other's, whether they come from memory or not. The ranks of a
/// host share: each writes what it has decoded into a block of its own and reads in the others'.
/// Thread-safe as the other is. Two threads that read a sample at the same time for the first time
/// both decode it.
class CachedDataset final : public Dataset {
 public:
  /// `limit_bytes` of samples a host, divided between its ranks.
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
  void use_model(const SafetensorsFile& file, const std::string& source) override {
    inner_->use_model(file, source);
  }
  bool left_out(std::int64_t test_sample) const override { return inner_->left_out(test_sample); }

  /// Takes the memory, once, after open() and before any read(); until then nothing is kept. Where
  /// ranks of a host cannot share, each keeps its own, in its part of the limit, and rank 0 says
  /// why. Collective.
  void allocate(World& world, MemorySharing& sharing);

  double limit_bytes() const { return limit_bytes_; }
  /// "room for 2560 of 2560 samples, 7.5 MiB, shared by the 4 ranks of a host": this rank's view.
  std::string text() const;
  /// Counts of this rank since the data set was made.
  struct Counts {
    std::int64_t hits = 0;     ///< samples read from memory
    std::int64_t decoded = 0;  ///< and from the other data set
    std::int64_t kept = 0;     ///< that this rank keeps now
    std::size_t bytes = 0;     ///< of those
  };
  Counts counts() const;

 private:
  /// Table of where samples are, at the begin of each block: a number for each, written by the
  /// block's owner alone.
  std::atomic<std::uint32_t>* table(const SharedBlock& block) const {
    return reinterpret_cast<std::atomic<std::uint32_t>*>(block.data());
  }
  std::byte* place(const SharedBlock& block, std::uint32_t number) const {
    return block.data() + plan_.first_place() +
           static_cast<std::size_t>(number) * plan_.sample_bytes;
  }
  /// The sample's tensors in one of the host's blocks, or null.
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
  mutable std::atomic<std::uint32_t> taken_{0};  ///< places of the own block
  mutable std::atomic<std::int64_t> hits_{0}, decoded_{0};
};

}  // namespace starling
