#include "kernels/cpu/allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <fstream>
#include <string>

#include "core/error.h"

namespace starling::cpu {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Bytes that the operating system says it could still give.
std::size_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  std::size_t value = 0;
  while (file >> key >> value) {
    std::getline(file, unit);
    if (key == "MemAvailable:") return value << 10;
  }
  return 0;
}

}  // namespace

CachingAllocator::~CachingAllocator() { release_cached(); }

std::size_t CachingAllocator::size_class(std::size_t bytes) {
  if (bytes <= 64) return 64;
  // Eight classes per power of two, and never finer than a cache line.
  const std::size_t step = std::max<std::size_t>(64, std::bit_floor(bytes - 1) / 8);
  return (bytes + step - 1) / step * step;
}

CachingAllocator::Block CachingAllocator::take(std::size_t bytes) {
  if (bytes > (std::size_t{1} << 62)) {
    fail(ExitCode::kMemory, "memory", "{} bytes were asked for; no machine has them", bytes);
  }
  const std::size_t size = size_class(bytes);
  const std::lock_guard lock(mutex_);
  Block block{nullptr, size};
  const auto it = free_.find(size);
  if (it != free_.end() && !it->second.empty()) {
    block.data = it->second.back();
    it->second.pop_back();
  } else {
    block = from_system(size);
  }
  ++stats_.allocations;
  stats_.in_use += size;
  stats_.peak_in_use = std::max(stats_.peak_in_use, stats_.in_use);
  return block;
}

CachingAllocator::Block CachingAllocator::from_system(std::size_t size) {
  const std::size_t alignment = size >= kHugePage ? kHugePage : size >= 4096 ? 4096 : 64;
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
  if (!data && stats_.reserved > stats_.in_use) {
    release_cached();
    data = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
  }
  if (!data) {
    fail(ExitCode::kMemory, "memory",
         "out of memory: {} bytes needed, {} in use by tensors, {} available on this machine; a "
         "smaller batch_size needs less",
         size, stats_.in_use, available_memory());
  }
#ifdef MADV_HUGEPAGE
  if (size >= kHugePage) madvise(data, rounded, MADV_HUGEPAGE);  // a wish; refusal does no harm
#endif
  ++stats_.system_allocations;
  stats_.reserved += size;
  return {data, size};
}

void CachingAllocator::give_back(Block block) noexcept {
  const std::lock_guard lock(mutex_);
  stats_.in_use -= block.size;
  try {
    free_[block.size].push_back(block.data);
  } catch (...) {
    stats_.reserved -= block.size;
    std::free(block.data);
  }
}

void CachingAllocator::release_cached() {
  for (auto& [size, blocks] : free_) {
    for (std::byte* data : blocks) {
      std::free(data);
      stats_.reserved -= size;
    }
    blocks.clear();
  }
}

MemoryStats CachingAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace starling::cpu
