#include "kernels/cpu/allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <iterator>
#include <string>

#include "core/error.h"
#include "core/host.h"

namespace starling::cpu {
namespace {

constexpr std::size_t kPage = 4096, kHugePage = std::size_t{2} << 20;
constexpr std::size_t kSegment = std::size_t{64} << 20;
constexpr std::size_t kSmallestGap = std::size_t{64} << 10;
constexpr std::size_t kSlab = std::size_t{4} << 20;
// Separate allocations for sanitizers, which check accesses beyond a block.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kOwnBlocks = true;
#else
constexpr bool kOwnBlocks = false;
#endif

bool is_small(std::size_t size) { return kOwnBlocks || size < CachingAllocator::kLarge; }

}  // namespace

CachingAllocator::~CachingAllocator() {
  release_cached();
  for (const auto& [data, size] : segments_) std::free(data);
}

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
  const std::lock_guard lock(mutex_);
  Block block{nullptr, size_class(bytes)};
  if (is_small(block.size))
    block.data = from_class(block.size);
  else
    block = from_gaps(std::max(kLarge, (bytes + kPage - 1) / kPage * kPage));
  ++stats_.allocations;
  stats_.in_use += block.size;
  stats_.peak_in_use = std::max(stats_.peak_in_use, stats_.in_use);
  return block;
}

std::byte* CachingAllocator::from_class(std::size_t size) {
  const auto it = free_.find(size);
  if (it == free_.end() || it->second.empty())
    return kOwnBlocks ? from_system(size, size < kLarge ? 64 : kPage) : cut(size);
  std::byte* const data = it->second.back();
  it->second.pop_back();
  return data;
}

std::byte* CachingAllocator::cut(std::size_t size) {
  if (size > slab_left_) {
    const Block slab = from_gaps(kSlab);
    slab_ = slab.data;
    slab_left_ = slab.size;
  }
  slab_left_ -= size;
  return std::exchange(slab_, slab_ + size);
}

CachingAllocator::Block CachingAllocator::from_gaps(std::size_t size) {
  auto smallest = gaps_.lower_bound({size, nullptr});
  if (smallest == gaps_.end()) {
    add_segment(size);
    smallest = gaps_.lower_bound({size, nullptr});
  }
  const auto [room, data] = *smallest;
  remove_gap({room, data});
  if (room - size < kSmallestGap) return {data, room};
  add_gap(data + size, room - size);
  return {data, size};
}

std::byte* CachingAllocator::from_system(std::size_t size, std::size_t alignment) {
  const auto ask = [&] {
    return static_cast<std::byte*>(
        std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment));
  };
  std::byte* data = ask();
  if (!data && stats_.reserved > stats_.in_use) {
    release_cached();
    data = ask();
  }
  if (!data) {
    fail(ExitCode::kMemory, "memory",
         "out of memory: {} bytes needed, {} in use by tensors, {} available on this machine; a "
         "smaller batch_size needs less",
         size, stats_.in_use, available_bytes());
  }
  ++stats_.system_allocations;
  stats_.reserved += size;
  return data;
}

void CachingAllocator::add_segment(std::size_t size) {
  // Untouched pages use no memory, so segments can be larger than needed: fewer segments have less
  // unused space between blocks.
  const auto whole = [](std::size_t of) { return (of + kHugePage - 1) / kHugePage * kHugePage; };
  const std::size_t bytes = std::max({kSegment, whole(size), whole(stats_.reserved / 2)});
  std::byte* const data = from_system(bytes, kHugePage);
#ifdef MADV_HUGEPAGE
  madvise(data, bytes, MADV_HUGEPAGE);  // a wish; refusal does no harm
#endif
  segments_.emplace(data, bytes);
  add_gap(data, bytes);
}

void CachingAllocator::add_gap(std::byte* data, std::size_t size) {
  // With its free neighbours, but for those of other segments.
  const auto behind = gaps_by_place_.find(data + size);
  if (behind != gaps_by_place_.end() && !segments_.contains(behind->first)) {
    size += behind->second;
    remove_gap({behind->second, behind->first});
  }
  const auto after = gaps_by_place_.lower_bound(data);
  if (after != gaps_by_place_.begin() && !segments_.contains(data)) {
    const auto before = *std::prev(after);
    if (before.first + before.second == data) {
      remove_gap({before.second, before.first});
      data = before.first;
      size += before.second;
    }
  }
  gaps_.insert({size, data});
  gaps_by_place_.emplace(data, size);
}

void CachingAllocator::remove_gap(const Gap& gap) {
  gaps_.erase(gap);
  gaps_by_place_.erase(gap.second);
}

void CachingAllocator::give_back(Block block) noexcept {
  const std::lock_guard lock(mutex_);
  stats_.in_use -= block.size;
  try {
    if (!is_small(block.size)) return add_gap(block.data, block.size);
    free_[block.size].push_back(block.data);
  } catch (...) {
    // No memory for the list: the block stays unused.
  }
}

void CachingAllocator::release_cached() {
  for (auto& [size, blocks] : free_) {
    if (!kOwnBlocks) break;  // they are in slabs
    for (std::byte* data : blocks) {
      std::free(data);
      stats_.reserved -= size;
    }
    blocks.clear();
  }
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    const auto [data, size] = *segment;
    if (!gaps_.contains({size, data})) {
      ++segment;
      continue;
    }
    remove_gap({size, data});
    segment = segments_.erase(segment);
    std::free(data);
    stats_.reserved -= size;
  }
}

MemoryStats CachingAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace starling::cpu
