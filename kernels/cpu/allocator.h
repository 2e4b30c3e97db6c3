#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/backend.h"

namespace starling::cpu {

/// Keeps freed blocks by size class and hands them out again, so that a training loop in its steady
/// state asks the operating system for nothing. Thread-safe. Blocks of 2 MiB and more are aligned
/// to huge pages and ask for them.
class CachingAllocator {
 public:
  CachingAllocator() = default;
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  struct Block {
    std::byte* data = nullptr;
    std::size_t size = 0;  ///< the size class
  };
  /// Takes at least `bytes` bytes, aligned to 64 or more. Error(kMemory) with needed and free bytes
  /// where there are none.
  Block take(std::size_t bytes);
  void give_back(Block block) noexcept;
  MemoryStats stats() const;

  /// The size class of a request: 64 bytes and up, at most an eighth is wasted above 512 bytes.
  static std::size_t size_class(std::size_t bytes);

 private:
  Block from_system(std::size_t size);
  void release_cached();

  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> free_;
  MemoryStats stats_;
};

}  // namespace starling::cpu
