#include "kernels/cuda/pool.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/error.h"
#include "kernels/cuda/runtime.h"

namespace starling::cuda {
namespace {

std::string in_words(std::size_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1024.0 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.2f} GiB", mib / 1024.0);
}

}  // namespace

Pool::Pool(int device, std::string name, std::function<void()> wait_for_all)
    : device_(device), name_(std::move(name)), wait_for_all_(std::move(wait_for_all)) {}

Pool::~Pool() {
  release_cached();
  for (std::byte* slab : slabs_) device_free(slab);
}

void Pool::close() {
  const std::lock_guard lock(mutex_);
  wait_for_all_ = nullptr;
}

std::size_t Pool::size_class(std::size_t bytes) {
  if (bytes <= 512) return 512;
  // Eight classes per power of two, and never finer than 512 bytes.
  const std::size_t step = std::max<std::size_t>(512, std::bit_floor(bytes - 1) / 8);
  return (bytes + step - 1) / step * step;
}

Pool::Block Pool::take(std::size_t bytes, StreamKind stream) {
  if (bytes > (std::size_t{1} << 62)) fail(ExitCode::kMemory, "memory", "{} bytes were asked for; no device has them", bytes);
  Block block{nullptr, size_class(bytes), stream};
  const std::lock_guard lock(mutex_);
  block.data = from_cache(block.size, stream);
  if (!block.data) block.data = from_driver(block.size);
  ++stats_.allocations;
  stats_.in_use += block.size;
  stats_.peak_in_use = std::max(stats_.peak_in_use, stats_.in_use);
  return block;
}

/// A free block of this size class, or among large ones of at most a quarter more.
std::byte* Pool::from_cache(std::size_t& size, StreamKind stream) {
  auto& free = free_[static_cast<std::size_t>(stream)];
  const std::size_t most = size > kLargestSmall ? size + size / 4 : size;
  for (auto it = free.lower_bound(size); it != free.end() && it->first <= most; ++it) {
    if (it->second.empty()) continue;
    std::byte* data = it->second.back();
    it->second.pop_back();
    size = it->first;
    return data;
  }
  return nullptr;
}

std::byte* Pool::from_driver(std::size_t size) {
  if (size > kLargestSmall) return driver_allocate(size);
  if (left_ < size) {
    // The rest of the old slab is not lost: blocks of the sizes that it can hold.
    while (left_ >= 512) {
      const std::size_t piece = std::min(kLargestSmall, std::bit_floor(left_));
      free_[0][piece].push_back(cut_);
      cut_ += piece;
      left_ -= piece;
    }
    std::byte* slab = driver_allocate(kSlab);
    slabs_.push_back(slab);
    cut_ = slab;
    left_ = kSlab;
  }
  std::byte* data = cut_;
  cut_ += size;
  left_ -= size;
  return data;
}

std::byte* Pool::driver_allocate(std::size_t size) {
  use_device(device_);  // the calling thread may be new
  void* data = device_allocate(size);
  if (!data && release_cached() > 0) data = device_allocate(size);
  if (!data) out_of_memory(size);
  ++stats_.system_allocations;
  stats_.reserved += size;
  return static_cast<std::byte*>(data);
}

/// Gives large free blocks back to the driver; returns their bytes.
std::size_t Pool::release_cached() {
  std::size_t released = 0;
  for (auto& free : free_) {
    for (auto it = free.upper_bound(kLargestSmall); it != free.end(); it = free.erase(it)) {
      if (!it->second.empty() && released == 0 && wait_for_all_) wait_for_all_();
      for (std::byte* data : it->second) {
        device_free(data);
        released += it->first;
      }
    }
  }
  stats_.reserved -= released;
  return released;
}

void Pool::out_of_memory(std::size_t size) const {
  const std::size_t total = device_info(device_).total_memory;
  fail(ExitCode::kMemory, "memory", "out of memory on {}: {} needed, {} free of {}, {} in use by tensors; a smaller batch_size needs less",
       name_, in_words(size), in_words(free_memory()), in_words(total), in_words(stats_.in_use));
}

void Pool::give_back(const Block& block) noexcept {
  const std::lock_guard lock(mutex_);
  stats_.in_use -= block.size;
  try {
    free_[static_cast<std::size_t>(block.stream)][block.size].push_back(block.data);
  } catch (...) {  // no host memory for the list: the block is lost to the pool until the end
  }
}

MemoryStats Pool::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace starling::cuda
