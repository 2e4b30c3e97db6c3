#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "core/backend.h"

namespace starling::cpu {

/// Keeps freed memory and hands it out again, so that a training loop in its steady state asks the
/// operating system for nothing. Thread-safe. Small blocks come again by size class. Large ones,
/// and slabs of small ones, are cut from segments of huge pages, the smallest gap first, and grow
/// together with free neighbours: the peak of what is resident is little more than that of what is
/// in use.
class CachingAllocator {
 public:
  CachingAllocator() = default;
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  struct Block {
    std::byte* data = nullptr;
    std::size_t size = 0;  ///< what it can hold
  };
  /// Takes at least `bytes` bytes, aligned to 64, large ones to 4096. Error(kMemory) with needed
  /// and free bytes where there are none.
  Block take(std::size_t bytes);
  void give_back(Block block) noexcept;
  MemoryStats stats() const;

  /// The size class of a request: 64 bytes and up, at most an eighth is wasted above 512 bytes.
  static std::size_t size_class(std::size_t bytes);
  /// From here on blocks are large.
  static constexpr std::size_t kLarge = std::size_t{1} << 20;

 private:
  using Gap = std::pair<std::size_t, std::byte*>;  ///< size, where
  std::byte* from_class(std::size_t size);
  std::byte* cut(std::size_t size);
  Block from_gaps(std::size_t size);
  std::byte* from_system(std::size_t size, std::size_t alignment);
  void add_segment(std::size_t size);
  void add_gap(std::byte* data, std::size_t size);
  void remove_gap(const Gap& gap);
  void release_cached();

  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> free_;  ///< small blocks, by size class
  std::byte* slab_ = nullptr;                            ///< what is left of the newest
  std::size_t slab_left_ = 0;
  std::map<std::byte*, std::size_t> segments_;
  std::set<Gap> gaps_;
  std::map<std::byte*, std::size_t> gaps_by_place_;  ///< the bytes of each, by where it begins
  MemoryStats stats_;
};

}  // namespace starling::cpu
